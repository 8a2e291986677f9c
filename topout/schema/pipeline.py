"""How much of a pipeline's time is bubble, by the formula of its schedule.

    gpipe, 1f1b                  (p - 1) / (m + p - 1)           p ranks, m micro-batches
    interleaved, looped          (p - 1) / (v m + p - 1)         v stages on each rank
    interleaved zero bubble      (p - 1) / (3 v m + p - 1)       forward, input and weight gradients equally long
    zero bubble V                the same                        from 2 p micro-batches on

The share is that of the schedule alone, without optimizer, input and the all-reduce of gradients, for stages of equal
work and messages that take no time. Not a prediction of a step: what a run really lost is measured.
References: Huang et al., GPipe, 2019; Narayanan et al., Megatron-LM, SC 2021; Qi et al., Zero bubble, ICLR 2024.
"""

_ONE_STAGE = ("gpipe", "1f1b")
_LOOPED = ("interleaved1f1b", "loopedbfs")
_ZERO_BUBBLE = ("interleavedzerobubble", "zbvzerobubble")
_V_SHAPED = "zbvzerobubble"


def bubble_share(schedule: str, ranks: int, microbatches: int, chunks: int = 1) -> float | None:
    """From 0 to 1; None where there is no formula here.

    `ranks` hold the pipeline, with `chunks` stages each. The schedule is called as in `torch.distributed.pipelining`,
    with or without its prefix: `1F1B`, `ScheduleGPipe`.
    """
    if ranks < 1 or microbatches < 1 or chunks < 1:
        return None
    name = schedule.lower().removeprefix("schedule").replace("_", "").replace("-", "").replace(" ", "")
    if name in _ONE_STAGE or name in _LOOPED:
        work = chunks * microbatches
    elif name in _ZERO_BUBBLE and (name != _V_SHAPED or microbatches >= 2 * ranks):
        work = 3 * chunks * microbatches
    else:
        return None
    return (ranks - 1) / (work + ranks - 1)


def enough_microbatches(ranks: int, microbatches: int) -> int:
    """Four a rank, where the bubble no longer counts much (GPipe); double where there are as many already."""
    return max(4 * ranks, 2 * microbatches)
