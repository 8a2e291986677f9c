"""Updates computed while gradients travel: the bits of a late update, whatever a script does in between."""

import pytest

TRAINED = """
import copy
import json
import torch
from torch import nn
import topout
from topout.train.prepared import update

update.WORTH_BYTES = 0
ctx = topout.init()
nothing = lambda *_: None
sgd = lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.01)
makers = {
    "momentum": sgd,
    "plain": lambda parameters: torch.optim.SGD(parameters, 0.1, fused=True),
    "nesterov": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True, maximize=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, 1e-2, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-2),
    "groups": lambda parameters: torch.optim.SGD(
        [{"params": [one], "lr": 0.1 / (number + 1)} for number, one in enumerate(parameters)], momentum=0.9),
}


class Case:
    def __init__(self, make, is_prepared, in_between=nothing, num_steps=8, zero={}):
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
        self.inner[0].bias.requires_grad_(False)
        optimizer = make([one for one in self.inner.parameters() if one.requires_grad])
        self.model, self.optimizer = ctx.wrap(self.inner, optimizer, buckets=0.25, early_update=False)
        self.prepared = update.prepared_update(self.model, optimizer, ctx.place) if is_prepared else None
        if is_prepared:
            self.model.register_comm_hook(*self.prepared.hook)
        self.noted = []
        for self.number in range(num_steps):
            self.backward()
            if in_between(self) == "no step":
                self.optimizer.zero_grad(**zero)
                continue
            self.optimizer.step()
            self.noted.append([one.grad is not None and type(one.grad) is torch.Tensor for one in self.parameters])
            self.optimizer.zero_grad(**zero)
        self.num_used = self.prepared._num_used if is_prepared else 0

    @property
    def parameters(self):
        return list(self.inner.parameters())

    def batch(self):
        return torch.randn(16, 64, generator=torch.Generator().manual_seed(100 * self.number + ctx.rank))

    def backward(self):
        self.model(self.batch()).square().mean().backward()

    def state(self):
        entries = [self.optimizer.state[one] for one in self.parameters if one in self.optimizer.state]
        values = [value for entry in entries for value in entry.values() if torch.is_tensor(value)]
        return [*self.parameters, *values]


def same(make, in_between=nothing, **options):
    plain, prepared = Case(make, False, in_between, **options), Case(make, True, in_between, **options)
    pairs = list(zip(plain.state(), prepared.state(), strict=True))
    return {
        "same": len(pairs) >= 6 and all(torch.equal(*pair) for pair in pairs),
        "noted": plain.noted == prepared.noted,
        "used": prepared.num_used,
        "given up": prepared.prepared._has_given_up,
    }
"""

BITS = (
    TRAINED
    + """
print(json.dumps({name: same(make) for name, make in makers.items()}))
"""
)

IN_BETWEEN = (
    TRAINED
    + """
def at(step, act):
    return lambda case: act(case) if case.number == step else None


def gradients(case):
    return [one.grad for one in case.parameters if one.grad is not None]


def clip(case):
    nn.utils.clip_grad_norm_(case.inner.parameters(), 1e-3)


def clip_data(case):
    for one in case.parameters:
        if one.grad is not None:
            one.grad.data.clamp_(-1e-6, 1e-6)


def by_numpy(case):
    gradients(case)[1].numpy()[:] = 0


def by_numpy_once_removed(case):
    gradients(case)[1].detach().cpu().numpy()[:] = 0


def in_a_list(case):
    torch._foreach_mul_(gradients(case), 0.5)


def into(case):
    torch.mul(gradients(case)[1], 0.5, out=gradients(case)[1])


def in_part(case):
    gradients(case)[1][0] = 0


def by_keeping(case):
    # asked for in a step before, and changed in this one
    if case.number == 4:
        case.kept = gradients(case)
    if case.number == 5:
        case.kept[1].data.zero_()


def summed_once_more(case):
    torch.distributed.all_reduce(gradients(case)[1])


def sent_by_the_first(case):
    torch.distributed.broadcast(gradients(case)[1], 0)


def replace(case):
    for one in case.parameters:
        if one.grad is not None:
            one.grad = one.grad * 2


def drop(case):
    case.parameters[2].grad = None


def norms(case):
    case.noted.append([float(one.norm()) for one in gradients(case)])
    case.noted.append([float(one) for one in torch._foreach_norm(gradients(case))])
    case.noted.append([bool(torch.isfinite(one).all()) for one in gradients(case)])


def look(case):
    # before the step: nothing has moved, and nothing is ahead
    case.noted.append([float(one.sum()) for one in case.parameters])
    case.noted.append(float(case.inner(case.batch()).sum()))


def kept_state(case):
    state = case.optimizer.state_dict()["state"]
    case.noted.append([float(value.sum()) for entry in state.values() for value in entry.values()])


def state_itself(case):
    # as a thread that writes a checkpoint meanwhile reads it
    case.noted.append([float(value.sum()) for entry in case.optimizer.state.values() for value in entry.values()])


def state_of_a_copy(case):
    twin = copy.deepcopy(case.optimizer)
    case.noted.append([float(value.sum()) for entry in twin.state.values() for value in entry.values()])
    return "no step"


def without_momentum(case):
    # as after a loss that is NaN
    for entry in case.optimizer.state.values():
        entry["momentum_buffer"].zero_()
    return "no step"


def less_momentum(case):
    for entry in case.optimizer.state.values():
        entry["momentum_buffer"].mul_(0.5)


def less_momentum_by_data(case):
    for entry in case.optimizer.state.values():
        entry["momentum_buffer"].data.mul_(0.5)


def by_dlpack(case):
    case.dlpack = torch.utils.dlpack.to_dlpack(gradients(case)[1])
    torch.utils.dlpack.from_dlpack(case.dlpack).mul_(0.5)


def by_the_group(case):
    torch.distributed.group.WORLD.allreduce([gradients(case)[1]]).wait()


def weights_by_the_first(case):
    for one in case.parameters:
        one.detach().untyped_storage().copy_(torch.full_like(one, 0.01).untyped_storage())


def compiled_norms(case):
    norms = torch.compile(lambda ones: torch.stack([one.norm() for one in ones]), backend="eager", fullgraph=True)
    if case.number < 3:
        case.noted.append([float(one) for one in norms(gradients(case))])


def shrink(case):
    with torch.no_grad():
        for one in case.parameters:
            one.mul_(0.9)


def shrink_data(case):
    for one in case.parameters:
        one.data.mul_(0.9)


def slower(case):
    case.optimizer.param_groups[0]["lr"] *= 0.5


def reload(case):
    case.optimizer.load_state_dict(copy.deepcopy(case.optimizer.state_dict()))


def reload_backup(case):
    if case.number == 3:
        case.backup = copy.deepcopy(case.optimizer.state_dict())
    if case.number == 5:
        case.optimizer.load_state_dict(case.backup)


def leave_out(case):
    return "no step"


def again(case):
    case.backward()


def apart(case):
    with case.model.no_sync():
        case.backward()


def halves(case):
    case.optimizer.zero_grad()
    with case.model.no_sync():
        case.backward()
    case.backward()


def closure(case):
    def loss():
        case.optimizer.zero_grad()
        case.backward()
        return 0.0
    case.optimizer.step(loss)
    return "no step"


def scaled(case):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    scaler.step(case.optimizer)
    return "no step"


def unscaled_before(case):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    scaler.unscale_(case.optimizer)
    scaler.step(case.optimizer)
    return "no step"


def anew(case):
    case.optimizer.state.clear()


def moved(case):
    case.inner[2].weight.data = case.inner[2].weight.data * 2


def copied(case):
    twin = copy.deepcopy(case.inner)
    case.noted.append([type(one.grad) is torch.Tensor for one in twin.parameters() if one.grad is not None])
    for one in twin.parameters():
        if one.grad is not None:
            one.grad.zero_()


def pickled(case):
    import io
    file = io.BytesIO()
    torch.save([one.grad for one in case.parameters if one.grad is not None], file)
    file.seek(0)
    case.noted.append([float(one.sum()) for one in torch.load(file)])


ONCE = [
    summed_once_more, sent_by_the_first, clip, clip_data, by_numpy, by_numpy_once_removed, in_a_list, into,
    in_part, replace, drop, norms, look, kept_state, state_itself, state_of_a_copy, without_momentum,
    less_momentum, less_momentum_by_data, by_dlpack, by_the_group, weights_by_the_first, shrink, shrink_data,
    slower, reload, leave_out, again, apart, halves, closure, scaled, unscaled_before, anew, moved, copied,
    pickled,
]
found = {}
for act in ONCE:
    found[act.__name__] = same(sgd, at(5, act))
    if act is not anew:
        found[act.__name__ + ", each step"] = same(sgd, act)


def clips_in_a_hook(case):
    # it comes behind ours at first, and would find no gradients there
    if case.number == 3:
        case.optimizer.register_step_pre_hook(lambda *_: clip(case))


def looks_in_a_hook(case):
    if case.number == 3:
        case.optimizer.register_step_pre_hook(lambda *_: norms(case))


found["clips_in_a_hook"] = same(sgd, clips_in_a_hook)
found["looks_in_a_hook"] = same(sgd, looks_in_a_hook)
for act in (clip, scaled, unscaled_before, leave_out, kept_state, again):
    found[act.__name__ + ", adamw"] = same(makers["adamw"], at(5, act))
found["by_keeping"] = same(sgd, by_keeping, zero={"set_to_none": False})
found["reload_backup"] = same(sgd, reload_backup)


def kept_while_plain(case):
    # asked for between the step and the next backward
    if case.number == 5:
        case.kept[1].numpy()[:] *= 0.5
    case.optimizer.register_step_post_hook(lambda *_: setattr(case, "kept", gradients(case)))


def drops_gradients_itself(parameters):
    optimizer = sgd(parameters)
    optimizer.register_step_post_hook(lambda self, *_: self.zero_grad())
    return optimizer


def with_a_mask(parameters):
    return torch.optim.SGD([{"params": parameters, "mask": torch.ones(3)}], 0.1, momentum=0.9)


def swap(case):
    first, second = case.optimizer.param_groups[0], case.optimizer.param_groups[1]
    first["params"], second["params"] = second["params"], first["params"]


found["kept while plain"] = same(sgd, kept_while_plain, zero={"set_to_none": False})
found["drops gradients itself"] = same(drops_gradients_itself)


def with_other_memory(put):
    def act(case):
        for one in case.parameters:
            if one.grad is None:
                continue
            if type(one.grad) is torch.Tensor:
                # as it is meant: plain gradients are views of DDP's, which would lose them
                one.grad = one.grad * 2
            else:
                put(one.grad, one.grad * 2)

    return act


found["other data"] = same(sgd, at(5, with_other_memory(lambda one, new: setattr(one, "data", new))))
found["set"] = same(sgd, at(5, with_other_memory(lambda one, new: one.set_(new))))
found["with a mask"] = same(with_a_mask)
found["swap"] = same(makers["groups"], at(5, swap))


def one_more(case):
    case.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})


def one_less(case):
    case.optimizer.param_groups.pop()


def columns_of_weights(case):
    case.parameters[2].detach().numpy()[:, 1:] = 0


def columns_of_state(case):
    case.optimizer.state[case.parameters[2]]["momentum_buffer"].data[:, 1:].zero_()


def columns_of_a_kept_gradient(case):
    if case.number == 4:
        case.kept = case.parameters[2].grad.numpy()
    if case.number == 5:
        case.kept[:, 1:] = 0


for act in (one_more, one_less):
    found[act.__name__] = same(makers["groups"], at(5, act))
for act in (columns_of_weights, columns_of_state):
    found[act.__name__] = same(sgd, at(5, act))
found["columns_of_a_kept_gradient"] = same(sgd, columns_of_a_kept_gradient, zero={"set_to_none": False})
found["kept gradients"] = same(sgd, zero={"set_to_none": False})
found["compiled_norms"] = same(sgd, compiled_norms)
print(json.dumps(found))
"""
)

USED = {
    "clips_in_a_hook": 2,
    "norms": 7,
    "look": 7,
    "again": 7,
    "halves": 7,
    "again, adamw": 7,
    "kept gradients": 7,
    "columns_of_a_kept_gradient": 5,
    "kept_state": 7,
    "kept_state, adamw": 7,
    "state_itself": 7,
    "drops gradients itself": 7,
    "with a mask": 7,
    "compiled_norms": 0,
}
"""Of eight steps, where it is not all but the first and one: looks change nothing; an update may be prepared anew."""
NEVER_PREPARED = {f"{name}, each step" for name in ("drop", "leave_out", "state_of_a_copy", "without_momentum")}
"""The optimizer has no state for a parameter that never had a gradient."""


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_weights_and_state_have_the_bits_of_a_late_update(run_ranks, num_ranks: int) -> None:
    for ended in run_ranks(BITS, num_ranks):
        assert ended.code == 0, ended.stderr
        # all steps but the first, in which DDP has one group and the optimizer no state
        expected = {"same": True, "noted": True, "used": 7, "given up": False}
        assert ended.said == dict.fromkeys(ended.said, expected)


def test_whatever_comes_between_backward_and_step_counts_as_without(run_ranks) -> None:
    for ended in run_ranks(IN_BETWEEN, 2):
        assert ended.code == 0, ended.stderr
        assert {name for name, found in ended.said.items() if not (found["same"] and found["noted"])} == set()
        once = {name: found["used"] for name, found in ended.said.items() if "each step" not in name}
        assert once == {name: USED.get(name, 6) for name in once}
        looks = {f"{name}, each step" for name in ("norms", "look", "kept_state", "state_itself")}
        given_up = {name for name, found in ended.said.items() if found["given up"]}
        always = {name for name in ended.said if "each step" in name} | {"clips_in_a_hook", "compiled_norms"}
        assert given_up == always - looks - NEVER_PREPARED


ALIASES = (
    TRAINED
    + """
import io
import weakref
from unittest import mock


def holding(case):
    if case.number == 3:
        case.kept = case.inner.state_dict()
    if case.number == 7:
        case.noted.append([float(value.sum()) for value in case.kept.values()])


def numpy(case):
    if case.number == 3:
        case.kept = case.inner[2].weight.detach().numpy()
    if case.number == 7:
        case.noted.append(float(case.kept.sum()))


def state_by_numpy(case):
    if case.number == 3:
        case.kept = case.optimizer.state[case.inner[2].weight]["momentum_buffer"].numpy()
    if case.number == 7:
        case.noted.append(float(case.kept.sum()))


def made_from_an_array(case):
    if case.number == 3:
        case.kept = case.inner[2].weight.detach().numpy().copy()
        case.inner[2].weight.data = torch.from_numpy(case.kept)
    if case.number == 7:
        case.noted.append(float(case.kept.sum()))


def storage(case):
    if case.number == 3:
        case.kept = case.inner[2].weight.untyped_storage()
    if case.number == 7:
        case.noted.append(float(torch.empty(0).set_(case.kept).sum()))


def shared(case):
    if case.number == 3:
        case.inner.share_memory()


def views(case):
    # as models that keep their weights laid out otherwise
    if case.number == 3:
        case.kept = case.inner[2].weight.t()
    if case.number == 7:
        case.noted.append(float(case.kept.detach().sum()))


ACTS = holding, numpy, state_by_numpy, made_from_an_array, storage, shared, views
found = {act.__name__: same(sgd, act) for act in ACTS}
with mock.patch.object(update, "room_of_rank", lambda _: 1 << 20):
    found["no room"] = same(sgd)
with mock.patch.object(update.PreparedGroup, "lay_out", side_effect=MemoryError):
    found["no memory"] = same(sgd)

case = Case(sgd, True)
found["copied"] = torch.equal(copy.deepcopy(case.model).module[2].weight, case.inner[2].weight)
torch.save(case.model, file := io.BytesIO())
file.seek(0)
found["loaded"] = torch.equal(torch.load(file, weights_only=False).module[2].weight, case.inner[2].weight)
torch.save(case.optimizer, io.BytesIO())
case.backward()
anew = update.prepared_update(case.model, case.optimizer, ctx.place)
found["wrapped anew"] = [case.prepared._has_given_up, anew is not None]
gone = [weakref.ref(thing) for thing in (case.model, case.optimizer, case.prepared, anew)]
del case, anew
# a training that ends between backward and step
case = Case(sgd, True)
case.backward()
gone += [weakref.ref(thing) for thing in (case.model, case.optimizer, case.prepared)]
del case
import gc
gc.collect()
found["gone"] = [reference() is None for reference in gone]
# of this thread alone, not of those that prepare
torch.set_flush_denormal(True)
found["used, small numbers being zero"] = Case(sgd, True).num_used
print(json.dumps(found))
"""
)


def test_who_else_holds_parameters_sees_them_trained_and_copies_are_plain(run_ranks) -> None:
    for ended in run_ranks(ALIASES, 2):
        assert ended.code == 0, ended.stderr
        found = ended.said
        aliases = ("holding", "numpy", "state_by_numpy", "made_from_an_array", "storage", "shared", "views")
        for name in (*aliases, "no room", "no memory"):
            assert found[name]["same"], name
            assert found[name]["noted"], name
            assert found[name]["given up"] or name == "made_from_an_array", name
        assert found["copied"]
        assert found["loaded"]
        assert found["wrapped anew"] == [True, True]
        assert found["gone"] == [True] * 7
        assert found["used, small numbers being zero"] == 0


JOINED = (
    TRAINED
    + """
def trained(is_prepared):
    case = Case(sgd, is_prepared, num_steps=3)
    with case.model.join():
        for case.number in range(3, 5 + 3 * ctx.rank):
            case.backward()
            case.optimizer.step()
            case.optimizer.zero_grad()
    return case


plain, prepared = trained(False), trained(True)
same = [torch.equal(one, other) for one, other in zip(plain.parameters, prepared.parameters, strict=True)]
print(json.dumps([all(same), prepared.prepared._num_used]))
"""
)


def test_a_rank_whose_data_has_ended_joins_in(run_ranks) -> None:
    for ended, num_used in zip(run_ranks(JOINED, 2), (4, 7), strict=True):
        assert ended.code == 0, ended.stderr
        assert ended.said == [True, num_used]


RESUMED = """
import hashlib
import json
import sys
import torch
from torch import nn
import topout
from topout.train.prepared import update

update.WORTH_BYTES = 0
ctx = topout.init()
folder, num_steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
inner = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
adamw = torch.optim.AdamW(inner.parameters(), 1e-2)
model, optimizer = ctx.wrap(inner, adamw, buckets=0.25, early_update=False)
prepared = update.prepared_update(model, optimizer, ctx.place)
model.register_comm_hook(*prepared.hook)
checkpoints = ctx.checkpoint(folder, every=1)
for number in range(checkpoints.num_steps, num_steps):
    optimizer.zero_grad()
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(100 * number + ctx.rank))
    model(x).square().mean().backward()
    # one that is left out: what was prepared must not be in the checkpoint
    if number != 4:
        optimizer.step()
    checkpoints.step()
ctx.close()
state = [value for entry in optimizer.state.values() for value in entry.values()]
trained = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in [*inner.parameters(), *state])).hexdigest()
print(json.dumps([trained, prepared._num_used]))
"""


def test_training_resumes_bit_by_bit_with_updates_that_are_prepared(run_ranks, tmp_path) -> None:
    def trained(folder, num_steps):
        found = run_ranks(RESUMED, 2, args=(tmp_path / folder, num_steps))
        assert [ended.code for ended in found] == [0, 0], found[0].stderr
        assert found[0].said == found[1].said
        return found[0].said

    whole, num_used = trained("whole", 8)
    assert num_used == 6
    trained("parts", 5)
    resumed, num_used = trained("parts", 8)
    assert resumed == whole
    assert num_used >= 2
