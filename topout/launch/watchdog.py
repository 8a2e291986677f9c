"""Says in one line what holds a job up, within seconds of its standing still, and says when it goes on.

Looks once a second at observations of all ranks, the job's other hosts included; pure, so that a test can be its clock.
It never ends anything: a compile of forty seconds looks like a hang from outside. Jobs without torch's collectives and
without steps get a word about stopped ranks only, since nobody can tell whether they get on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from topout.launch.holdup import UNHEARD_AFTER_S, Cause, Holdup, find_holdup
from topout.launch.observation import Observation
from topout.schema.light_dataclass import dataclass, replace

_LARGEST_GAP_S = 5.0
"""Looked less often than this, the launcher itself was stopped: what the ranks did not do meanwhile says nothing."""
_REPEATED_AFTER_S = 30.0
"""Then after twice as long, and so on."""
_USUAL_STEPS = 5.0
"""A step may take so many times as long as usual before anybody wonders."""
_BETWEEN_LINES_S = 5.0
_SEEN_FOR_S = 2.5
"""Ranks look at themselves once a second, not all at once: a picture that lasts less may be half old, half new."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What one look led to."""

    lines: tuple[str, ...] = ()
    """To be said to the person at once."""
    ask_stacks: tuple[int, ...] = ()
    """Ranks that are to write their stacks now."""


@dataclass(frozen=True, kw_only=True)
class _Said:
    """The hold-up that was last spoken of, and what the job had done by then."""

    holdup: Holdup
    began_s: float
    at_s: float
    done: tuple[int, int]
    again_at_age_s: float


class Watchdog:
    """One job's. Times in seconds of any monotonic clock. `stacks` is the folder to point at."""

    def __init__(self, *, named_after_s: float = 8.0, slow_after_s: float = 30.0, stacks: str | None = None) -> None:
        self._named_after_s = named_after_s
        self._slow_after_s = max(slow_after_s, named_after_s)
        self._stacks = stacks
        self._first_look_s: float | None = None
        self._last_look_s = self._looked_until_s = 0.0
        self._stopped_since: dict[int, float] = {}
        self._letters: dict[int, Counter[str]] = {}
        self._said: _Said | None = None
        self._longest_work_s = 0.0
        """Of hold-ups that turned out to be work, an evaluation on one rank say: the next may last twice as long."""
        self._found: tuple[Cause, tuple[int, ...]] | None = None
        self._found_since_s = 0.0

    def look(self, now_s: float, observations: Sequence[Observation]) -> Look:
        if self._first_look_s is None or now_s - self._looked_until_s > _LARGEST_GAP_S:
            self._first_look_s = now_s
            self._stopped_since.clear()
        self._note_states(now_s, observations)
        self._last_look_s = self._looked_until_s = now_s
        holdup = find_holdup(observations, {rank: _most_common(seen) for rank, seen in self._letters.items()})
        if holdup is not None:
            age_s = holdup.age_s
            if holdup.cause is Cause.STOPPED:
                age_s = now_s - min(self._stopped_since[rank] for rank in holdup.ranks)
            holdup = replace(holdup, age_s=min(age_s, now_s - self._first_look_s))
        self._compare(now_s, holdup)
        lines = []
        if self._said is not None and self._is_over(self._said, holdup, now_s, observations):
            lines.append(_one_line(self._goes_on(self._said, now_s)))
            self._said = None
        if holdup is None or not self._is_due(holdup, now_s, observations):
            return Look(lines=tuple(lines))
        lines.append(_one_line(self._line(holdup, observations)))
        self._said = _Said(
            holdup=holdup,
            began_s=min(self._said.began_s, now_s - holdup.age_s) if self._said else now_s - holdup.age_s,
            at_s=now_s,
            done=_done(observations),
            again_at_age_s=_next_after(holdup.age_s),
        )
        return Look(lines=tuple(lines), ask_stacks=tuple(item.rank for item in observations if _can_answer(item)))

    def looked_until(self, now_s: float) -> None:
        """A look at many ranks takes its time, in which the launcher was not stopped."""
        self._looked_until_s = now_s

    def _note_states(self, now_s: float, observations: Sequence[Observation]) -> None:
        stopped = [item.rank for item in observations if item.process_state == "T" and not item.is_over]
        # it may have been stopped right after the look before
        since_s = max(self._last_look_s, self._first_look_s or 0.0)
        self._stopped_since = {rank: self._stopped_since.get(rank, since_s) for rank in stopped}
        for item in observations:
            page = item.page
            if page is not None and page.progress_age_s is not None and page.progress_age_s < 1.0:
                self._letters.pop(item.rank, None)
            if item.process_state is not None:
                self._letters.setdefault(item.rank, Counter())[item.process_state] += 1

    def _compare(self, now_s: float, holdup: Holdup | None) -> None:
        found = (holdup.cause, holdup.ranks) if holdup is not None else None
        if found != self._found:
            self._found, self._found_since_s = found, now_s

    def _is_due(self, holdup: Holdup, now_s: float, observations: Sequence[Observation]) -> bool:
        if holdup.age_s < self._patience_s(holdup, observations):
            return False
        if now_s - self._found_since_s < min(_SEEN_FOR_S, self._named_after_s):
            return False
        said = self._said
        if said is None:
            return True
        if (holdup.cause, holdup.ranks) != (said.holdup.cause, said.holdup.ranks):
            return now_s - said.at_s >= _BETWEEN_LINES_S
        return holdup.age_s >= said.again_at_age_s

    def _patience_s(self, holdup: Holdup, observations: Sequence[Observation]) -> float:
        patience_s = self._named_after_s if holdup.is_urgent else self._slow_after_s
        if holdup.cause in (Cause.STOPPED, Cause.UNHEARD):
            return patience_s
        if holdup.is_work:
            patience_s = max(patience_s, 2 * self._longest_work_s)
        usual = [item.page.usual_step_s for item in observations if item.page and item.page.usual_step_s is not None]
        return max([patience_s, *(_USUAL_STEPS * step_s for step_s in usual)])

    def _is_over(self, said: _Said, holdup: Holdup | None, now_s: float, observations: Sequence[Observation]) -> bool:
        if holdup is not None and now_s - holdup.age_s <= said.at_s:
            return False
        to_blame = set(said.holdup.ranks)
        blamed = [item for item in observations if item.rank in to_blame]
        if said.holdup.cause is Cause.STOPPED:
            return not any(item.process_state == "T" for item in blamed)
        if said.holdup.cause is Cause.UNHEARD:
            return all(item.heard_age_s < UNHEARD_AFTER_S for item in blamed)
        if said.holdup.cause is Cause.SLOW:
            ages_s = [item.page.progress_age_s for item in observations if item.page and not item.is_over]
            return any(age_s is not None and age_s < now_s - said.at_s for age_s in ages_s)
        return _done(observations) != said.done

    def _goes_on(self, said: _Said, now_s: float) -> str:
        duration_s = now_s - said.began_s
        if said.holdup.is_work:
            self._longest_work_s = max(self._longest_work_s, duration_s)
        was = {Cause.STOPPED: "was stopped", Cause.UNHEARD: "was not heard of"}.get(said.holdup.cause, "was late")
        place = f" at {said.holdup.place}" if said.holdup.place else ""
        who = "" if said.holdup.cause is Cause.DEADLOCK else f" (rank {said.holdup.ranks[0]} {was}{place})"
        return f"topout: goes on after {duration_s:.0f} s{who}"

    def _line(self, holdup: Holdup, observations: Sequence[Observation]) -> str:
        ages_s = [item.page.step_age_s for item in observations if item.page and item.page.step_age_s is not None]
        opening = f"no step yet, held up for {holdup.age_s:.0f} s"
        if ages_s:
            opening = f"no step for {min(ages_s):.0f} s"
        elif holdup.cause is Cause.STOPPED:
            opening = f"held up for {holdup.age_s:.0f} s"
        pointer = f"; stacks in {self._stacks}" if self._stacks and any(map(_can_answer, observations)) else ""
        return f"topout: {opening}: {holdup.sentence}{pointer}"


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _most_common(letters: Counter[str]) -> str:
    return letters.most_common(1)[0][0] if letters else ""


def _next_after(age_s: float) -> float:
    again_s = _REPEATED_AFTER_S
    while again_s <= age_s:
        again_s *= 2
    return again_s


def _can_answer(item: Observation) -> bool:
    return item.page is not None and item.process_state != "T" and not item.is_over


def _done(observations: Sequence[Observation]) -> tuple[int, int]:
    """Grows whenever some rank ends a step, or leaves a collective."""
    pages = [item.page for item in observations if item.page is not None]
    num_steps = sum(page.num_steps for page in pages)
    num_completed = sum(position.completed for page in pages for position in page.positions)
    num_called = sum((page.called.sequence or 0) + (not page.is_inside) for page in pages if page.called)
    return num_steps, num_completed + num_called + sum(page.has_process_group for page in pages)
