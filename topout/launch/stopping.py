"""Passes a scheduler's warning on to all ranks of a job, so that all of them stop at the same step.

The head leads (`stop_agreement`); each launcher acts on the page that it shares with its ranks. Not for ending a job:
a script that never asks `topout.should_stop()` trains on.
"""

from __future__ import annotations

import time

from topout.record.preemption import StopPage
from topout.schema.light_signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    from topout.launch.stop_agreement import Order, StopAgreement

WARNINGS = frozenset({signal.SIGUSR1, signal.SIGUSR2})
STOPPED_EXIT_CODE = 75
"""EX_TEMPFAIL: the script stopped because it was asked to, and wants to be started again."""


class Stopping:
    """The head's side, or that of a job with a single launcher."""

    def __init__(
        self,
        page: StopPage | None,
        *,
        own: int | None,
        others: Collection[int],
        send: Callable[[Order], None],
        say: Callable[[str], None],
    ) -> None:
        self._page = page
        self._own = own
        self._send = send
        self._say = say
        self._hosts = {*others, *([own] if own is not None else [])}
        self._agreement: StopAgreement | None = None
        self.warning: int | None = None
        """The signal that announced the end."""

    def warned(self, number: int) -> None:
        """The scheduler announced the end, here or at another launcher."""
        self.warning = number
        if self._agreement is None:
            # few jobs are ever warned, and all of them start
            from signal import Signals

            from topout.launch.stop_agreement import StopAgreement

            self._agreement = StopAgreement(hosts=frozenset(self._hosts))
            self._say(f"topout: {Signals(number).name}: scripts that ask topout.should_stop() stop now")
        self._give(self._agreement.ask(time.monotonic()))

    def hear(self, host: int, message: dict[str, Any]) -> None:
        if self._agreement is not None:
            self._give(self._agreement.hear(host, int(message["round"]), int(message["highest"])))

    def finished(self, host: int) -> None:
        """Its ranks have ended: nobody waits for its answer, also in a round that has begun."""
        self._hosts.discard(host)
        if self._agreement is not None:
            self._give(self._agreement.leave(host))

    def look(self, now: float) -> None:
        if self._agreement is not None:
            self._give(self._agreement.look(now))

    def _give(self, order: Order | None) -> None:
        from topout.launch.stop_agreement import obey

        while order is not None and self._agreement is not None:
            self._send(order)
            answer = obey(self._page, order) if self._page is not None else None
            if answer is None or self._own is None:
                return
            order = self._agreement.hear(self._own, order.round, answer)
