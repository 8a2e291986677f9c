"""Lets gradients travel on while the next forward runs; each layer waits for its own update, and for no other.

DDP ends a step when the last gradient has come. Here `optimizer.step()` returns before: parameters of a group are
updated when its gradients arrive, by the optimizer's own arithmetic and the settings of that step, and a hook lets
every module wait for its parameters before it computes with them. Groups travel in the order in which forward will need
them. It is the same training, for no parameter is read before its update; among two ranks bit for bit, among more but
for the order of additions, which depends on what travels together. On a link that is slower than backward the step gets
shorter by up to a forward.

Not where gradients are looked at: from backward on they are gone, and whoever does (clipping, a loss scaler) is told.
Not for compiled modules, whose parts have no hooks.
"""

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from topout.schema.errors import TopoutError
from topout.train.buckets.autotune import FIRST_TRIED
from topout.train.buckets.regroup import Hook
from topout.train.buckets.urgency import urgent_first
from topout.train.exchange import gather
from topout.train.gone_gradient import in_place_of, is_left
from topout.train.leaving import finish_at_exit, has_failed
from topout.train.link import Link, measure
from topout.train.partial_step import PartialStep, Settings, changed, check_no_closure, late_divisor, twice
from topout.train.place import Place
from topout.train.who_waits import WhoWaits

OPTION = "overlap_forward"
_NUM_WATCHED = FIRST_TRIED
"""Forwards that wait for everything: it is seen who must wait for what, and what link and backward take alone."""
PIECE_BYTES = 4 << 20
"""A group travels in pieces of about this size: what forward needs sooner need not wait for all of a large one."""
_EXIT_LIMIT_S = 4.0

_alive: "weakref.WeakSet[ForwardOverlap]" = weakref.WeakSet()


class _Group:
    """A bucket of DDP's, sent in every step until DDP regroups."""

    def __init__(self, bucket: dist.GradBucket, world_size: int) -> None:
        self.buffer = bucket.buffer()
        self.parameters = bucket.parameters()
        # views of the buffer with the strides of their parameters, which the bucket's own do not have
        self.gradients = [parameter.grad for parameter in self.parameters]
        assert all(gradient._is_view() for gradient in self.gradients), "DDP keeps gradients in its buckets"
        self.divisor = late_divisor(self.buffer, world_size)
        num_bytes = self.buffer.numel() * self.buffer.element_size()
        self.pieces = self.buffer.tensor_split(max(1, round(num_bytes / PIECE_BYTES)))
        self.gone = [in_place_of(parameter) for parameter in self.parameters]
        self.arrivals: list[Any] = []
        self.updated: Any = None
        """The future of this step's update, until somebody has waited for it."""

    def is_of(self, buffer: Any) -> bool:
        """Whether it is this bucket's: as long as we hold a buffer, no other lies in its place."""
        return bool(self.buffer.data_ptr() == buffer.data_ptr() and self.buffer.numel() == buffer.numel())

    def wait(self) -> None:
        if self.updated is not None:
            self.updated.wait()
            self.updated = None


class ForwardOverlap:
    """One for a wrapped model and its optimizer; `hook` is what DDP is given. `watch` follows, before any training."""

    NAME = "overlap"

    def __init__(self, optimizer: Any, place: Place) -> None:
        self._place, self._side_group = place, place.side_group()
        self._partial = PartialStep(optimizer)
        self._lock = threading.Lock()
        self._groups: dict[int, _Group] = {}
        self._hidden: list[_Group] = []
        """Those of this backward, whose gradients nobody may see."""
        self._may_be_left = False
        """After a step, until the next backward has come."""
        self._settings: Settings = ()
        """Of this backward: what all of its updates are made with, and `step()` must find."""
        self._ready: dict[int, tuple[Any, _Group]] = {}
        """Pieces by number, in the order in which backward finishes them."""
        self._ready_s: list[float] = []
        self._num_bytes: list[int] = []
        self._num_sent = 0
        self._order: tuple[int, ...] | None = None
        """None until it is planned for the groups that there are."""
        self._num_backwards = 0
        """That averaged, and thus alike on all ranks: in these groups, and in all."""
        self._num_watched = 0
        self._link: Link | None = None
        self._forward_at_s = 0.0
        self._waits: dict[Any, list[Any]] = {}
        """Module -> parameters; empty while forwards are watched."""
        self._awaited: dict[Any, list[_Group]] = {}
        """The same by groups, filled in as modules ask, until DDP regroups."""
        _alive.add(self)
        # once more, so that it comes before what other parts have registered until now, such as leaving the group
        finish_at_exit(_await_the_last)
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        optimizer.register_state_dict_pre_hook(self.wait)
        optimizer.register_load_state_dict_pre_hook(self.wait)

    @property
    def hook(self) -> Hook:
        return None, self._average

    def watch(self, ddp: Any) -> None:
        # weakly: the model would hold its optimizer, and what `wrap` remembers holds the model as long as that is there
        wait = _weakly(self.wait)
        self._model, self._watched = ddp.module, WhoWaits(ddp.module, wait)
        ddp.register_forward_pre_hook(self._before_model, prepend=True)
        ddp.register_forward_hook(self.wait)
        # backward comes to the last first
        self._last = [parameter for parameter in self._model.parameters() if parameter.requires_grad][-1]
        self._last.register_hook(_weakly(self._check_none_is_left))
        for module in self._model.modules():
            module.register_state_dict_pre_hook(wait)
            module.register_load_state_dict_pre_hook(wait)

    def wait(self, *_: Any, **__: Any) -> None:
        """All parameters are up to date afterwards."""
        for group in self._groups.values():
            group.wait()

    def num_travelling(self) -> int:
        """Groups whose parameters are not up to date yet."""
        updates = [group.updated for group in self._groups.values()]
        return sum(updated is not None and not updated.done() for updated in updates)

    def __deepcopy__(self, memo: Any) -> "ForwardOverlap":
        """A copy of the model (an average over steps, say) is not trained by it, and has its hooks all the same."""
        return self

    # backward

    def _average(self, _: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            self._begin_backward()
        group = self._group_of(bucket)
        if group.divisor == 1:
            # as DDP does it: dividing gives other bits
            group.buffer.mul_(1 / self._place.world_size)
        ready_s = time.perf_counter() - self._forward_at_s
        for piece in group.pieces:
            self._ready[len(self._ready_s)] = (piece, group)
            self._ready_s.append(ready_s)
            self._num_bytes.append(piece.numel() * piece.element_size())
        self._send_what_is_due(bucket.is_last())
        if bucket.is_last():
            self._num_backwards += 1
            self._num_watched += 1
            # in two turns: DDP, which comes between, looks at gradients once more
            _after_backward(lambda: _after_backward(self._hide_gradients))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(group.buffer)
        return done

    def _begin_backward(self) -> None:
        if self._hidden:
            raise twice(OPTION)
        self.wait()
        self._settings = self._partial.settings()
        self._ready, self._ready_s, self._num_bytes, self._num_sent = {}, [], [], 0

    def _group_of(self, bucket: dist.GradBucket) -> _Group:
        known = self._groups.get(bucket.index())
        if known is None or not known.is_of(bucket.buffer()):
            if bucket.index() == 0:
                # all of them will be others
                self._groups = {}
            known = self._groups[bucket.index()] = _Group(bucket, self._place.world_size)
            self._awaited, self._order, self._num_backwards = {}, None, 0
        return known

    def _check_none_is_left(self, _: Any) -> None:
        """Before a gradient is added to what is there; DDP may have copied it."""
        may_be_left, self._may_be_left = self._may_be_left, False
        if may_be_left and is_left(self._last.grad):
            raise TopoutError(
                f"With {OPTION} a backward came without optimizer.zero_grad() after the last step.",
                why="Gradients are gone when they have been averaged, so that new ones cannot be added to them.",
                do=f"optimizer.zero_grad() after each step, or leave out {OPTION}=True",
            )

    def _send_what_is_due(self, is_last: bool) -> None:
        """Before the order is planned as they become ready."""
        while self._ready:
            number = min(self._ready) if self._order is None else self._order[self._num_sent]
            if number not in self._ready:
                assert not is_last, "an order has all pieces"
                return
            self._send(*self._ready.pop(number))
            self._num_sent += 1

    def _send(self, piece: Any, group: _Group) -> None:
        group.arrivals.append(dist.all_reduce(piece, group=self._side_group, async_op=True).get_future())
        if len(group.arrivals) == len(group.pieces):
            arrivals, group.arrivals = group.arrivals, []
            group.updated = torch.futures.collect_all(arrivals).then(lambda arrived: self._update(group, arrived))
            self._hidden.append(group)

    def _update(self, group: _Group, arrived: Any) -> None:
        """On a thread of the process group, while backward or the next forward goes on."""
        for arrival in arrived.value():
            # raises what the link did
            arrival.value()
        with self._lock:
            self._partial.apply(
                group.parameters, group.gradients, self._settings, flat=group.buffer, divisor=group.divisor
            )

    def _hide_gradients(self) -> None:
        for group in self._hidden:
            for parameter, gone in zip(group.parameters, group.gone, strict=True):
                parameter.grad = gone

    # the optimizer's step

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        check_no_closure(args, kwargs, OPTION)
        if self._hidden and self._settings != self._partial.settings():
            raise changed("the optimizer's settings were changed", OPTION)
        for group in self._hidden:
            for parameter, gone in zip(group.parameters, group.gone, strict=True):
                if parameter.grad is not gone:
                    raise changed("a gradient was replaced", OPTION)
                # a parameter without a gradient is passed over
                parameter.grad = None

    def _after_step(self, *_: Any) -> None:
        self._hide_gradients()
        self._may_be_left |= bool(self._hidden)
        self._hidden = []

    # forward

    def _before_model(self, *_: Any) -> None:
        self._forward_at_s = time.perf_counter()
        if not self._waits and self._num_watched >= _NUM_WATCHED:
            self._end_watching()
        if not (self._waits and self._model.training):
            self.wait()
        elif self._order is None and self._num_backwards and torch.is_grad_enabled():
            self._plan()

    def _end_watching(self) -> None:
        self.wait()
        self._waits = self._watched.finish()
        # the model itself in any case: called in evaluation, it waits for everything
        for module in {self._model, *self._waits}:
            module.register_forward_pre_hook(_weakly(self._before_module), prepend=True)

    def _before_module(self, module: Any, _: Any) -> None:
        if not self._model.training:
            self.wait()
            return
        awaited = self._awaited.get(module)
        if awaited is None:
            # a copy of the module has none
            asked = {id(parameter) for parameter in self._waits.get(module, ())}
            held = [group for group in self._groups.values() if asked & {id(p) for p in group.parameters}]
            awaited = self._awaited[module] = held
        for group in awaited:
            group.wait()

    def _plan(self) -> None:
        """All ranks in the same forward, the first after a backward in new groups: by the slowest rank's times."""
        if self._link is None:
            self.wait()
            self._link = measure(self._place)
        told = gather(self._ready_s, self._place)
        self._order = urgent_first([max(times) for times in zip(*told, strict=True)], self._num_bytes, self._link)


def check_overlap(model: Any, optimizer: Any, place: Place, *, find_unused_parameters: bool) -> None:
    """Raises where some of what the model computes with could not be waited for, or would never be updated."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    without = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    kinds = {type(module).__name__ for module in model.modules()}
    why = None
    if place.device.type != "cpu":
        why = f"It was measured for ranks on CPUs alone, and this one is on {place.device}."
    elif find_unused_parameters:
        why = "Every gradient must come in every step, and find_unused_parameters says that some may not."
    elif without:
        why = f"The optimizer does not hold {without[0]}, whose gradient it would hide from another one."
    elif kinds & {"OptimizedModule", "RecursiveScriptModule"}:
        why = "The model is compiled, and its layers cannot wait one by one."
    if why is not None:
        raise TopoutError(f"{OPTION}=True cannot be had here.", why=why, do="leave it out, or try early_update=True")


def _after_backward(callback: Any) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """While gradients travel, those who carry them hold its object; afterwards there is nothing left to wait for."""
    reference = weakref.WeakMethod(method)

    def called(*args: Any, **kwargs: Any) -> None:
        found = reference()
        if found is not None:
            found(*args, **kwargs)

    return called


def _await_the_last() -> None:
    """After a script's last step: the other ranks need this one until their gradients have come, too."""
    give_up_at_s = time.monotonic() + _EXIT_LIMIT_S
    while not has_failed() and time.monotonic() < give_up_at_s:
        if not any(overlap.num_travelling() for overlap in list(_alive)):
            return
        time.sleep(0.001)
