"""The part that LARS and LAMB share: a step that scales each tensor's update by a ratio of norms.

The gradient is never changed. Not for FSDP's first version and other flat parameters, which have lost their layers.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, ClassVar

import torch

from topout.native.bindings import why_not
from topout.schema.errors import TopoutError
from topout.train.optim import device_step, native_step, refusals, shards, torch_step
from topout.train.optim.norm_watch import NormWatch
from topout.train.optim.plan import Deal, Plan, shared_counters, signature_of
from topout.train.optim.slot import Rule, Slot, lie_alike
from topout.train.optim.triton_step import TritonSteps
from topout.train.optim.triton_step import can_take as triton_can_take

IMPLEMENTATIONS = ("auto", "native", "torch")
_NARROW = (torch.float16, torch.bfloat16)


class LayerwiseOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """An ordinary optimizer; subclasses say which state there is and what numbers a group has."""

    state_names: ClassVar[tuple[str, ...]]

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], implementation: str) -> None:
        refusals.check_choice(self.label, "implementation", implementation, IMPLEMENTATIONS)
        self.implementation = implementation
        self._watch: NormWatch | None = None
        self._kept: dict[Any, Slot] = {}
        self._plans: dict[int, Plan] = {}
        self._triton: TritonSteps | None = None
        super().__init__(params, defaults)
        if implementation == "native" and (reason := why_not()):
            raise TopoutError(
                f"{self.label} cannot use its native kernel.",
                why=reason,
                do="implementation='auto' takes torch instead",
            )

    @property
    def label(self) -> str:
        return type(self).__name__

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        self.check_group(group)
        refusals.check_choice(self.label, "adapts", group["adapts"], (None, True, False))
        for number, parameter in enumerate(group["params"]):
            refusals.check_kind(self.label, _name(group, number), parameter)

    def check_group(self, group: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def rule_of(self, group: Mapping[str, Any]) -> Rule:
        raise NotImplementedError

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, group in enumerate(self.param_groups):
            rule = self.rule_of(group)
            plan = self._plan(number, group)
            try:
                for kind, deal in plan.deals.items():
                    self._take(kind, rule, deal)
            finally:
                plan.let_go()
        if self._watch is not None:
            self._watch.after_step()
        return loss

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        # torch rounds state to the type of its parameter; means of 16-bit parameters are float32 here
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        mine = chain.from_iterable(group["params"] for group in self.param_groups)
        for key, parameter in zip(saved, mine, strict=True):
            found = state_dict["state"].get(key, {})
            for name in self.state_names:
                if parameter.dtype in _NARROW and torch.is_tensor(found.get(name)):
                    self.state[parameter][name] = found[name].to(parameter.device, torch.float32, copy=True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # a pickled optimizer and one of another library come without these
        self.__dict__.setdefault("implementation", "auto")
        self.__dict__.setdefault("_watch", None)
        self._kept, self._plans, self._triton = {}, {}, None
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def _plan(self, number: int, group: Mapping[str, Any]) -> Plan:
        signature = signature_of(group, self.state)
        plan = self._plans.get(number)
        if plan is not None and plan.still_holds(signature):
            plan.take_up()
        else:
            slots = self._slots(group)
            is_kept = all(slot.gradient is slot.parameter.grad for slot in slots)
            # state that was begun just now has changed the signature
            signature = signature_of(group, self.state) if is_kept and signature is not None else None
            plan = Plan(signature, slots, self._dealt(slots), names=self.state_names)
            if slots and "step" in slots[0].holder:
                plan.counters = shared_counters(slots)
            self._plans[number] = plan
        plan.count()
        return plan

    def _slots(self, group: Mapping[str, Any]) -> list[Slot]:
        slots = []
        for number, parameter in enumerate(group["params"]):
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if self.state_names[0] not in state:
                self._begin(parameter, state)
            slot = self._kept.get(parameter)
            if slot is None or not _is_current(slot, state[self.state_names[0]]):
                slot = self._kept[parameter] = self._slot(parameter, _name(group, number), state)
            self._look_at_gradient(slot)
            slot.adapts = slot.num_dimensions > 1 if group["adapts"] is None else group["adapts"]
            decays = slot.adapts or group["adapts"] is False
            slot.decay = float(group["weight_decay"]) if decays else 0.0
            slots.append(slot)
        return slots

    def _slot(self, parameter: Any, name: str, state: dict[str, Any]) -> Slot:
        weights = shards.local(parameter)
        kept = [shards.local(state[name]) for name in self.state_names]
        return Slot(
            parameter=parameter,
            name=name,
            weights=weights,
            first=kept[0],
            second=kept[1] if len(kept) > 1 else None,
            state=state[self.state_names[0]],
            holder=state,
            address=weights.data_ptr(),
            num_dimensions=parameter.ndim,
            is_dense=lie_alike(weights, *kept),
            is_sharded=shards.is_sharded(parameter),
        )

    def _look_at_gradient(self, slot: Slot) -> None:
        gradient = slot.parameter.grad
        if gradient.is_sparse or not gradient.is_floating_point():
            refusals.check_kind(self.label, f"the gradient of {slot.name}", gradient)
        if slot.is_sharded:
            gradient = shards.local(shards.aligned_gradient(slot.parameter, slot.name))
        slot.is_flat = slot.is_dense
        if slot.is_dense and not lie_alike(slot.weights, gradient):
            # a copy in the weights' order costs less than walking both by strides
            gradient = torch.empty_like(slot.weights, dtype=gradient.dtype).copy_(gradient)
        slot.gradient = gradient

    def _begin(self, parameter: Any, state: dict[str, Any]) -> None:
        dtype = torch.float32 if parameter.dtype in _NARROW else parameter.dtype
        for name in self.state_names:
            state[name] = torch.zeros_like(parameter, dtype=dtype, memory_format=torch.preserve_format)

    def _dealt(self, slots: list[Slot]) -> dict[Any, Deal]:
        """Slots by what steps them; on a GPU also by device, for lists of tensors lie on one."""
        dealt: dict[Any, Deal] = {}
        for slot in slots:
            kind: Any = torch_step
            if slot.weights.device.type != "cpu":
                kind = self._kind_on_device(slot)
            elif self.implementation != "torch" and native_step.can_take(slot):
                kind = native_step
            elif self.implementation == "native":
                raise self._not_native(slot)
            dealt.setdefault(kind, Deal()).append(slot)
        return dealt

    def _kind_on_device(self, slot: Slot) -> tuple[Any, ...]:
        """What steps it, and what all slots of one call must share."""
        if self._triton is None:
            self._triton = TritonSteps()
        shared = (slot.weights.device, slot.weights.dtype, slot.gradient.dtype)
        if self.implementation == "auto" and self._triton.is_usable and triton_can_take(slot):
            return (self._triton, *shared)
        return (device_step, *shared)

    def _take(self, kind: Any, rule: Rule, slots: Deal) -> None:
        steps = kind[0] if isinstance(kind, tuple) else kind
        if any(slot.is_sharded for slot in slots):
            sums = steps.first_pass(rule, slots)
            shards.add_over_ranks(slots, sums)
            steps.second_pass(rule, slots, sums)
        else:
            sums = steps.whole_step(rule, slots)
        if isinstance(kind, tuple):
            self._watch = self._watch or NormWatch(self.label)
            self._watch.add(slots, sums)
            return
        bad = (~torch.isfinite(sums)).any(1)
        if bad.any():
            number = int(bad.nonzero()[0])
            raise refusals.not_finite(self.label, slots[number].name, tuple(sums[number].tolist()))

    def _not_native(self, slot: Slot) -> TopoutError:
        return TopoutError(
            f"{self.label}(implementation='native') cannot step {slot.name}.",
            why=f"The kernel takes dense float32 tensors on the CPU; this is {slot.weights.dtype} "
            f"on {slot.weights.device}, of strides {tuple(slot.weights.stride())}.",
            do="implementation='auto' takes the kernel where it can and torch elsewhere",
        )


def _is_current(slot: Slot, state: Any) -> bool:
    """Whether memory is where it was: `model.to()`, `load_state_dict` and FSDP move it."""
    weights = shards.local(slot.parameter) if slot.is_sharded else slot.parameter
    return slot.state is state and slot.address == weights.data_ptr()


def _name(group: Mapping[str, Any], number: int) -> str:
    if "param_names" in group:
        return str(group["param_names"][number])
    shape = "x".join(map(str, group["params"][number].shape)) or "scalar"
    return f"parameter {number} of its group ({shape}; pass model.named_parameters() to have names)"
