"""Sentences that a verdict rests on, each with its figure.

What to do about it is said by findings; here stands only how we know.
"""

from collections.abc import Sequence

from topout.analyze.causes import Cause
from topout.analyze.input import waits_outside
from topout.analyze.mixed_forward import is_forward_mixed
from topout.schema.measures import Input, Measures, Memory, Pipeline, RankTime, TensorParallel
from topout.schema.shares import MOSTLY_IDLE, has_gpu, working_share

_PEAK_ORIGINS = {
    "assumed": "assumed from the cores",
    "measured": "measured with a matrix product",
    "table": "from the table of devices",
}
NOTED_IMBALANCE = 1.15
"""A stage that computes this much more than the mean is named."""
MANY_OPENS_PER_S = 10
"""Fewer files than this are what a rank opens beside its training."""
HARDLY_ARITHMETIC = 0.02
"""Computing that reaches less than this of the peak is held up by something else than arithmetic."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SCALES = ("", "k", "M", "G", "T", "P", "E")


def evidence_for(measures: Measures, cause: Cause, ranks: Sequence[RankTime]) -> tuple[str, ...]:
    if cause.name.startswith("input-"):
        return _input(measures.input, cause, ranks, len(measures.ranks))
    if cause.name == "serial-phase":
        return _serial(measures, cause)
    if cause.name == "load-imbalance":
        return _imbalance(measures, cause)
    if cause.name == "pipeline-bubble" and measures.pipeline is not None:
        return _pipeline(measures.pipeline, cause)
    if cause.name == "tensor-parallel" and measures.tensor_parallel is not None:
        return _tensor_parallel(measures, measures.tensor_parallel)
    if cause.name == "host":
        return _host(measures)
    return _transfer(measures)


def compute_evidence(measures: Measures, cause: Cause) -> tuple[str, ...]:
    compute, shares = measures.compute, measures.shares
    told = [f"Forward, backward and optimizer take {percent(cause.share)} of the time; no other cause reaches 10 %."]
    if is_forward_mixed(shares) and not shares["backward"]:
        told.append(
            "No pass and no backward was seen: what nothing else explains is taken for computing, and whatever else "
            'the script does is in it. topout.span("input") tells such code apart.'
        )
    elif is_forward_mixed(shares):
        told.append(
            f"Forward takes {shares['forward'] / shares['backward']:.0f} times as long as backward, where a pass that "
            "is trained on takes half: rollouts, batches made by hand, frozen parts or slow kernels are in it. "
            'topout.span("input") tells such code apart.'
        )
    if measures.communication.is_hidden:
        told.append(
            "Communication that computing does not cover is part of these phases here"
            + ("; --profile tells it apart, by the kernels." if has_gpu(measures) else " and cannot be told apart.")
        )
    if compute.model_flops_utilisation is not None and compute.flops_per_s is not None:
        origin = _PEAK_ORIGINS.get(compute.peak_origin or "", "of unknown origin")
        utilisation = compute.model_flops_utilisation
        of_peak = "less than 1 %" if utilisation < 0.005 else percent(utilisation)
        told.append(f"{_flops(compute.flops_per_s)} are {of_peak} of the peak ({origin}).")
        if utilisation < HARDLY_ARITHMETIC * cause.share and cause.name == "compute":
            told.append(
                "Hardly any of it is arithmetic: small operations called from Python, memory or slow kernels set the "
                "pace"
                + ("; --profile 20-29 tells whether it is memory." if compute.memory_bound_share is None else ".")
            )
    elif compute.memory_bound_share is None and shares["backward"]:
        told.append("Whether memory sets the pace was not measured: --profile 20-29 tells it.")
    if compute.memory_bound_share is not None:
        told.append(f"{percent(compute.memory_bound_share)} of the computing is limited by memory bandwidth.")
    return tuple(told)


def memory_evidence(memory: Memory) -> tuple[str, ...]:
    asked = f" of {size(memory.requested_bytes)}" if memory.requested_bytes else ""
    told = [f"An allocation{asked} failed for lack of memory."]
    used, total, where = (
        (memory.peak_device_bytes, memory.device_total_bytes, "device")
        if memory.ran_out_on == "device"
        else (memory.peak_host_bytes, memory.host_total_bytes, "host")
    )
    if used is not None and total is not None:
        told.append(f"The largest rank held {size(used)}; the {where} has {size(total)}.")
    fixed = {
        "parameters": memory.parameter_bytes,
        "gradients": memory.gradient_bytes,
        "optimizer state": memory.optimizer_bytes,
    }
    parts = [f"{size(value)} {name}" for name, value in fixed.items() if value]
    if parts and not memory.ran_out_beside_devices:
        told.append(f"What filled it: {', '.join(parts)}; the rest are activations and buffers.")
    if memory.largest_batch is not None:
        told.append(f"Predicted: a batch of {memory.largest_batch} a rank would fit.")
    return tuple(told)


def _input(given: Input, cause: Cause, ranks: Sequence[RankTime], num_ranks: int) -> tuple[str, ...]:
    told = [f"Waiting for the next batch explains {percent(cause.share)} of the time."]
    if num_ranks > 1 and ranks:
        most = max(ranks, key=lambda rank: rank.shares["input"])
        told.append(f"Rank {most.rank} on {most.host} waits most: {percent(most.shares['input'])} of its time.")
    if None not in (given.running_share, given.opening_share, given.reading_share):
        told.append(
            f"Whenever the loader was looked at, it was computing in {percent(given.running_share)} of the cases, "
            f"opening files in {percent(given.opening_share)}, reading in {percent(given.reading_share)}."
        )
        busy_share = (given.running_share or 0.0) + (given.opening_share or 0.0) + (given.reading_share or 0.0)
        if cause.name == "input-bandwidth" and waits_outside(busy_share, given.num_workers, given.wait_share or 0.0):
            told.append(
                f"In {percent(1 - busy_share)} of the cases it waited for something outside, such as a network store."
            )
    at_work = working_share(given)
    if cause.name == "input-decode" and at_work is not None and at_work < MOSTLY_IDLE:
        told.append(
            f"At most {percent(at_work)} of its {given.num_workers} workers were at work while ranks waited for them."
        )
    if given.opens_per_s is not None and given.opens_per_s >= MANY_OPENS_PER_S:
        read = f", {size(given.mean_read_bytes)} a read" if given.mean_read_bytes is not None else ""
        told.append(f"{given.opens_per_s:,.0f} files are opened every second{read}.")
    return tuple(told)


def _serial(measures: Measures, cause: Cause) -> tuple[str, ...]:
    serial = measures.serial
    shares = {"evaluation": serial.evaluation_share or 0.0, "saving": serial.checkpoint_share or 0.0}
    taken = [f"{name} takes {percent(share)}" for name, share in shares.items() if share >= 0.005]
    waiting = f"with those who wait meanwhile {percent(cause.share)}"
    if len(measures.ranks) < 2:
        told = [f"{_sentence(taken)} of the time."]
    else:
        told = [
            f"{_sentence(taken)} of the ranks' time; {waiting}." if taken else f"{_sentence([waiting])} of the time."
        ]
    if serial.single_rank_share is not None and serial.single_rank_share >= 0.01:
        who = ", ".join(map(str, serial.ranks))
        told.append(
            f"For {percent(serial.single_rank_share)} of the time only rank {who} is at it while the others wait."
        )
    if serial.steps_per_rollout is not None and cause.phase == "evaluation":
        every = round(serial.steps_per_rollout)
        often = "in most steps" if every < 2 else f"every {every} steps"
        told.append(
            f"Evaluation is told by a model in evaluation mode, {often}: rollouts and generation look the same. "
            'topout.span("evaluation") names one.'
        )
    return tuple(told)


def _imbalance(measures: Measures, cause: Cause) -> tuple[str, ...]:
    most = max(rank.shares["wait"] for rank in measures.ranks)
    told = [
        f"Ranks wait for a late one for {percent(measures.shares['wait'])} of the time, the most patient for "
        f"{percent(most)}, mostly for its {cause.phase}."
    ]
    for late in measures.stragglers[:3]:
        how = "in most steps" if late.is_persistent else "now and then"
        told.append(
            f"Rank {late.rank} on {late.host} is late {how}: "
            f"it is busy longer than the others by {percent(late.excess_share)} of a step, mostly in its {late.phase}."
        )
    if not measures.stragglers:
        told.append("No rank is late in most steps; each time it is another.")
    return tuple(told)


def _pipeline(pipeline: Pipeline, cause: Cause) -> tuple[str, ...]:
    told = [f"Stages wait for their neighbours for {percent(cause.share)} of the time."]
    measured = percent(pipeline.schedule_bubble_share)
    if pipeline.formula_share is not None:
        told.append(
            f"{pipeline.num_stages} stages and {pipeline.num_microbatches} micro-batches make a bubble of "
            f"{percent(pipeline.formula_share)} by the formula of {pipeline.schedule}; measured: {measured}."
        )
    else:
        told.append(f"The bubble is {measured} of {pipeline.schedule}, for which there is no formula here.")
    if pipeline.imbalance >= NOTED_IMBALANCE:
        told.append(
            f"Stage {pipeline.slowest_stage} on rank {pipeline.slowest_rank} computes {pipeline.imbalance:.2f} times "
            "the mean, and the others wait for it."
        )
    return tuple(told)


def _tensor_parallel(measures: Measures, peers: TensorParallel) -> tuple[str, ...]:
    told = [f"Collectives among tensor-parallel peers, inside forward and backward, take {percent(peers.share)}."]
    if peers.wait_share is not None:
        told.append(
            f"{percent(peers.wait_share)} of the time is waiting for a peer that comes late, "
            f"{percent(peers.transfer_share)} is transfer."
        )
    late = next((straggler for straggler in measures.stragglers if straggler.is_persistent), None)
    if late is not None:
        told.append(f"Rank {late.rank} on {late.host} is late in most steps, in its {late.phase}.")
    told.append(f"{peers.num_collectives_per_step:.1f} such collectives a step.")
    return tuple(told)


def _host(measures: Measures) -> tuple[str, ...]:
    share = percent(measures.shares["other"])
    told = [f"{share} of the time goes to code outside forward, backward, optimizer and input."]
    if measures.compute.host_share is not None:
        told = [
            f"For {share} of the time the device had nothing to do: its host was still launching, or did other things."
        ]
    if measures.shares["copy"] > 0.005:
        told.append(f"Copies to the device hold the host for {percent(measures.shares['copy'])} of the time.")
    return tuple(told)


def _transfer(measures: Measures) -> tuple[str, ...]:
    communication = measures.communication
    told = [f"Exposed transfer takes {percent(measures.shares['transfer'])} of the time."]
    if measures.device is not None:
        share = measures.device.exposed_communication_share
        told.append(f"In the profile, devices only communicate for {percent(share)} of the time.")
    if communication.is_split_withheld:
        told.append("The clocks of the hosts disagree too much to tell waiting for a late rank from transfer.")
    if communication.mean_message_bytes is not None and communication.num_collectives_per_step is not None:
        each = size(communication.mean_message_bytes)
        told.append(f"{communication.num_collectives_per_step:.1f} collectives a step of {each} each.")
    return tuple(told)


def _sentence(clauses: Sequence[str]) -> str:
    text = " and ".join(clauses)
    return text[:1].upper() + text[1:]


def percent(share: float | None) -> str:
    """0.42 -> 42 %"""
    return f"{100 * (share or 0.0):.0f} %"


def _flops(per_s: float) -> str:
    """967344 -> 967 kFLOP/s"""
    value, unit = per_s, 0
    while value >= 999.5 and unit < len(_SCALES) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {_SCALES[unit]}FLOP/s"


def size(num_bytes: float | None) -> str:
    """1536 -> 1.5 KiB"""
    value, unit = float(num_bytes or 0), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.3g} {_UNITS[unit]}"
