"""Lets gradients travel on while the next forward runs; each layer waits for its own update, and for no other.

DDP ends a step when the last gradient has come. Here `optimizer.step()` returns before: parameters of a group are
updated when its gradients arrive, by the optimizer's own arithmetic and the settings of that step, and a hook lets
every module wait for its parameters before it computes with them. Groups travel in the order in which forward will need
them. It is the same training, for no parameter is read before its update; among two ranks bit for bit, among more but
for the order of additions, which depends on what travels together. On a link that is slower than backward the step gets
shorter by up to a forward.

Not where gradients are looked at: from backward on they are NaN, so that whoever does (clipping, a loss scaler) fails
at once. Not for compiled modules, whose parts have no hooks. A weight that a module takes from another one, which is
called later, is not waited for; where autograd keeps it for backward, it finds it changed and raises.
"""

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from topout.schema.errors import TopoutError
from topout.train.buckets.regroup import Hook
from topout.train.buckets.urgency import urgent_first
from topout.train.exchange import gather
from topout.train.leaving import has_failed
from topout.train.link import measure
from topout.train.partial_step import PartialStep, Settings, changed, check_no_closure, twice
from topout.train.place import Place

OPTION = "overlap_forward"
_NUM_SEEN = 4
"""Forwards in the groups that will stay, before the order is planned: DDP regroups once itself."""
PIECE_BYTES = 4 << 20
"""A group travels in pieces of about this size: what forward needs sooner need not wait for all of a large one."""
_EXIT_LIMIT_S = 4.0

_alive: "weakref.WeakSet[ForwardOverlap]" = weakref.WeakSet()


@dataclass
class _Group:
    """A bucket of DDP's on its way."""

    buffer: Any
    parameters: list[Any]
    gradients: list[Any]
    num_unsent: int
    arrivals: list[Any] = field(default_factory=list)


class ForwardOverlap:
    """One for a wrapped model and its optimizer; `hook` is what DDP is given. `watch` follows, before any training."""

    NAME = "overlap"

    def __init__(self, optimizer: Any, place: Place) -> None:
        self._place, self._group = place, place.side_group()
        self._partial = PartialStep(optimizer)
        self._lock = threading.Lock()
        self._travelling: dict[Any, Any] = {}
        """Parameter -> the future of its update."""
        self._hidden: list[Any] = []
        """Parameters of this backward whose gradients nobody may see."""
        self._used: Settings | None = None
        """What updates of this step were made with, before its `step()`."""
        self._decided: Settings | None = None
        """What `step()` found: updates after it use no others."""
        self._ready: dict[int, tuple[Any, _Group]] = {}
        """Pieces by number, in the order in which backward finishes them."""
        self._ready_s: list[float] = []
        self._num_bytes: list[int] = []
        self._order: tuple[int, ...] = ()
        self._num_sent = 0
        self._divides_late = place.world_size & (place.world_size - 1) == 0
        self._nothing: dict[torch.dtype, Any] = {}
        self._masks: dict[Any, Any] = {}
        """What is seen of a parameter's gradient: NaN of its shape, in the memory of one number."""
        self._num_seen = 0
        self._forward_at_s = 0.0
        self._is_settled: Callable[[], bool] = lambda: True
        self._handles: dict[Any, Any] = {}
        self._called: set[Any] = set()
        self._waits: dict[Any, list[Any]] = {}
        _alive.add(self)
        # once more, so that it comes before what other parts have registered until now, such as leaving the group
        atexit.unregister(_await_the_last)
        atexit.register(_await_the_last)
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        optimizer.register_state_dict_pre_hook(self.wait)
        optimizer.register_load_state_dict_pre_hook(self.wait)

    @property
    def hook(self) -> Hook:
        return None, self._average

    def watch(self, ddp: Any, is_settled: Callable[[], bool]) -> None:
        """`is_settled` tells whether the groups stay as they are."""
        self._ddp, self._is_settled = ddp, is_settled
        ddp.register_forward_pre_hook(self._before_model, prepend=True)
        ddp.register_forward_hook(self.wait)
        one = min((p for p in ddp.module.parameters() if p.requires_grad), key=torch.Tensor.numel)
        one.register_hook(lambda _: self._check_none_is_left(one))
        for module in ddp.module.modules():
            self._handles[module] = module.register_forward_pre_hook(self._before_module, prepend=True)
            module.register_state_dict_pre_hook(self.wait)
            module.register_load_state_dict_pre_hook(self.wait)

    def wait(self, *_: Any, **__: Any) -> None:
        """All parameters are up to date afterwards."""
        for future in set(self._travelling.values()):
            future.wait()
        self._travelling.clear()

    def __deepcopy__(self, memo: Any) -> "ForwardOverlap":
        """A copy of the model (an average over steps, say) is not trained by it, and has its hooks all the same."""
        return self

    # backward

    def _average(self, _: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        if bucket.index() == 0:
            self._begin_backward()
        if not self._divides_late:
            # as DDP does it: dividing gives other bits
            buffer.mul_(1 / self._place.world_size)
        pieces = buffer.tensor_split(max(1, round(buffer.numel() * buffer.element_size() / PIECE_BYTES)))
        group = _Group(buffer, bucket.parameters(), bucket.gradients(), num_unsent=len(pieces))
        ready_s = time.perf_counter() - self._forward_at_s
        for piece in pieces:
            self._ready[len(self._ready_s)] = (piece, group)
            self._ready_s.append(ready_s)
            self._num_bytes.append(piece.numel() * piece.element_size())
        self._send_what_is_due(bucket.is_last())
        if bucket.is_last():
            # in two turns: DDP, which comes between, looks at gradients once more
            _after_backward(lambda: _after_backward(self._hide_gradients))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done

    def _begin_backward(self) -> None:
        if self._hidden:
            raise twice(OPTION)
        self.wait()
        self._used = self._decided = None
        self._ready, self._ready_s, self._num_bytes, self._num_sent = {}, [], [], 0

    def _check_none_is_left(self, parameter: Any) -> None:
        """Before a gradient is added to what is there; DDP may have copied it."""
        if not self._hidden and parameter.grad is not None and bool(parameter.grad.isnan().all()):
            raise TopoutError(
                f"With {OPTION} a backward came without optimizer.zero_grad() after the last step.",
                why="Gradients are gone when they have been averaged, so that new ones cannot be added to them.",
                do=f"optimizer.zero_grad() after each step, or leave out {OPTION}=True",
            )

    def _send_what_is_due(self, is_last: bool) -> None:
        """Before the order is planned as they become ready, and so should DDP regroup once more."""
        while self._ready:
            is_planned = self._num_sent < len(self._order)
            number = self._order[self._num_sent] if is_planned else min(self._ready)
            if number not in self._ready:
                if not is_last:
                    return
                number = min(self._ready)
            self._send(*self._ready.pop(number))
            self._num_sent += 1

    def _send(self, piece: Any, group: "_Group") -> None:
        group.arrivals.append(dist.all_reduce(piece, group=self._group, async_op=True).get_future())
        group.num_unsent -= 1
        if group.num_unsent:
            return
        updated = torch.futures.collect_all(group.arrivals).then(lambda arrived: self._update(group, arrived))
        for parameter in group.parameters:
            self._hidden.append(parameter)
            self._travelling[parameter] = updated

    def _update(self, group: "_Group", arrived: Any) -> None:
        """On a thread of the process group, while backward or the next forward goes on."""
        for arrival in arrived.value():
            # raises what the link did
            arrival.value()
        if self._divides_late:
            group.buffer.div_(self._place.world_size)
        with self._lock:
            if self._decided is None:
                self._used = self._partial.settings()
            settings = self._used if self._decided is None else self._decided
            self._partial.apply(dict(zip(group.parameters, group.gradients, strict=True)), settings or ())
        # torch's fused optimizers do not: whoever computed with one too early shall hear of it
        for parameter in group.parameters:
            torch.autograd.graph.increment_version(parameter)

    def _hide_gradients(self) -> None:
        for parameter in self._hidden:
            if parameter not in self._masks:
                nothing = self._nothing.setdefault(parameter.dtype, torch.full((), torch.nan, dtype=parameter.dtype))
                self._masks[parameter] = nothing.expand(parameter.shape)
            parameter.grad = self._masks[parameter]

    # the optimizer's step

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        check_no_closure(args, kwargs, OPTION)
        with self._lock:
            settings = self._partial.settings()
            if self._used is not None and self._used != settings:
                raise changed("the optimizer's settings were changed", OPTION)
            for parameter in self._hidden:
                if parameter.grad is not self._masks[parameter] or parameter.grad._version > 0:
                    raise changed("a gradient was changed", OPTION)
                # a parameter without a gradient is passed over
                parameter.grad = None
            self._decided = settings

    def _after_step(self, *_: Any) -> None:
        self._hide_gradients()
        self._hidden = []

    # forward

    def _before_model(self, *_: Any) -> None:
        self._forward_at_s = time.perf_counter()
        if self._waits and self._ddp.module.training:
            return
        self.wait()
        if not (self._ddp.module.training and torch.is_grad_enabled() and self._is_settled()):
            return
        self._num_seen += 1
        if self._num_seen == _NUM_SEEN:
            self._plan()

    def _before_module(self, module: Any, _: Any) -> None:
        if not self._waits:
            self._called.add(module)
        elif not self._travelling:
            return
        elif not self._ddp.module.training:
            self.wait()
        else:
            for parameter in self._waits.get(module, ()):
                if parameter in self._travelling:
                    self._travelling[parameter].wait()

    def _plan(self) -> None:
        """All ranks in the same forward: the order by the slowest rank's times, and who waits for what."""
        told = gather(self._ready_s, self._place)
        ready_s = [max(times) for times in zip(*told, strict=True)]
        self._order = urgent_first(ready_s, self._num_bytes, measure(self._place))
        self._waits = _who_waits(self._ddp.module, self._called)
        for module, handle in self._handles.items():
            if module not in self._waits:
                handle.remove()


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
    elif any(getattr(module, "sparse", False) is True for module in model.modules()):
        why = "The model has sparse gradients."
    if why is not None:
        raise TopoutError(f"{OPTION}=True cannot be had here.", why=why, do="leave it out, or try early_update=True")


def _who_waits(model: Any, called: set[Any]) -> dict[Any, list[Any]]:
    """Which parameters each module waits for: its own, and those of modules in it that are never called themselves."""
    modules = dict(model.named_modules(remove_duplicate=False))
    waits: dict[Any, list[Any]] = {}
    for name, module in modules.items():
        parts = name.split(".") if name else []
        above = [modules[".".join(parts[:count])] for count in range(len(parts), -1, -1)]
        waiting = next((one for one in above if one in called), model)
        waits.setdefault(waiting, []).extend(module.parameters(recurse=False))
    return {module: parameters for module, parameters in waits.items() if parameters}


def _after_backward(callback: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def _await_the_last() -> None:
    """After a script's last step: the other ranks need this one until their gradients have come, too."""
    futures = {future for overlap in list(_alive) for future in overlap._travelling.values()}
    give_up_at_s = time.monotonic() + _EXIT_LIMIT_S
    while not has_failed() and not all(future.done() for future in futures) and time.monotonic() < give_up_at_s:
        time.sleep(0.001)
