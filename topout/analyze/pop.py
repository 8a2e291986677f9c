"""Parallel efficiency after POP: how much of the ranks' time was useful.

    parallel      = mean(useful) / elapsed = load_balance * communication
    load_balance  = mean(useful) / max(useful)
    communication = max(useful) / elapsed  = serialisation * transfer
    transfer      = ideal / elapsed, where `ideal` leaves out, in each step, the exposed communication of the rank that
                    had least of it: that part no balance could remove (Scalasca's variant; no replay)

Waiting for a neighbouring stage of a pipeline and for tensor-parallel peers is exposed communication like any other.
Useful is what lies outside exposed communication, input included, as in POP; `work_efficiency` then says how much of
that trains. Not for single-rank runs: every parallel factor is 1 there; see `steps` for where the time goes.
Reference: POP CoE, multiplicative model for message passing.
"""

from topout.analyze.segments import PHASE
from topout.schema.measures import COMMUNICATION_PHASES, Pop
from topout.trace.table import Int64s

NOT_TRAINING = ("input", "evaluation", "checkpoint")


def pop_efficiencies(phase_ns: Int64s, elapsed_ns: int) -> Pop:
    """`phase_ns` is [ranks, steps, PHASES]; every rank's sum over steps and phases is `elapsed_ns`."""
    exposed_ns = phase_ns[:, :, [PHASE[name] for name in COMMUNICATION_PHASES]].sum(axis=2)
    useful_ns = elapsed_ns - exposed_ns.sum(axis=1)
    work_ns = useful_ns - phase_ns[:, :, [PHASE[name] for name in NOT_TRAINING]].sum(axis=(1, 2))
    ideal_ns = elapsed_ns - int(exposed_ns.min(axis=0).sum())
    longest_ns = int(useful_ns.max())
    parallel = float(useful_ns.mean()) / elapsed_ns
    work = _ratio(float(work_ns.sum()), float(useful_ns.sum()))
    return Pop(
        parallel_efficiency=parallel,
        load_balance=_ratio(float(useful_ns.mean()), longest_ns),
        communication_efficiency=longest_ns / elapsed_ns,
        serialisation_efficiency=_ratio(longest_ns, ideal_ns),
        transfer_efficiency=ideal_ns / elapsed_ns,
        work_efficiency=work,
        overall_efficiency=parallel * work,
    )


def _ratio(part: float, whole: float) -> float:
    """Of nothing, everything was useful."""
    return part / whole if whole > 0 else 1.0
