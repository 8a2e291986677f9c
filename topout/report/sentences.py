"""The verdict in one sentence of plain words.

A new name in `schema.measures.VERDICTS` needs its sentence here; until then it is shown by its name and share.
"""

from topout.analyze.mixed_forward import is_forward_mixed
from topout.report import figures
from topout.schema.analysis import Analysis
from topout.schema.measures import Measures, Verdict

_SENTENCES = {
    "compute": "Computation sets the pace: {share} of the time goes into the model itself.",
    "memory-bandwidth": "Memory bandwidth sets the pace: {share} of the time goes into operations that wait for it.",
    "memory-size": "Memory is too small for this job.",
    "input-iops": "Opening files holds this job back: {share} of each step waits for the next batch.",
    "input-bandwidth": "Reading data holds this job back: {share} of each step waits for the next batch.",
    "input-decode": "Preparing samples holds this job back: {share} of each step waits for the next batch.",
    "host": "Code around the model holds this job back: {share} of the time the host is busy with something else.",
    "communication-latency": "Many small messages hold this job back: {share} of the time goes into exchanging them.",
    "communication-bandwidth": "The network holds this job back: {share} of the time moves data and nothing else.",
    "load-imbalance": "Uneven ranks hold this job back: {share} of the time is spent waiting for the slowest.",
    "serial-phase": "Work that does not train holds this job back: {share} of the time is evaluation or saving.",
    "pipeline-bubble": "The pipeline holds this job back: {share} of the time stages wait for their neighbours.",
    "tensor-parallel": "Cut layers hold this job back: {share} of the time ranks wait for tensor-parallel peers.",
}
_SERIAL = {
    "evaluation": "Evaluation holds this job back: {share} of the time goes by while no rank trains.",
    "checkpoint": "Saving checkpoints holds this job back: {share} of the time goes by while no rank trains.",
}
_MIXED = "Computation seems to set the pace: up to {share} of the time goes into the model and what runs before it."
_HIDDEN = (
    "Computation seems to set the pace: up to {share} of the time goes into the model, communication that could not be "
    "told apart included."
)
_TITLES = {
    "compute": "computation",
    "memory-bandwidth": "memory bandwidth",
    "memory-size": "memory size",
    "input-iops": "opening files",
    "input-bandwidth": "reading data",
    "input-decode": "preparing samples",
    "host": "code around the model",
    "communication-latency": "small messages",
    "communication-bandwidth": "network bandwidth",
    "load-imbalance": "uneven ranks",
    "serial-phase": "work that does not train",
    "pipeline-bubble": "the pipeline's bubble",
    "tensor-parallel": "tensor-parallel peers",
}


def verdict_sentence(verdict: Verdict, measures: Measures | None = None) -> str:
    """What holds the job back, for a person who never heard of the verdict's name."""
    share = figures.share(verdict.share)
    if verdict.name == "compute" and measures is not None and is_forward_mixed(measures.shares):
        return _MIXED.format(share=share)
    if verdict.name == "compute" and measures is not None and measures.communication.is_hidden:
        return _HIDDEN.format(share=share)
    if verdict.name == "load-imbalance" and len(verdict.ranks) == 1:
        return f"Rank {verdict.ranks[0]} holds this job back: the others wait for it {share} of the time."
    if verdict.name == "serial-phase" and verdict.phase in _SERIAL:
        return _SERIAL[verdict.phase].format(share=share)
    fallback = f"{verdict.name} holds this job back: it explains {{share}} of the time."
    return _SENTENCES.get(verdict.name, fallback).format(share=share)


def verdict_title(name: str) -> str:
    """A verdict's name inside a sentence."""
    return _TITLES.get(name, name)


def no_verdict_sentence(analysis: Analysis) -> str:
    if analysis.status == "running":
        return "The job is still running; too little is recorded for a verdict."
    if analysis.status == "failed":
        return "The job failed before enough of it could be measured for a verdict."
    return "Too little was recorded for a verdict."
