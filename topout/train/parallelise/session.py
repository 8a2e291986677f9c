"""The state of one rank of `topout run --ddp`: its place, its optimizers' gradients, and what the script is doing.

The script is the same on all ranks and so are its random numbers, its parameters and whatever it decides by them; only
the batches differ. So all ranks come to every call here together.
"""

import gc
import os
import sys
from threading import get_ident
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

from topout.schema.counted import counted
from topout.schema.errors import TopoutError
from topout.train.dealing import Dealing
from topout.train.fusion.agreement import gather_numbers
from topout.train.joining import join
from topout.train.parallelise import refusals, replicas
from topout.train.parallelise.draws import EqualDraws
from topout.train.parallelise.followed import Followed
from topout.train.parallelise.lines import script_line
from topout.train.place import Place, joined

_PASSES_BETWEEN_PROOFS = 16
"""A script may begin its loader anew for every step."""


class Session:
    """Lives from `import torch` to the end; `is_on` until the script shows that it joins ranks by itself."""

    def __init__(self) -> None:
        self.is_on = int(os.environ.get("WORLD_SIZE", "1")) > 1
        self.was_forked = False
        """Whether this process is a child of the rank's, and has not trained."""
        self.is_evaluating = False
        self.has_called_train = False
        self.num_passes = 0
        self.whole: dict[int, tuple[str, bool]] = {}
        """By iterators whose whole batch is at hand: where the loader was made, and whether an evaluation began it."""
        self.sharded_line: str | None = None
        self.untrained: tuple[str, str] | None = None
        """A loader that was dealt out and is gone through, and its loop, until a backward pass follows."""
        self.num_unused = 0
        self.unused: tuple[str, str] | None = None
        """Batches that were dealt out before any backward pass, and where the last was."""
        self.draws = EqualDraws()
        self.seed = 0
        self.dealing = Dealing()
        self._followed: list[Followed] = []
        """The same on all ranks: one leaves it when all agree that its optimizer is gone."""
        self._may_have_replaced = False
        """Whether an optimizer was made since garbage was last collected for it."""
        self.is_joining = False
        self._equal: Any = WeakIdKeyDictionary()
        """Parameters and buffers that were made the same on all ranks."""
        self._left_alone: WeakSet[Any] = WeakSet()
        """Optimizers of what is each rank's own."""
        self._lines_before: set[str] = set()
        """Where optimizers were made before the first batch."""
        self._num_proved = 0
        """Passes when ranks were last shown to hold the same parameters."""
        self._thread: int | None = None
        """Which computes backward passes."""
        self._place: Place | None = None
        self._gradient_group: Any = None
        self._has_begun = False
        self._has_told = False
        # a worker of a loader is no rank: whatever it does with modules and files, no other waits for it
        os.register_at_fork(after_in_child=self._end)

    def _end(self) -> None:
        self.was_forked, self.is_on = self.was_forked or self.is_on, False

    @property
    def has_begun(self) -> bool:
        return self._has_begun

    def place(self) -> Place:
        """Joins the other ranks when it is first asked for."""
        if self._place is None:
            self.is_joining = True
            has_gpu = torch.cuda.is_available()
            device = torch.device("cuda", torch.cuda.current_device()) if has_gpu else torch.device("cpu")
            join(device)
            self.is_joining = False
            local_rank, num_local = (int(os.environ.get(name, default)) for name, default in
                                     (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")))  # fmt: skip
            self._place = joined(device, local_rank=local_rank, local_world_size=num_local)
            self._gradient_group = dist.new_group()
            # where the script set a seed, it is that one
            rows = gather_numbers([torch.initial_seed() & (2**62 - 1)], dist.group.WORLD)
            self.seed = rows[0][0]
            other = next((rank for rank, row in enumerate(rows) if row != rows[0]), None)
            if other is not None:
                raise refusals.other_seed(other)
        return self._place

    def steps_in_child(self) -> None:
        """An error here could leave the script waiting for what its process was to send."""
        if self.was_forked and torch.utils.data.get_worker_info() is None:
            self.was_forked = False
            self.tell(
                f"topout: the optimizer at {script_line()} steps in a process that the script started: each rank's "
                "trains there by itself, on all samples"
            )

    def refuse_sharing(self) -> None:
        if self.is_on:
            raise refusals.shared_memory()

    def stand_aside(self, reason: str) -> None:
        if self.is_on:
            self.is_on = False
            self.tell(f"topout: {reason}; --ddp leaves the script alone")

    def follow(self, optimizer: Any) -> None:
        """A new one; while training goes on its parameters were made from each rank's own random numbers."""
        if not self.is_on or any(followed.is_of(optimizer) for followed in self._followed):
            return
        line = script_line()
        if not self._has_begun:
            self._lines_before.add(line)
        elif line not in self._lines_before and not _has_parameters(optimizer):
            self._leave_alone(optimizer, line)
            return
        self._followed.append(Followed(optimizer))
        self._may_have_replaced = True
        if self._has_begun:
            # a model that is gone leaves its memory to this one's; one that goes now is looked for later
            self._agree_on_the_living()
            self._may_have_replaced = True
            self._equalise_anew(self._followed[-1])
            self._equalise(self._parameters())

    def _leave_alone(self, optimizer: Any, line: str) -> None:
        """What is optimized for samples, as a perturbation is: an average over ranks would be one of unrelated ones."""
        if not self._left_alone:
            self.tell(
                f"topout: the optimizer at {line} is of tensors and no nn.Parameter, made while training goes on, as "
                "those of single samples are: each rank keeps its own; make them nn.Parameter to have them averaged"
            )
        self._left_alone.add(optimizer)

    def begin_training(self) -> None:
        """Before a first batch: one model on all ranks, and from here on other random numbers on each."""
        place = self.place()
        self.draws.end_all()
        if not self._has_begun:
            self._agree_on_the_living()
        for followed in self._followed:
            if followed.averaged is None:
                # what it holds may have been initialised since it was made
                self._equalise_anew(followed)
        self._equalise(self._parameters())
        if not self._has_begun and place.rank > 0:
            torch.manual_seed(torch.initial_seed() + place.rank)
        self._has_begun = True
        # not while another thread, whose loader reads ahead, is in the middle of a step
        if self._is_in_training_thread():
            replicas.equalise_host_draws()
            if self.num_passes >= self._num_proved + _PASSES_BETWEEN_PROOFS:
                self._prove_equal(self._parameters())

    def _is_in_training_thread(self) -> bool:
        return self._thread in (None, get_ident())

    def _equalise_anew(self, followed: Followed) -> None:
        for parameter in followed.parameters():
            self._equal.pop(parameter, None)

    def _equalise(self, tensors: list[Any]) -> None:
        """Those of rank 0, once for each."""
        for tensor in tensors:
            if tensor not in self._equal:
                self._equal[tensor] = True
                replicas.broadcast([tensor])

    def _parameters(self) -> list[Any]:
        # before ranks have met, garbage was collected on each
        counted = [followed for followed in self._followed if self._place is not None or followed.is_alive]
        found = [parameter for followed in counted for parameter in followed.parameters()]
        if any(map(is_lazy, found)):
            raise TopoutError(
                f"At {script_line()} the optimizer holds parameters of lazy modules, which have no values yet.",
                why="one model must be on all ranks before the first batch",
                do="call the model once on a batch before the optimizer is made, or topout run -n 1",
            )
        return found

    def draw_alike(self, user: int, *, loop: int, num_taken: int) -> None:
        """From here on the same random numbers on all ranks, for what a loop over a whole loader draws."""
        if self._has_begun and self._is_in_training_thread():
            self.draws.begin(user, seed=self.seed, loop=loop, num_taken=num_taken)

    def refuse_untrained(self) -> None:
        """Where something else begins, or is made of what a loop has counted."""
        if self.untrained is None or not self.is_on:
            return
        (line, loop), self.untrained = self.untrained, None
        raise TopoutError(
            f"The DataLoader at {line} was dealt out to ranks, and no backward pass followed.",
            why="each rank saw only its share, so whatever was counted, or trained without backward(), is of that",
            do=f"call model.eval(), or use torch.no_grad(), before the loop at {loop}; where batches are read ahead, "
            "train on them before another loader begins, the model is evaluated or anything is saved",
        )

    def before_backward(self) -> None:
        if self.whole:
            raise refusals.not_dealt_out(list(self.whole.values())[-1][0])
        if self.sharded_line is None:
            raise refusals.no_loader()
        if not self._followed:
            raise refusals.no_optimizer()
        self.num_passes += 1
        self.untrained = None
        self._thread = get_ident()
        for followed in self._followed:
            followed.averaging_in(self._gradient_group).gradients.begin_backward()

    def after_backward(self) -> None:
        engines = [followed.averaged for followed in self._followed if followed.averaged is not None]
        mine = [int(averaged.gradients.has_pending) for averaged in engines]
        living = [int(followed.is_alive) for followed in self._followed]
        # with several, a pass may be for some of them only, and by its own data a rank could think otherwise
        rows = gather_numbers(mine + living, self._gradient_group) if len(self._followed) > 1 else [[1, 1]]
        for number, averaged in enumerate(engines):
            if any(row[number] for row in rows):
                averaged.average()
        self._leave_the_dead([row[len(engines) :] for row in rows])
        if not self._has_told:
            self._has_told = True
            self._tell_what_was_done()

    def _leave_the_dead(self, rows: list[list[int]]) -> None:
        """Those that no rank has any more; `rows` says for each rank which it has."""
        gone = [number for number in range(len(self._followed)) if not any(row[number] for row in rows)]
        for number in reversed(gone):
            self._followed.pop(number).leave()

    def _agree_on_the_living(self) -> None:
        """After an optimizer was made, on all ranks; of others, what ranks send with their gradients tells."""
        if len(self._followed) < 2 or not self._may_have_replaced:
            return
        # in a cycle, as with what a script hangs on it, an optimizer is garbage that only this finds
        gc.collect()
        if self._place is not None:
            self._may_have_replaced = False
            living = [int(followed.is_alive) for followed in self._followed]
            self._leave_the_dead(gather_numbers(living, self._gradient_group))

    def before_step(self, optimizer: Any) -> None:
        if optimizer in self._left_alone:
            return
        averaged = next((followed.averaged for followed in self._followed if followed.is_of(optimizer)), None)
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if averaged is None or (averaged.num_passes == 0 and not all(map(averaged.gradients.holds, gradients))):
            if gradients:
                raise TopoutError(
                    f"The optimizer steps at {script_line()} with gradients that came from no backward pass.",
                    why="only what backward() computes is averaged over ranks; these would differ on each",
                    do="compute them with loss.backward(), or topout run -n 1",
                )
            return
        averaged.num_passes = 0

    def mode_changed(self, module: Any, *, is_training: bool) -> None:
        """`train()` or `eval()` of the model; of a part of it, such as a frozen BatchNorm, it says nothing."""
        self.has_called_train = self.has_called_train or is_training
        if not self.is_on:
            return
        is_the_model = False
        if self._is_trained(module):
            self._agree_on_the_living()
            is_the_model = self._is_the_model(module)
        if is_the_model:
            if self.is_evaluating and is_training:
                # an evaluation is over, though somebody may hold its iterator for the next
                self.whole = {number: entry for number, entry in self.whole.items() if not entry[1]}
                self.draws.end_all()
            self.is_evaluating = not is_training
            if self.is_evaluating:
                self.refuse_untrained()
            elif self._has_begun:
                # of a further model: what its optimizer does not hold, too
                self._equalise([*module.parameters(), *module.buffers()])
        if self._has_begun and not is_training:
            self._evaluate_alike(module, is_the_model)

    def _evaluate_alike(self, module: Any, is_the_model: bool) -> None:
        """Statistics of rank 0, as with DDP; those of an averaged copy, too. And proof that the model is one."""
        buffers = list(module.buffers())
        # a layer by itself is frozen, whole numbers are masks and positions: neither says that a model is evaluated
        is_a_copy = next(module.children(), None) is not None and any(map(torch.is_floating_point, buffers))
        if is_the_model or (is_a_copy and self._is_in_training_thread()):
            replicas.broadcast_many(buffers)
        if is_the_model:
            self._prove_equal(list(module.parameters()))
            # a rank with a larger share has drawn more
            replicas.equalise_host_draws()

    def _is_trained(self, module: Any) -> bool:
        """In part at least; of any other module a rank may change the mode by itself."""
        trained = {id(parameter) for followed in self._followed for parameter in followed.parameters()}
        return any(id(parameter) in trained for parameter in module.parameters())

    def _is_the_model(self, module: Any) -> bool:
        """Whether it holds most of what the optimizers train."""
        sizes = {id(parameter): parameter.numel() for parameter in self._parameters()}
        held = sum(sizes.get(id(parameter), 0) for parameter in module.parameters())
        return bool(2 * held > sum(sizes.values()) > 0)

    def _prove_equal(self, parameters: list[Any]) -> None:
        self._num_proved = self.num_passes
        other = self.first_that_differs(replicas.fingerprint(parameters))
        if other is not None:
            raise refusals.other_parameters(f"At {script_line()}", other)

    def script_ended(self) -> None:
        """The last look at what no later loader or evaluation would find."""
        if self.is_on and not self._has_begun:
            self.tell("topout: nothing was dealt out to ranks: no loop trained in this process, each rank did the same")
        if not (self.is_on and self._has_begun and dist.is_initialized()):
            return
        if self.num_passes == 0 and self.num_unused > 1:
            # parameters that a script updates without backward() are averaged by nobody
            self.untrained = self.unused
        self.refuse_untrained()
        if self.num_passes == self._num_proved:
            # what a script does to a model that it has evaluated is its own affair
            return
        other = replicas.first_that_differed(replicas.fingerprint(self._parameters()))
        if other is not None:
            raise refusals.other_parameters("When the script had ended", other)

    def first_that_differs(self, number: int) -> int | None:
        """The first rank that has another number than rank 0; all ranks ask together."""
        self.place()
        return replicas.first_that_differs(number)

    def mean(self, value: float) -> float:
        total = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(total)
        return float(total) / self.place().world_size

    def _tell_what_was_done(self) -> None:
        place = self.place()
        engines = [followed.averaged.gradients for followed in self._followed if followed.averaged is not None]
        num_tensors = sum(len(engine.parameters) for engine in engines)
        num_groups = sum(engine.num_groups for engine in engines)
        script = os.path.basename(sys.argv[0])  # noqa: PTH119
        self.tell(
            f"topout: {script} runs data-parallel on {place.world_size} ranks: {self.sharded_line}, "
            f"{num_tensors} tensors averaged in {counted(num_groups, 'group')}"
        )
        self.tell(
            "topout: what the script adds up while it trains is of rank 0's share: divide it by the batches or samples "
            f"that were added, len(loader.dataset) is {place.world_size} times too many"
        )

    def tell(self, text: str) -> None:
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(text + "\n")


def _has_parameters(optimizer: Any) -> bool:
    return any(isinstance(tensor, torch.nn.Parameter) for group in optimizer.param_groups for tensor in group["params"])
