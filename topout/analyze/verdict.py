"""The verdict: what holds the job back, what comes next, and the figures that say so.

A cause must reach a tenth of the time to be held against a job; below that it computes, which is what it is for. Not
a list of everything that could be better: findings are.
"""

from topout.analyze.causes import Cause, find_causes
from topout.analyze.evidence import compute_evidence, evidence_for, memory_evidence
from topout.analyze.stragglers import WaitCauses
from topout.schema.measures import Measures, RankTime, Verdict

MIN_CAUSE_SHARE = 0.10
MIN_RUNNER_UP_SHARE = 0.02
MEMORY_BOUND_SHARE = 0.5
"""Computing is limited by memory bandwidth when operations that are take at least this share of it; needs --profile."""
COMPUTING = ("forward", "backward", "optimizer")


def decide(measures: Measures, waiting: WaitCauses | None, blind: tuple[str, ...] = ()) -> Verdict | None:
    """None when nothing was measured that a verdict could rest on.

    `blind` are the phases in which communication could not be told apart; see `unheard`.
    """
    usual = _of_time(measures, waiting, blind) if measures.shares and waiting is not None else None
    if not measures.memory.is_out_of_memory:
        return usual
    return Verdict(
        name="memory-size",
        share=1.0,
        runner_up=usual.name if usual else None,
        runner_up_share=usual.share if usual else None,
        evidence=memory_evidence(measures.memory),
    )


def _of_time(measures: Measures, waiting: WaitCauses, blind: tuple[str, ...]) -> Verdict | None:
    causes = [cause for cause in find_causes(measures, waiting) if cause.phase not in blind]
    compute = _compute(measures)
    # as it will read: 9.6 % is shown as 10 %
    reached = [cause for cause in causes if round(cause.share, 2) >= MIN_CAUSE_SHARE]
    # what is not known might all be one cause: no verdict that it could overturn
    if sum(measures.shares[name] for name in blind) >= (reached[0].share if reached else MIN_CAUSE_SHARE):
        return None
    first = reached[0] if reached else compute
    # computing is what a job is for: it may be the verdict, but never the next thing to mend
    second = next((cause for cause in causes if cause is not first and cause.share >= MIN_RUNNER_UP_SHARE), None)
    ranks = _ranks_of(measures, first)
    is_compute = first is compute
    return Verdict(
        name=first.name,
        share=min(1.0, first.share),
        runner_up=second.name if second else None,
        runner_up_share=min(1.0, second.share) if second else None,
        evidence=compute_evidence(measures, first) if is_compute else evidence_for(measures, first, ranks),
        ranks=tuple(rank.rank for rank in ranks),
        hosts=tuple(dict.fromkeys(rank.host for rank in ranks)),
        phase=first.phase,
    )


def _compute(measures: Measures) -> Cause:
    share = sum(measures.shares[name] for name in COMPUTING)
    bound = measures.compute.memory_bound_share
    name = "memory-bandwidth" if bound is not None and bound >= MEMORY_BOUND_SHARE else "compute"
    return Cause(name=name, share=share, phase=max(COMPUTING, key=measures.shares.__getitem__))


def _ranks_of(measures: Measures, cause: Cause) -> list[RankTime]:
    """The ranks to look at; none where all are alike."""
    if cause.name == "load-imbalance":
        late = [straggler for straggler in measures.stragglers if straggler.phase == cause.phase]
        always = [straggler for straggler in late if straggler.is_persistent]
        named = {straggler.rank for straggler in always or late[:1]}
    elif cause.name == "tensor-parallel":
        named = {straggler.rank for straggler in measures.stragglers if straggler.is_persistent}
    elif cause.name == "serial-phase":
        named = set(measures.serial.ranks)
    elif cause.name.startswith("input-"):
        most = max(rank.shares["input"] for rank in measures.ranks)
        named = {rank.rank for rank in measures.ranks if rank.shares["input"] >= most / 2}
    else:
        named = set()
    return [rank for rank in measures.ranks if rank.rank in named]
