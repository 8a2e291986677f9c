"""The state of one rank of `topout run --ddp`: its place, its optimizers' gradients, and what the script is doing.

The script is the same on all ranks and so are its random numbers, its parameters and whatever it decides by them; only
the batches differ. So all ranks come to every call here together.
"""

import gc
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

from topout.schema.counted import counted
from topout.schema.errors import TopoutError
from topout.train.fusion.agreement import gather_numbers
from topout.train.joining import join
from topout.train.parallelise.followed import Followed
from topout.train.parallelise.lines import script_line
from topout.train.place import Place, joined


class Session:
    """Lives from `import torch` to the end; `is_on` until the script shows that it joins ranks by itself."""

    def __init__(self) -> None:
        self.is_on = int(os.environ.get("WORLD_SIZE", "1")) > 1
        self.is_evaluating = False
        self.has_called_train = False
        self.num_passes = 0
        self.whole: dict[int, tuple[str, bool]] = {}
        """By iterators whose whole batch is at hand: where the loader was made, and whether an evaluation began it."""
        self.sharded_line: str | None = None
        self.seed = 0
        self._followed: list[Followed] = []
        """The same on all ranks: one leaves it when all agree that its optimizer is gone."""
        self._may_have_replaced = False
        """Whether an optimizer was made since garbage was last collected for it."""
        self.is_joining = False
        self._equal: Any = WeakIdKeyDictionary()
        """Parameters and buffers that were made the same on all ranks."""
        self._place: Place | None = None
        self._gradient_group: Any = None
        self._has_begun = False
        self._has_told = False

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
            self.seed = gather_numbers([torch.initial_seed() & (2**62 - 1)], dist.group.WORLD)[0][0]
        return self._place

    def stand_aside(self, reason: str) -> None:
        if self.is_on:
            self.is_on = False
            self._tell(f"topout: {reason}; --ddp leaves the script alone")

    def follow(self, optimizer: Any) -> None:
        """A new one; while training goes on its parameters were made from each rank's own random numbers."""
        if not self.is_on or any(followed.is_of(optimizer) for followed in self._followed):
            return
        self._followed.append(Followed(optimizer))
        self._may_have_replaced = True
        if self._has_begun:
            # a model that is gone leaves its memory to this one's; one that goes now is looked for later
            self._agree_on_the_living()
            self._may_have_replaced = True
            self._equalise(self._parameters())

    def begin_training(self) -> None:
        """Before a first batch: one model on all ranks, and from here on other random numbers on each."""
        place = self.place()
        if not self._has_begun:
            self._agree_on_the_living()
        self._equalise(self._parameters())
        if not self._has_begun and place.rank > 0:
            torch.manual_seed(torch.initial_seed() + place.rank)
        self._has_begun = True

    def _equalise(self, tensors: list[Any]) -> None:
        """Those of rank 0, once for each."""
        for tensor in tensors:
            if tensor not in self._equal:
                self._equal[tensor] = True
                self._broadcast(tensor)

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

    @staticmethod
    def _broadcast(tensor: Any) -> None:
        whole = tensor.detach().contiguous()
        dist.broadcast(whole, 0)
        if whole.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(whole)

    def before_backward(self) -> None:
        line = script_line()
        if self.whole:
            made_at, _ = list(self.whole.values())[-1]
            raise TopoutError(
                f"backward at {line} trains on a batch of the DataLoader at {made_at}, which is not dealt out.",
                why="it does not shuffle and model.train() was not called, or its data set is iterable: every rank "
                "would train on the same samples",
                do="shuffle=True with a data set that has __getitem__, or topout run -n 1",
            )
        if self.sharded_line is None:
            raise TopoutError(
                f"backward at {line} trains on data that came from no DataLoader.",
                why="--ddp deals out the samples of DataLoaders; every rank would train on the same data",
                do="feed the loop from torch.utils.data.DataLoader, or topout run -n 1",
            )
        if not self._followed:
            raise TopoutError(
                f"backward at {line} computes gradients, and there is no optimizer of torch's to average them for.",
                why="a loop that updates parameters by itself would give each rank a model of its own",
                do="update with torch.optim, or topout run -n 1",
            )
        self.num_passes += 1
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
        if not (self.is_on and self._is_trained(module)):
            return
        self._agree_on_the_living()
        if self._is_the_model(module):
            if self.is_evaluating and is_training:
                # an evaluation is over, though somebody may hold its iterator for the next
                self.whole = {number: entry for number, entry in self.whole.items() if not entry[1]}
            self.is_evaluating = not is_training
            if self.is_evaluating and self._has_begun:
                self._make_equal(module)
            elif self._has_begun:
                # of a further model: what its optimizer does not hold, too
                self._equalise([*module.parameters(), *module.buffers()])

    def _is_trained(self, module: Any) -> bool:
        """In part at least; of any other module a rank may change the mode by itself."""
        trained = {id(parameter) for followed in self._followed for parameter in followed.parameters()}
        return any(id(parameter) in trained for parameter in module.parameters())

    def _is_the_model(self, module: Any) -> bool:
        """Whether it holds most of what the optimizers train."""
        sizes = {id(parameter): parameter.numel() for parameter in self._parameters()}
        held = sum(sizes.get(id(parameter), 0) for parameter in module.parameters())
        return bool(2 * held > sum(sizes.values()) > 0)

    def _make_equal(self, module: Any) -> None:
        """One model on all ranks: BatchNorm's statistics of rank 0, as with DDP; and proof that the rest is equal."""
        for buffer in module.buffers():
            self._broadcast(buffer)
        total = sum((p.detach().double().sum() for p in module.parameters()), torch.zeros((), dtype=torch.float64))
        mine = int(total.cpu().reshape(1).view(torch.int64)) if isinstance(total, torch.Tensor) else 0
        other = self.first_that_differs(mine)
        if other is not None:
            raise TopoutError(
                f"At {script_line()} rank {other} has other parameters than rank 0.",
                why="something depends on the rank's own batches, such as a learning rate or a skipped step",
                do="make it depend on what is equal on all ranks, or topout run -n 1",
            )

    def first_that_differs(self, number: int) -> int | None:
        """The first rank that has another number than rank 0; all ranks ask together."""
        self.place()
        rows = gather_numbers([number], dist.group.WORLD)
        return next((rank for rank, row in enumerate(rows) if row != rows[0]), None)

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
        self._tell(
            f"topout: {script} runs data-parallel on {place.world_size} ranks: {self.sharded_line}, "
            f"{num_tensors} tensors averaged in {counted(num_groups, 'group')}"
        )

    def _tell(self, text: str) -> None:
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(text + "\n")
