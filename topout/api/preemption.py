"""`topout.should_stop()`: whether the scheduler wants this job to end, asked by the script once a step.

Not needed by scripts that may simply be killed. It saves nothing itself: only the script knows what to save.
"""

from topout.record import preemption


def should_stop() -> bool:
    """Whether to save and leave now: `if topout.should_stop(): save(); break` at the end of a step.

    True after the scheduler's warning (SIGUSR1 or SIGUSR2 to `topout run`), on all ranks at the same call, which is at
    most one step after the warning has reached them. All ranks must call it equally often, or one rank alone.

    Without `topout run`, a single process hears the two signals itself; several ranks are always told False, with a
    warning, since they could not agree.
    """
    return preemption.should_stop()
