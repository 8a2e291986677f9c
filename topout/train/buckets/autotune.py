"""Finds the grouping of gradients that makes the step shortest on this job's link, within 50 steps of training.

    Autotune(ddp, place, ...)      # attaches itself; detaches when it has chosen

Steps 1 to 2 settle, 3 and 4 tell when gradients are ready, then candidates train in turns: DDP's default, groups as
small as the link carries well, the plan that should finish first, sums host by host or compression. All ranks choose
alike, from the slowest rank's times. It only changes which gradients travel together, never their mean; with three or
more ranks the order of additions and thus the last bit may change, and what is chosen depends on measured times. A
checkpoint keeps the choice (`kept.py`), so a resumed run adds as the uninterrupted one does; two runs from the start
that must be equal bit for bit say `buckets="default"`.

Not for modules whose forwards and backwards do not alternate, that leave parameters out, or that the script has given a
communication hook of its own: it notices and stays away. Forwards with frozen parameters, as a GAN's generator makes
through the discriminator, average nothing and do not count.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

import torch

from topout.train.buckets import trial
from topout.train.buckets.assignment import Assignment
from topout.train.buckets.grouping import Gradient, as_ddp, fine, finish_s, group_bytes, plan
from topout.train.buckets.guest import Attached, Guest, Registration, attached, weakly
from topout.train.buckets.handover import PACE_S, Handover
from topout.train.buckets.ready import ReadyTimes
from topout.train.buckets.regroup import Grouping, Hook, as_values, averaged, can_regroup, regroup
from topout.train.buckets.remembered import Remembered
from topout.train.buckets.whole_division import divide_whole, is_exact, watch_divisor
from topout.train.exchange import all_agree, from_first, gather
from topout.train.link import Link, measure
from topout.train.place import Place
from topout.train.prepared.update import PreparedUpdate

FIRST_RECORDED, FIRST_TRIED = 3, 5
SMALLEST_BYTES = 1 << 20
"""DDP averages less than this in one group whatever is chosen."""
BUSY_LINK = 0.5
"""Links that take more of a processor's time than this share are the processor itself."""


class Autotune:
    """Lives from wrapping to the choice; `chosen` is None until then.

    `plain` is a hook that averages and does no more to gradients; it stays in place whatever the groups are.
    `prepared` may compute updates while gradients travel, in groups other than DDP's own.
    """

    def __init__(
        self,
        ddp: Any,
        place: Place,
        *,
        hooks: dict[str, Callable[[], Hook]] | None = None,
        plain: Hook | None = None,
        prepared: PreparedUpdate | None = None,
        remembered: Remembered | None = None,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),  # noqa: T201
    ) -> None:
        self.chosen: Grouping | None = None
        self.gain_share: float | None = None
        self._ddp, self._place, self._say = ddp, place, say
        self._hooks, self._plain, self._prepared, self._remembered = hooks or {}, plain, prepared, remembered
        self._parameters = averaged(ddp) if can_regroup(ddp) else []
        self._num_hooks = len(getattr(ddp, "_comm_hooks", ()))
        self._num_forwards = self._num_backwards = 0
        self._is_paired = True
        self._ready: ReadyTimes | None = None
        self._handed_over_after: list[Any] = []
        self._handover: Handover | None = None
        self._divisor_check: Any = None
        self._present = Grouping(name="default")
        self._candidates: list[Grouping] = []
        self._turns: list[int] = []
        self._starts_s: list[float] = []
        self._times_s: list[tuple[int, float]] = []
        self._handles: list[Any] = []
        Attached(ddp, self)
        if is_worth_tuning(ddp, self._parameters):
            self._handles = [
                # compiled, collectives would be traced; 5 us a step, and only while groups are tried
                ddp.register_forward_pre_hook(Guest(torch.compiler.disable(self._before_forward))),
                self._parameters[0].register_post_accumulate_grad_hook(weakly(self._after_backward)),
            ]
            if plain is None:
                Registration(ddp, self._give_way)
        elif prepared is not None:
            prepared.close()

    @property
    def is_settled(self) -> bool:
        return not self._handles

    @property
    def is_at_rest(self) -> bool:
        """Whether the groups in place are those of the steps to come: chosen, or DDP's own from the beginning on."""
        is_default = self._present.limits is None and self._present.hook is None
        return self.is_settled and (self.chosen is not None or is_default) and self.may_regroup()

    def kept(self) -> dict[str, Any]:
        """While it is at rest: what `take` asks for. `hands_over_after` is each rank's own."""
        place_of = {id(parameter): place for place, parameter in enumerate(self._parameters)}
        return {
            "choice": None if self.chosen is None else as_values(self.chosen),
            "hands_over_after": [place_of[id(parameter)] for parameter in self._handed_over_after],
        }

    def may_take(self, choice: dict[str, Any] | None) -> bool:
        if not self.may_regroup():
            return False
        if choice is None or self.is_settled:
            return choice == (None if self.chosen is None else as_values(self.chosen))
        return choice["hook"] is None or choice["hook"] in self._hooks

    def take(self, choice: dict[str, Any] | None, hands_over_after: Sequence[int], assignment: Assignment) -> None:
        """The choice of a checkpoint at once, and the groups of its next step; on all ranks, each of which may."""
        if choice is None or self.is_settled:
            self._regroup(self._present, assignment)
            return
        self._handed_over_after = [self._parameters[place] for place in hands_over_after]
        prepares = choice["prepares"] and all_agree(self._prepared is not None, self._place)
        self._settle(self._grouping(choice, prepares=prepares), from_memory=True, assignment=assignment)

    def leave(self) -> None:
        """Keeps what is in place and looks no further."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        # those not chosen hold memory for what they would have sent
        self._candidates = []
        self._end_preparing()
        if self._ready is not None:
            self._ready.detach()
            self._ready = None

    def _end_preparing(self) -> None:
        """Unless the groups in place do."""
        if self._prepared is not None and not self._present.prepares:
            self._prepared.close()
            self._prepared = None

    def _after_backward(self, _: Any) -> None:
        self._num_backwards += self._is_averaging()

    def _is_averaging(self) -> bool:
        """Not while gradients of several batches add up (`no_sync`)."""
        return bool(self._ddp.require_backward_grad_sync)

    def _before_forward(self, module: Any, _: Any) -> None:
        if not (torch.is_grad_enabled() and module.training and self._is_averaging()):
            return
        if module._join_config.enable:
            self.leave()
            return
        if not all(parameter.requires_grad for parameter in self._parameters):
            # gradients pass through to something else, perhaps on this rank alone
            return
        if self._num_backwards < self._num_forwards:
            # one more forward, perhaps on this rank alone: only what averaged is counted, which is the same on all
            self._is_paired = False
            return
        self._is_paired &= self._num_backwards == self._num_forwards
        self._num_forwards += 1
        if self._num_forwards == FIRST_RECORDED:
            self._ready = ReadyTimes(self._parameters, weakly(self._is_averaging))
        if self._ready is not None and self._num_forwards < FIRST_TRIED:
            self._ready.begin()
        elif self._num_forwards == FIRST_TRIED:
            self._begin_trials()
        elif self._num_forwards > FIRST_TRIED:
            self._go_on()

    def _begin_trials(self) -> None:
        assert self._ready is not None
        ready, self._ready = self._ready, None
        ready.detach()
        if not all_agree(self._is_paired and ready.is_whole and self.may_regroup(), self._place):
            self.leave()
            return
        # each rank's own: no other rank waits for them
        self._handed_over_after = ready.apart(PACE_S)
        seen = [[gradient.num_bytes, gradient.ready_s] for gradient in ready.gradients()]
        gradients = [Gradient(num_bytes=size, ready_s=ready_s) for size, ready_s in from_first(seen, self._place)]
        link = measure(self._place)
        known = self._recall(gradients, link)
        if known is not None:
            self._settle(known, from_memory=True)
            return
        prepares = self._may_prepare(link)
        by_cpu = self._place.device.type == "cpu"
        self._candidates = candidates(gradients, link, self._hooks, by_cpu=by_cpu, prepares=prepares)
        # what follows the last group is not hidden, so that one had better be small
        hides_less = self._plain is not None or any(one.prepares for one in self._candidates)
        is_crowded = all_agree(not _has_one_to_spare(), self._place)
        if hides_less or (by_cpu and is_sooner_in_fine(gradients, link, is_crowded=is_crowded)):
            # `fine` stays unless beaten
            self._candidates[:2] = self._candidates[1::-1]
        self._turns = trial.turns(len(self._candidates))
        self._begin_block()

    def _recall(self, gradients: Sequence[Gradient], link: Link) -> Grouping | None:
        if self._remembered is None:
            return None
        found = self._remembered.find(gradients, link) if self._place.is_first else None
        told = from_first(found, self._place)
        if told is None or (told["hook"] and told["hook"] not in self._hooks):
            return None
        return self._grouping(told, prepares=told["prepares"] and self._may_prepare(link))

    def _grouping(self, told: dict[str, Any], *, prepares: bool) -> Grouping:
        hook = self._hooks[told["hook"]]() if told["hook"] else None
        limits = None if told["limits"] is None else tuple(told["limits"])
        return Grouping(
            name=str(told["name"]), limits=limits, hook=hook, hands_over=told["hands_over"], prepares=prepares
        )

    def _may_prepare(self, link: Link) -> bool:
        """Where a processor has nothing else to do meanwhile: the link leaves it idle, or the rank has one to spare."""
        is_idle = link.busy_share < BUSY_LINK or _has_one_to_spare()
        return all_agree(self._prepared is not None and is_idle, self._place)

    def _begin_block(self) -> None:
        self._regroup(self._candidates[self._turns[len(self._times_s)]])
        self._starts_s = []

    def _regroup(self, grouping: Grouping, assignment: Assignment | None = None) -> bool:
        """Where all ranks may; else what is in place stays, and nothing more is tried."""
        if not all_agree(self.may_regroup(), self._place):
            self.leave()
            return False
        self._present = grouping
        prepared = self._prepared.hook if self._prepared is not None and grouping.prepares else None
        regroup(self._ddp, grouping.limits, grouping.hook or self._plain or prepared, assignment)
        for former in (self._handover, self._divisor_check):
            if former is not None:
                former.remove()
        self._handover = Handover(self._handed_over_after) if grouping.hands_over else None
        self._divisor_check = None
        if self._divides_whole(grouping):
            self._divisor_check = divide_whole(self._ddp)
        elif grouping.prepares:
            self._divisor_check = watch_divisor(self._ddp)
        self._num_hooks = len(self._ddp._comm_hooks)
        return True

    def _divides_whole(self, grouping: Grouping) -> bool:
        """Not in DDP's own groups, which are what DDP does without us."""
        is_plain = grouping.hook is None and self._plain is None and not grouping.prepares
        return (
            is_plain
            and grouping.limits is not None
            and self._place.device.type == "cpu"
            and is_exact(self._place.world_size)
        )

    def may_regroup(self) -> bool:
        """Not with a hook that came past us, which a new reducer would drop, or with other parameters than DDP took."""
        has_foreign_hook = len(self._ddp._comm_hooks) != self._num_hooks
        return can_regroup(self._ddp) and not has_foreign_hook and self._would_average_the_same()

    def _would_average_the_same(self) -> bool:
        """A parameter that is frozen at that moment would leave the reducer for good, one thawed since would join."""
        return list(map(id, averaged(self._ddp))) == list(map(id, self._parameters))

    def _give_way(self, state: object, hook: Callable[..., Any]) -> None:
        """To a communication hook that the script registers; groups stay as they are."""
        self.leave()
        if self._prepared is not None:
            # its hook averages until the script's takes its place
            self._prepared.close()
        if self._divisor_check is None and self._present.hook is None and not self._present.prepares:
            self._ddp.register_comm_hook(state, hook)
            return

        def take(ddp: Any, _: Any) -> None:
            if torch.is_grad_enabled() and self._is_averaging() and self._would_average_the_same():
                handle.remove()
                if self._divisor_check is not None:
                    self._divisor_check.remove()
                regroup(ddp, self._present.limits, (state, hook))

        # now might be between a forward and its backward; the next forward makes a new reducer ready in any case
        handle = self._ddp.register_forward_pre_hook(Guest(torch.compiler.disable(take)))

    def _go_on(self) -> None:
        self._starts_s.append(self._now_s())
        if len(self._starts_s) < trial.NUM_SETTLING + trial.NUM_MEASURED:
            return
        steps_s = [after - before for before, after in zip(self._starts_s, self._starts_s[1:], strict=False)]
        measured_s = steps_s[trial.NUM_SETTLING - 1 :]
        # on a GPU the host runs ahead, so only the sum of steps means something
        typical_s = fmean(measured_s) if self._place.device.type == "cuda" else median(measured_s)
        self._times_s.append((self._turns[len(self._times_s)], typical_s))
        if len(self._times_s) < len(self._turns):
            self._begin_block()
        else:
            self._conclude()

    def _now_s(self) -> float:
        at_edge = len(self._starts_s) in (trial.NUM_SETTLING - 1, trial.NUM_SETTLING + trial.NUM_MEASURED - 1)
        if self._place.device.type == "cuda" and at_edge:
            torch.cuda.synchronize(self._place.device)
        return time.perf_counter()

    def _conclude(self) -> None:
        told = gather([step_s for _, step_s in self._times_s], self._place)
        is_paired = all_agree(self._is_paired, self._place)
        slowest = [max(steps) for steps in zip(*told, strict=True)]
        order = [number for number, _ in self._times_s]
        default = next(number for number, one in enumerate(self._candidates) if one.limits is None)
        choice = trial.choose(list(zip(order, slowest, strict=True)), len(self._candidates), default)
        self.gain_share = choice.gain_share
        self._settle(self._candidates[choice.candidate if is_paired else default])

    def _settle(self, grouping: Grouping, *, from_memory: bool = False, assignment: Assignment | None = None) -> None:
        if not self._regroup(grouping, assignment):
            return
        self.chosen = grouping
        self.leave()
        if self._remembered is not None and not from_memory and self._place.is_first:
            self._remembered.keep(grouping, self.gain_share or 0.0)
        if self._place.is_first:
            self._say(self.sentence(from_memory))

    def sentence(self, from_memory: bool = False) -> str:
        """What a person is told of it, once."""
        if self.chosen is None or (self.chosen.limits is None and self.chosen.hook is None):
            return "topout: gradients are averaged in DDP's own groups; no other choice made the step shorter"
        count = len(self.chosen.limits or ())
        groups = "DDP's own groups" if not count else "one group" if count == 1 else f"{count} groups"
        how = ""
        if self.chosen.hook:
            how = ", host by host" if self.chosen.name == "hierarchical" else f", compressed ({self.chosen.name})"
        if self.chosen.prepares:
            how += ", updates computed meanwhile"
        if from_memory:
            return f"topout: gradients are averaged in {groups}{how}, as chosen in an earlier run"
        if self.gain_share is None or self.gain_share < trial.WORTH_A_CHANGE:
            return f"topout: gradients are averaged in {groups}{how}; no other choice made the step shorter"
        return f"topout: gradients are averaged in {groups}{how}: the step is {self.gain_share:.0%} shorter (measured)"


def tuning_of(ddp: Any) -> Autotune | None:
    """Whoever groups its gradients, or has."""
    found = attached(ddp)
    return found if isinstance(found, Autotune) else None


def is_worth_tuning(ddp: Any, parameters: Sequence[Any]) -> bool:
    """Gradients of one kind, more than one group of them, and a module that can be regrouped."""
    kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
    num_bytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    return len(kinds) == 1 and len(parameters) > 1 and num_bytes > SMALLEST_BYTES and can_regroup(ddp)


def is_sooner_in_fine(gradients: Sequence[Gradient], link: Link, *, is_crowded: bool) -> bool:
    """Expected before it is measured; `is_crowded`: no rank has a core beside those that compute."""
    own, small = as_ddp(gradients), fine(gradients, link)
    if link.busy_share < BUSY_LINK:
        # the model is to be believed where the link leaves the processor to backward
        return finish_s(gradients, small, link) < (1 - trial.BEYOND_DOUBT) * finish_s(gradients, own, link)
    # who computes also carries: nothing is hidden, and every message is work
    return is_crowded and len(small) < len(own)


def _has_one_to_spare() -> bool:
    return bool(len(os.sched_getaffinity(0)) > torch.get_num_threads())


def candidates(
    gradients: Sequence[Gradient],
    link: Link,
    hooks: dict[str, Callable[[], Hook]],
    *,
    by_cpu: bool = True,
    prepares: bool = False,
) -> list[Grouping]:
    """DDP's default first, untouched; those that come out the same are tried once."""
    hands_over = by_cpu and link.busy_share < BUSY_LINK
    plans = {"fine": fine(gradients, link)}
    if not hooks:
        # with them there is no time for a third grouping within 50 steps
        plans["planned"] = plan(gradients, link)
    found = [Grouping(name="default")]
    for name, ends in plans.items():
        limits = group_bytes(gradients, ends)
        if all(limits != other.limits for other in found):
            # behind the last group nothing travels
            is_prepared = prepares and len(limits) > 1
            found.append(Grouping(name=name, limits=limits, hands_over=hands_over, prepares=is_prepared))
    compressed = [
        Grouping(name=name, limits=found[1].limits, hook=make(), hands_over=hands_over) for name, make in hooks.items()
    ]
    return found + compressed
