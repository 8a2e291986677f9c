"""The fused update without torch's walk: the same bits, whatever scripts do around it, and torch's where it must be."""

import copy

import pytest
import torch

from topout.train.fused import fuse

NUM_STEPS = 6
SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


class Trained:
    """Three small layers and an optimizer; two of them with the same seed have the same bits."""

    def __init__(self, make=SGD, *, is_quick, groups=1, **settings):
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(7, 7) for _ in range(3)])
        parameters = [list(layer.parameters()) for layer in self.layers]
        given = [{"params": part, "lr": 0.1 / (1 + n)} for n, part in enumerate(parameters)]
        self.optimizer = make(given if groups > 1 else self.layers.parameters(), fused=True, **settings)
        if is_quick:
            assert fuse(self.optimizer)
        self.num_walks = 0
        walk = self.optimizer._init_group

        def counted(*args):
            self.num_walks += 1
            return walk(*args)

        self.optimizer._init_group = counted
        self._inputs = torch.Generator().manual_seed(1)

    def backward(self):
        self.optimizer.zero_grad()
        value = torch.randn(5, 7, generator=self._inputs)
        for layer in self.layers:
            value = torch.tanh(layer(value))
        value.square().sum().backward()

    def step(self):
        self.backward()
        self.optimizer.step()

    def step_keeping(self, parameter):
        """With the gradient that this one has."""
        gradient = parameter.grad
        self.backward()
        parameter.grad = gradient
        self.optimizer.step()

    def bits(self):
        return [value.detach().clone() for value in self.layers.parameters()]


def both(act=lambda trained, number: None, steps=NUM_STEPS, **settings):
    """What steps make of the same start, by torch and quickly; `act` is called before each."""
    pair = [Trained(is_quick=is_quick, **settings) for is_quick in (False, True)]
    for trained in pair:
        for number in range(steps):
            act(trained, number)
            trained.step()
    assert all(map(torch.equal, pair[0].bits(), pair[1].bits()))
    return pair


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (SGD, {"lr": 0.1}),
        (SGD, {"lr": 0.1, "momentum": 0.9}),
        (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}),
        (ADAM, {"lr": 0.01, "weight_decay": 0.1}),
        (ADAMW, {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6}),
    ],
)
@pytest.mark.parametrize("groups", [1, 3])
def test_the_same_bits_and_one_walk(make, settings, groups):
    plain, quick = both(make=make, groups=groups, **settings)
    assert plain.num_walks == NUM_STEPS * groups
    # without momentum there is no state that torch must have made first
    assert quick.num_walks == (0 if make is SGD and not settings.get("momentum") else groups)


def test_schedules_are_followed():
    schedules = {}

    def act(trained, number):
        if number == 0:
            schedules[trained] = torch.optim.lr_scheduler.ExponentialLR(trained.optimizer, 0.5)
        else:
            schedules[trained].step()

    _, quick = both(act, lr=0.1, momentum=0.9)
    assert quick.num_walks == 1
    assert quick.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 2 ** (NUM_STEPS - 1))


def clip_before(trained, number):
    """As a script may: its hook comes after ours, and must have its say before the update."""
    if number == 2:
        trained.optimizer.register_step_pre_hook(
            lambda *_: torch.nn.utils.clip_grad_norm_(trained.layers.parameters(), 0.01) and None
        )


def load(trained, number):
    if number == 3:
        trained.optimizer.load_state_dict(copy.deepcopy(trained.optimizer.state_dict()))
        for state in trained.optimizer.state.values():
            state["momentum_buffer"].mul_(0.5)


def replace_one_state(trained, number):
    if number == 3:
        trained.optimizer.state[trained.layers[1].weight] = {"momentum_buffer": torch.ones(7, 7)}


def replace_one_buffer(trained, number):
    if number == 3:
        trained.optimizer.state[trained.layers[1].weight]["momentum_buffer"] = torch.ones(7, 7)


def add_parameters(trained, number):
    if number == 3:
        torch.manual_seed(2)
        trained.layers.append(torch.nn.Linear(7, 7))
        trained.optimizer.add_param_group({"params": list(trained.layers[-1].parameters())})


def freeze(trained, number):
    trained.layers[0].weight.requires_grad_(number < 3)


def move(trained, number):
    if number == 3:
        for parameter in trained.layers.parameters():
            parameter.data = parameter.data.clone()


def replace_a_parameter(trained, number):
    if number == 3:
        trained.layers[0].weight = torch.nn.Parameter(torch.ones(7, 7))
        trained.optimizer.param_groups[0]["params"][0] = trained.layers[0].weight
        trained.optimizer.state[trained.layers[0].weight] = {"momentum_buffer": torch.zeros(7, 7)}


@pytest.mark.parametrize(
    ("act", "walks"),
    [(clip_before, 2), (load, 1), (replace_one_state, 1), (replace_one_buffer, 1), (add_parameters, 3), (freeze, 4),
     (move, 1), (replace_a_parameter, 1)],
)  # fmt: skip
def test_what_scripts_change_between_steps_counts(act, walks):
    _, quick = both(act, lr=0.1, momentum=0.9)
    assert quick.num_walks == walks


def step_without_gradients(trained, number):
    if number > 1:
        trained.optimizer.zero_grad()
        trained.optimizer.step()


def test_a_step_without_any_gradient_is_no_step_and_no_walk():
    plain, quick = both(step_without_gradients, make=ADAMW)
    assert (plain.num_walks, quick.num_walks) == (2 * NUM_STEPS - 2, 1)
    assert quick.optimizer.state_dict()["state"][0]["step"] == NUM_STEPS


@pytest.mark.parametrize("make", [SGD, ADAM], ids=lambda make: make.__name__)
@pytest.mark.parametrize("momentum", [0, 0.9])
def test_a_parameter_that_has_outgrown_its_state_is_torch_s_error(make, momentum):
    trained = Trained(make, is_quick=True, **({"momentum": momentum} if make is SGD else {}))
    for _ in range(3):
        trained.step()
    weight = trained.layers[0].weight
    weight.data = torch.ones(14, 14)
    weight.grad = torch.ones(14, 14)
    if make is SGD and not momentum:
        trained.optimizer.step()
        return
    with pytest.raises(RuntimeError, match="size of tensor"):
        trained.optimizer.step()


def test_sgd_moves_halves_that_it_is_given_later():
    for momentum in (0, 0.9):
        trained = Trained(is_quick=True, momentum=momentum)
        trained.step()
        late = torch.nn.Parameter(torch.ones(16, 16, dtype=torch.bfloat16))
        trained.optimizer.add_param_group({"params": [late], "lr": 0.1})
        for _ in range(3):
            late.grad = torch.ones_like(late)
            trained.step_keeping(late)
        assert (late < 0.9).all()


def test_momentum_in_other_numbers_goes_on_as_without_fused_kernels():
    def cast(trained, number):
        if number == 3:
            state = trained.optimizer.state[trained.layers[0].weight]
            state["momentum_buffer"] = state["momentum_buffer"].double()

    quick = Trained(is_quick=True, momentum=0.9)
    for number in range(NUM_STEPS):
        cast(quick, number)
        quick.step()
    plain = Trained(is_quick=False, momentum=0.9)
    plain.optimizer.param_groups[0]["fused"] = False
    for number in range(NUM_STEPS):
        cast(plain, number)
        plain.step()
    torch.testing.assert_close(quick.bits(), plain.bits())


def test_a_learning_rate_that_is_a_tensor_is_left_to_torch():
    _, quick = both(lr=torch.tensor(0.1), momentum=0.9)
    assert quick.num_walks == NUM_STEPS


def test_a_closure_is_left_to_torch():
    pair = [Trained(is_quick=is_quick, lr=0.1, momentum=0.9) for is_quick in (False, True)]
    for trained in pair:
        for _ in range(NUM_STEPS):
            trained.optimizer.step(trained.backward)
    assert all(map(torch.equal, pair[0].bits(), pair[1].bits()))
    assert pair[1].num_walks == NUM_STEPS


def test_a_scaled_gradient_is_left_to_torch():
    def act(trained, number):
        trained.optimizer.grad_scale = torch.tensor(2.0) if number % 2 else None

    _, quick = both(act, lr=0.1, momentum=0.9)
    assert quick.num_walks == 1 + NUM_STEPS // 2


def test_numbers_of_two_kinds_are_left_to_torch_and_not_looked_at_for_ever():
    def act(trained, number):
        if number == 0:
            trained.layers[1].double().register_forward_pre_hook(lambda _, given: given[0].double())
            trained.layers[1].register_forward_hook(lambda *given: given[-1].float())

    _, quick = both(act, steps=15, lr=0.1, momentum=0.9)
    assert quick.num_walks == 15


def test_a_group_s_own_wish_about_decay_counts():
    plain, quick = (Trained(ADAMW, is_quick=is_quick, lr=0.01, weight_decay=0.3) for is_quick in (False, True))
    for trained in (plain, quick):
        trained.optimizer.param_groups[0]["decoupled_weight_decay"] = False
        for _ in range(NUM_STEPS):
            trained.step()
    assert all(map(torch.equal, plain.bits(), quick.bits()))
    assert quick.num_walks == 1


def test_parameters_that_join_late_are_taken_up():
    """After many walks in vain it still looks now and then."""

    def act(trained, number):
        trained.layers[0].weight.requires_grad_(number >= 20)

    _, quick = both(act, steps=60, make=ADAMW, lr=0.01)
    assert quick.num_walks < 40


def test_hooks_after_the_step_and_profilers_see_it():
    trained = Trained(is_quick=True, lr=0.1, momentum=0.9)
    seen = []
    trained.optimizer.register_step_post_hook(lambda optimizer, *_: seen.append(optimizer))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(3):
            trained.step()
    assert seen == [trained.optimizer] * 3
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["Optimizer.step#SGD.step"] == 3
    assert counts["aten::_fused_sgd_"] == 3


def test_a_copy_of_the_optimizer_is_torch_s_own():
    trained = Trained(is_quick=True, lr=0.1, momentum=0.9)
    trained.step()
    other = copy.deepcopy(trained.optimizer)
    before = trained.bits()
    for group in other.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    other.step()
    assert all(map(torch.equal, before, trained.bits()))
