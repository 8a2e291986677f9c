"""Hands gradients to their groups as backward computes them, and waits for the groups before the optimizer's step.

The first step only notes in which order gradients come; rank 0's order then makes the groups of all ranks, and groups
are issued strictly in that order, so no rank can wait for another's other collective. Not thread-safe beyond what
autograd needs: one backward at a time.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from topout.schema.errors import TopoutError
from topout.train.exchange import gather_in
from topout.train.fusion import agreement, grouping
from topout.train.fusion.bucket import Bucket, Reduction
from topout.train.fusion.late_changes import LateChanges
from topout.train.fusion.sparse import like_sparse, reduce_sparse

TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)


class FusedGradients:
    """The gradients of one optimizer, reduced over one process group.

    `passes` is after how many backward passes a gradient is complete; None leaves that to `begin_backward` and redoes
    a group whose gradients changed after it was issued. `drops_unused` leaves a gradient None that no rank has, as one
    process would; otherwise it becomes zeros, as Horovod makes it. `on_late_change` is called once, when `synchronize`
    finds that gradients were changed after they had been copied: such a change is lost.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, Any]],
        *,
        group: Any,
        reduction: Reduction,
        limits: grouping.FusionLimits,
        passes: int | None = 1,
        explicit: list[list[int]] | None = None,
        drops_unused: bool = False,
        is_sparse_kept: bool = True,
        on_late_change: Callable[[], None] | None = None,
    ) -> None:
        self.group = group
        self._reduction = reduction
        self._limits = limits
        self._passes = passes
        self._explicit = explicit
        self._drops_unused = drops_unused
        self._is_sparse_kept = is_sparse_kept
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._counts = [0] * len(named)
        self._expected = [passes or 1] * len(named)
        self._ready_ns: dict[int, int] = {}
        self._buckets: list[Bucket] | None = None
        self._slots: dict[int, tuple[int, int]] = {}
        """Number of a parameter -> number of its bucket, place in it; sparse ones have none."""
        self._sparse: list[int] = []
        self._as_dense: list[int] = []
        """Sparse ones that travel among the others and are sparse again for the optimizer."""
        self._num_issued = 0
        self._stale: set[int] = set()
        self._on_late_change = on_late_change
        self._late = LateChanges() if on_late_change is not None else None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(number))
            for number, parameter in enumerate(self._parameters)
        ]

    @property
    def has_pending(self) -> bool:
        """Whether gradients came since the last `synchronize`."""
        return any(self._counts)

    @property
    def num_groups(self) -> int:
        return len(self._buckets or ()) + len(self._sparse)

    @property
    def parameters(self) -> list[Any]:
        return self._parameters

    def holds(self, gradient: Any) -> bool:
        """Whether a gradient is one that `synchronize` left."""
        found = [view for bucket in self._buckets or () for view in bucket.views]
        found += [self._parameters[number].grad for number in self._sparse]
        return any(gradient is view for view in found)

    def set_passes(self, passes: int) -> None:
        self._passes = passes
        self._expected = [passes] * len(self._expected)

    def forget(self) -> None:
        """As if no gradient had come; what is in flight is waited for, since other ranks take part in it."""
        for bucket in self._buckets or ():
            bucket.refill()
        self._begin_step()

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def begin_backward(self) -> None:
        """What this backward pass gives is complete; what is in flight must not be added to."""
        self.forget()

    def _hook(self, number: int) -> Any:
        counts = self._counts

        def came(parameter: Any) -> None:
            counts[number] += 1
            if self._buckets is None:
                # the last time counts, where it comes several times a step
                self._ready_ns.pop(number, None)
                self._ready_ns[number] = time.monotonic_ns()
                return
            if self._late is not None:
                self._late.gradient_came()
            count, expected = counts[number], self._expected[number]
            if count < expected:
                return
            slot = self._slots.get(number)
            if count > expected:
                self._came_late(slot, parameter)
            elif slot is not None:
                bucket = self._buckets[slot[0]]
                bucket.fill(slot[1], parameter.grad)
                if self._late is not None:
                    self._late.copied(parameter, is_in_buffer=parameter.grad is bucket.views[slot[1]])
                if bucket.is_full:
                    self._issue_complete(self._buckets)

        return came

    def _came_late(self, slot: tuple[int, int] | None, parameter: Any) -> None:
        if self._passes is not None:
            raise AssertionError(TOO_MANY_PASSES)
        if slot is None or self._buckets is None:
            return
        if parameter.grad is self._buckets[slot[0]].views[slot[1]]:
            raise TopoutError(
                "A gradient was computed twice within one backward pass.",
                why="it lies in a buffer that is already on its way to other ranks",
                do="call optimizer.zero_grad() without set_to_none=False, or checkpoint with use_reentrant=False",
            )
        self._stale.add(slot[0])

    def _issue_complete(self, buckets: list[Bucket]) -> None:
        while self._num_issued < len(buckets) and buckets[self._num_issued].is_full:
            buckets[self._num_issued].issue()
            self._num_issued += 1

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def synchronize(self) -> None:
        """Issues what is left, waits for all, and leaves the reduced gradients in the parameters; all ranks call it."""
        buckets = self._plan()
        self._tell_late_changes()
        missing = self._issue_rest(buckets)
        for number, bucket in enumerate(buckets):
            bucket.finish()
            for place, parameter in enumerate(bucket.parameters):
                is_nowhere = (
                    self._drops_unused and place in missing.get(number, ()) and not bucket.exists_somewhere(place)
                )
                if not is_nowhere and parameter.grad is not bucket.views[place]:
                    parameter.grad = bucket.views[place]
        for number in self._as_dense:
            self._parameters[number].grad = self._parameters[number].grad.to_sparse(1)
        self._reduce_sparse()
        self._begin_step()

    def _tell_late_changes(self) -> None:
        """Once: the script does it at every step."""
        if self._late is not None and self._on_late_change is not None and self._late.are_there():
            self._late = None
            self._on_late_change()

    def _issue_rest(self, buckets: list[Bucket]) -> dict[int, list[int]]:
        missing: dict[int, list[int]] = {}
        for number in range(self._num_issued, len(buckets)):
            if number in self._stale:
                buckets[number].refill()
            missing[number] = buckets[number].fill_rest()
            buckets[number].issue(missing[number])
        for number in sorted(number for number in self._stale if number < self._num_issued):
            buckets[number].refill()
            missing[number] = buckets[number].fill_rest()
            buckets[number].issue(missing[number])
        return missing

    def _reduce_sparse(self) -> None:
        for number in self._sparse:
            parameter = self._parameters[number]
            gradient = parameter.grad
            if gradient is None:
                gradient = like_sparse(parameter)
            elif not gradient.is_sparse:
                gradient = gradient.to_sparse(1)
            parameter.grad = reduce_sparse(gradient, self.group, self._reduction.of_a_sum(self.group))

    def _begin_step(self) -> None:
        # in place: the hooks hold this list
        self._counts[:] = [0] * len(self._counts)
        self._num_issued = 0
        self._stale.clear()
        if self._late is not None:
            self._late.begin_step()

    def shadow_step(self, mark: int) -> list[int]:
        """One step of a rank that has no more data: zeros into every group, no rows; returns all ranks' marks."""
        buckets = self._plan()
        for bucket in buckets[:-1]:
            bucket.clear()
            bucket.issue()
        buckets[-1].clear()
        buckets[-1].issue(extra_mark=(dist.get_rank(self.group), mark))
        for bucket in buckets:
            bucket.finish()
        for number in self._sparse:
            reduce_sparse(like_sparse(self._parameters[number]), self.group, 1.0)
        return buckets[-1].extra_marks()

    def _plan(self) -> list[Bucket]:
        """Agreed at the first step; all ranks come here together."""
        if self._buckets is not None:
            return self._buckets
        self._refuse_other_models()
        sparse = self._sparse_somewhere()
        self._sparse, self._as_dense = (sparse, []) if self._is_sparse_kept else ([], sparse)
        groups = gather_in(self._groups(), self.group)[0]
        world_size = dist.get_world_size(self.group)
        self._buckets = [
            Bucket(
                [self._parameters[number] for number in members],
                self._reduction,
                self.group,
                num_extra_marks=world_size if place == len(groups) - 1 else 0,
            )
            for place, members in enumerate(groups)
        ]
        self._slots = {
            number: (bucket, place) for bucket, members in enumerate(groups) for place, number in enumerate(members)
        }
        return self._buckets

    def _groups(self) -> list[list[int]]:
        dense = {number for number in range(len(self._parameters)) if number not in self._sparse}
        facts = [
            grouping.TensorFacts(parameter.numel() * parameter.element_size(), f"{parameter.dtype} {parameter.device}")
            for parameter in self._parameters
        ]
        ready_ns = {number: at_ns for number, at_ns in self._ready_ns.items() if number not in self._sparse}
        if self._explicit is not None:
            groups = [[number for number in group if number not in self._sparse] for group in self._explicit]
            places = {number: place for place, number in enumerate(ready_ns)}
            groups.sort(key=lambda group: max((places.get(number, len(dense)) for number in group), default=0))
            return grouping.separate_kinds(facts, [group for group in groups if group])
        found = grouping.group_tensors(facts, ready_ns, self._limits)
        return [group for members in found if (group := [number for number in members if number in dense])]

    def _sparse_somewhere(self) -> list[int]:
        mine = [int(parameter.grad is not None and parameter.grad.is_sparse) for parameter in self._parameters]
        rows = agreement.gather_numbers(mine or [0], self.group)
        return [number for number in range(len(mine)) if any(row[number] for row in rows)]

    def _refuse_other_models(self) -> None:
        """Ranks with other parameters would add up what does not belong together, or wait for ever."""
        mine = [
            f"{name}, {tuple(parameter.shape)}, {parameter.dtype}"
            for name, parameter in zip(self._names, self._parameters, strict=True)
        ]
        difference = agreement.first_difference(mine, "parameter", self.group)
        if difference is not None:
            raise TopoutError(
                "The ranks train different models.",
                why=difference,
                do="build the same model on every rank, with the same arguments",
            )
