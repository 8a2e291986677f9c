"""Bytes of a rank and seconds of a step on a mesh dp x fsdp x tp x pp, in closed form.

    state        (parameters + gradients + optimizer) / (tp pp fsdp), and what fsdp has gathered; gradients that
                 microbatches add up are whole until the last one: / (tp pp)
    activations  those of a microbatch / tp; a 1f1b pipeline holds p microbatches of a p-th each
    compute      that of a row's samples / (tp pp), times 1 + (p - 1) / m for the bubble of m microbatches
    tp           four all-reduces of a boundary a block and microbatch, inside a node, not hidden
    pp           a boundary there and back for each of m + p - 1 slots, not hidden
    fsdp         parameters gathered twice a microbatch (once in a pipeline), gradients scattered once, by the last
                 microbatch; hidden but for one block
    dp           an all-reduce of a rank's gradients; hidden behind backward, in a pipeline not

A ring over n ranks: (n - 1) latency + (n - 1)/n S / bandwidth one way. In pieces n times
smaller computing takes n^0.1 times as long (7 % a halving): an assumption, and from none of it to twice as much is the
range. Not for models whose layers differ much: the largest stage decides there.
"""

from dataclasses import dataclass, replace

import numpy as np

from topout.study.collectives import quickest_s, ring_s
from topout.study.job import Job, Memory
from topout.study.step_model import around, expected_step, group_bytes, last_group_s, ready
from topout.study.storage import samples_per_s
from topout.study.stragglers import expected_maximum
from topout.study.system import Link, System

SMALLER = 0.1
"""Power by which computing in smaller pieces takes longer, for kernels no longer fill the device."""
BOUNDARY_SHARE = 1 / 17
"""Of a transformer block's activations (34 s b h bytes in half precision, Korthikanti et al.) a boundary is 2 s b h."""


@dataclass(frozen=True, kw_only=True)
class Mesh:
    dp: int = 1
    fsdp: int = 1
    tp: int = 1
    pp: int = 1
    microbatches: int = 1
    row_samples: int
    """A batch of one row: dp x fsdp rows make the global one."""

    @property
    def rows(self) -> int:
        return self.dp * self.fsdp

    @property
    def batch(self) -> int:
        return self.rows * self.row_samples

    @property
    def ranks(self) -> int:
        return self.rows * self.tp * self.pp


@dataclass(frozen=True, kw_only=True)
class MeshStep:
    """Seconds, by part; they add up to `seconds`."""

    parts: dict[str, float]
    low_s: float
    """Should smaller pieces compute as efficiently."""
    high_s: float
    """Should they lose twice as much, and nothing of fsdp and dp be hidden."""

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


def bytes_per_rank(mesh: Mesh, memory: Memory) -> float:
    parameters = memory.parameter_bytes / (mesh.tp * mesh.pp)
    gradients = _gradient_bytes(memory) / (mesh.tp * mesh.pp)
    optimizer = memory.optimizer_bytes / (mesh.tp * mesh.pp)
    gathered = 0.0
    if mesh.fsdp > 1:
        # a pipeline keeps its stage gathered for all microbatches; else one block computes while the next arrives
        gathered = parameters if mesh.pp > 1 else parameters * min(1.0, 2 / max(1, memory.blocks))
    activations = memory.activation_bytes * mesh.row_samples / mesh.microbatches / mesh.tp
    if mesh.pp > 1:
        activations *= min(mesh.pp, mesh.microbatches) / mesh.pp
    if mesh.pp == mesh.microbatches == 1:
        gradients /= mesh.fsdp  # else they are added up whole, and scattered with the last microbatch
    return (parameters + optimizer) / mesh.fsdp + gradients + gathered + activations


def mesh_step(mesh: Mesh, job: Job, system: System, nodes: int) -> MeshStep:
    compute, share = job.compute, mesh.row_samples / job.input.samples
    pieces = max(1.0, mesh.microbatches / job.input.batches / share) * mesh.tp
    slower = pieces**SMALLER
    if mesh.tp == mesh.pp == mesh.fsdp == 1 and mesh.microbatches == job.input.batches:
        low, middle, high = (expected_step(_with_batch(job, mesh.row_samples, factor), system, nodes)
                             for factor in (1.0, slower, slower**2))  # fmt: skip
        return MeshStep(parts=dict(middle.parts), low_s=low.seconds, high_s=high.seconds)
    cut = mesh.tp * mesh.pp
    forward, backward = (one * share / cut * slower for one in (compute.forward_s, compute.backward_s))
    busy = forward + backward
    optimizer = compute.optimizer_s / (cut * mesh.fsdp)
    slowest = 1 + float(np.hypot(compute.persistent, compute.transient)) * expected_maximum(mesh.ranks)
    idle = (mesh.pp - 1) / mesh.microbatches
    fsdp_all_s, fsdp_s = _sharding_s(mesh, job, system, busy)
    dp_all_s, dp_s = _replicas_s(mesh, job, system, forward * slowest, backward * slowest)
    parts = {
        "compute": busy + optimizer,
        "stragglers": (busy + optimizer) * (slowest - 1),
        "bubble": busy * slowest * idle,
        "tensor parallel": _tensor_s(mesh, job, system),
        "pipeline": _pipeline_s(mesh, job, system),
        "sharding": fsdp_s,
        "communication": dp_s,
    }
    # peers are given the same samples, and each of them reads them
    read_s = mesh.row_samples * system.ranks_per_node / samples_per_s(job.input, nodes, system)
    parts["input"] = max(0.0, read_s - sum(parts.values()))
    parts |= around(job, sum(parts.values()), nodes, mesh.ranks, mesh.batch)
    computing, total = busy * slowest * (1 + idle), sum(parts.values())
    return MeshStep(
        parts=parts,
        low_s=total - computing * (1 - 1 / slower),
        high_s=total + computing * (slower - 1) + fsdp_all_s - fsdp_s + dp_all_s - dp_s,
    )


def _with_batch(job: Job, samples: int, slower: float) -> Job:
    share = samples / job.input.samples * slower
    compute = replace(job.compute, forward_s=job.compute.forward_s * share, backward_s=job.compute.backward_s * share)
    return replace(job, compute=compute, input=replace(job.input, samples=samples))


def boundary_bytes(memory: Memory) -> float:
    return memory.boundary_bytes or memory.activation_bytes / max(1, memory.blocks) * BOUNDARY_SHARE


def _tensor_s(mesh: Mesh, job: Job, system: System) -> float:
    if mesh.tp == 1:
        return 0.0
    size = boundary_bytes(job.memory) * mesh.row_samples / mesh.microbatches
    each = ring_s(size, mesh.tp, system.inside.latency_s, system.inside.bytes_per_s)
    return 4 * job.memory.blocks / mesh.pp * mesh.microbatches * each


def _pipeline_s(mesh: Mesh, job: Job, system: System) -> float:
    if mesh.pp == 1:
        return 0.0
    size = boundary_bytes(job.memory) * mesh.row_samples / mesh.microbatches
    link = _link(system, mesh.pp, mesh.ranks // mesh.pp)
    return 2 * (mesh.microbatches + mesh.pp - 1) * (link.latency_s + size / link.bytes_per_s)


def _sharding_s(mesh: Mesh, job: Job, system: System, busy_s: float) -> tuple[float, float]:
    """All of it, and what sticks out."""
    if mesh.fsdp == 1:
        return 0.0, 0.0
    link = _link(system, mesh.fsdp, mesh.tp)
    memory, cut = job.memory, mesh.tp * mesh.pp
    units = max(1, memory.blocks // mesh.pp)
    passes, gathers = (1, 1) if mesh.pp > 1 else (mesh.microbatches, 2)
    gather_s, scatter_s = (units * (mesh.fsdp - 1) * link.latency_s
                           + (mesh.fsdp - 1) / mesh.fsdp * size / cut / link.bytes_per_s
                           for size in (memory.parameter_bytes, _gradient_bytes(memory)))  # fmt: skip
    whole = passes * gathers * gather_s + scatter_s
    # each microbatch hides its own gathers, and the last one alone has gradients to scatter
    over_s = gathers * gather_s - busy_s / passes
    return whole, max(whole / units, (passes - 1) * max(0.0, over_s) + max(0.0, over_s + scatter_s))


def _replicas_s(mesh: Mesh, job: Job, system: System, forward_s: float, backward_s: float) -> tuple[float, float]:
    if mesh.dp == 1:
        return 0.0, 0.0
    link = _link(system, mesh.dp, mesh.tp * mesh.fsdp)
    cut = mesh.tp * mesh.pp * mesh.fsdp
    each_s = [quickest_s(size / cut, mesh.dp, link.latency_s, link.bytes_per_s) for size in group_bytes(job.gradients)]
    if mesh.pp > 1:
        return sum(each_s), sum(each_s)
    # the last microbatch alone sends, and is as many times shorter as there are more than the job's
    left_s = backward_s * (1 - ready(job.gradients)) * job.input.batches / mesh.microbatches
    end_s = forward_s + backward_s
    return sum(each_s), max(0.0, last_group_s(end_s - left_s, each_s, 0.0) - end_s)


def _gradient_bytes(memory: Memory) -> float:
    return memory.gradient_bytes or memory.parameter_bytes


def _link(system: System, members: int, stride: int) -> Link:
    """What one ring has, whose members lie `stride` ranks apart; rings that leave a node share its links."""
    local = system.ranks_per_node
    if members * stride <= local:
        return system.inside
    inside = max(1, min(members, local // stride))
    rings = local / inside
    shared = system.between.bytes_per_s * system.between.links / rings
    slowest = min(shared, system.inside.bytes_per_s) if local > 1 else shared
    return Link(latency_s=system.between.latency_s, bytes_per_s=slowest)
