"""A mesh dp x fsdp x tp x pp where replicas alone do not do: the model does not fit, or the batch can grow no further.

All meshes of the ranks are tried whose tensor parallelism stays within a node and whose memory fits; the one that ends
training first wins, and among those within `TIE` of it the simplest. Replicas with a smaller batch each are among them,
for that is the simplest way past the critical batch. Not a measurement: try the mesh on few steps before the long job.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from topout.schema.errors import TopoutError
from topout.schema.hardware import find_row
from topout.study.description import Ranged
from topout.study.job import Job
from topout.study.mesh_model import Mesh, bytes_per_rank, mesh_step
from topout.study.system import System
from topout.study.work import Work

GROWN = 2
"""From so many times the critical batch on, twice the nodes save less than a sixth of the time."""
USABLE = 0.9
"""Of a device's memory; the rest is the library's, and lost between pieces."""
TIE = 0.02
DRAWS = 100
_MOST_STAGES = 64
_MOST_SHARDS = 1024


@dataclass(frozen=True, kw_only=True)
class Proposal:
    nodes: int
    mesh: Mesh
    why: str
    """Why replicas alone do not do."""
    bytes_per_rank: float
    """Zero: not known."""
    device_bytes: float
    parts: dict[str, float]
    """Seconds of a step."""
    step_s: float
    low_s: float
    high_s: float
    hours: float
    low_hours: float
    high_hours: float
    replicas_hours: float | None
    """Of data parallelism alone with the job's batch; None where that does not fit."""
    notes: tuple[str, ...] = ()

    @property
    def toml(self) -> str:
        """What `ctx.hybrid(mesh=...)` takes."""
        mesh = self.mesh
        lines = ["[mesh]", f"dp = {mesh.dp}", f"fsdp = {mesh.fsdp}", f"tp = {mesh.tp}", f"pp = {mesh.pp}"]
        if mesh.pp > 1:
            lines.append('schedule = "1f1b"')
        lines.append(f"microbatches = {mesh.microbatches}")
        if mesh.tp > 1:
            lines += ["", "[layout]", "# tp splits nothing without rules; docs/hybrid.md, such as",
                      '# "blocks.*.mlp.up" = "columns"', '# "blocks.*.mlp.down" = "rows"']  # fmt: skip
        return "\n".join(lines) + "\n"


def propose(job: Ranged[Job], system: Ranged[System], nodes: int, work: Work, *, seed: int = 0) -> Proposal | None:
    """None where replicas alone will do, or too little is known to say."""
    device_bytes = _memory_of(job.value, system.value)
    plain = _replicas(job.value, nodes * system.value.ranks_per_node)
    is_fitting = _fits(plain, job.value, device_bytes)
    why = _why(plain, job.value, device_bytes, work, is_fitting=is_fitting)
    if why is None:
        return None
    found = [(hours_of(mesh, job.value, system.value, nodes, work), mesh)
             for mesh in _meshes(job.value, system.value, plain, device_bytes, work)]  # fmt: skip
    if not found:
        raise _nothing_fits(plain, job.value, device_bytes, nodes)
    quickest = min(hours for hours, _ in found)
    hours, mesh = min(((one, other) for one, other in found if one <= quickest * (1 + TIE)), key=_simplest)
    step = mesh_step(mesh, job.value, system.value, nodes)
    random = np.random.default_rng(seed)
    drawn = [(job.draw(random), system.draw(random), work.draw(random)) for _ in range(DRAWS)]
    others_s = [mesh_step(mesh, one, other, nodes).seconds for one, other, _ in drawn]
    others_h = [hours_of(mesh, one, other, nodes, needed) for one, other, needed in drawn]
    better, worse = step.low_s / step.seconds, step.high_s / step.seconds
    (low_s, high_s), (low_h, high_h) = ((float(edge) for edge in np.quantile(values, [0.1, 0.9]))
                                        for values in (others_s, others_h))  # fmt: skip
    return Proposal(
        nodes=nodes,
        mesh=mesh,
        why=why,
        bytes_per_rank=bytes_per_rank(mesh, job.value.memory),
        device_bytes=device_bytes,
        parts=step.parts,
        step_s=step.seconds,
        low_s=min(low_s, step.seconds) * better,
        high_s=max(high_s, step.seconds) * worse,
        hours=hours,
        low_hours=min(low_h, hours) * better,
        high_hours=max(high_h, hours) * worse,
        replicas_hours=hours_of(plain, job.value, system.value, nodes, work) if is_fitting else None,
        notes=tuple(_notes(job.value, device_bytes)),
    )


def propose_each(job: Ranged[Job], system: Ranged[System], nodes: Sequence[int], work: Work) -> dict[int, Proposal]:
    """By nodes, where replicas do not fit; empty where they do. Counts on which nothing fits are left out."""
    found: dict[int, Proposal] = {}
    refused: TopoutError | None = None
    if _fits(_replicas(job.value, 1), job.value, _memory_of(job.value, system.value)):
        return found
    for count in nodes:
        try:
            proposal = propose(job, system, count, work)
        except TopoutError as error:
            refused = error
            continue
        if proposal is not None:
            found[count] = proposal
    if refused is not None and not found:
        raise refused
    return found


def hours_of(mesh: Mesh, job: Job, system: System, nodes: int, work: Work) -> float:
    """Until the work is done."""
    steps = work.steps_at(mesh.batch, work.critical_batch and work.critical_batch[0])
    return steps * mesh_step(mesh, job, system, nodes).seconds / 3600


def _meshes(job: Job, system: System, plain: Mesh, device_bytes: float, work: Work) -> Iterator[Mesh]:
    """Of all ranks, that fit; with the fewest microbatches that do, or for a pipeline all that fill it."""
    ranks = plain.ranks
    blocks = job.memory.blocks
    for tp in _divisors(system.ranks_per_node) if blocks else [1]:
        stages = [pp for pp in _divisors(blocks) if pp <= _MOST_STAGES and (ranks // tp) % pp == 0] if blocks else [1]
        for pp in stages:
            rows = ranks // (tp * pp)
            shards = [one for one in _divisors(rows) if one <= _MOST_SHARDS] if job.memory.parameter_bytes else [1]
            for fsdp in shards:
                for samples in _row_samples(job.input.samples, tp * pp):
                    # no larger than it would have been, unless the critical batch says what that costs
                    if rows * samples > plain.batch and work.critical_batch is None:
                        continue
                    made = [Mesh(dp=rows // fsdp, fsdp=fsdp, tp=tp, pp=pp, microbatches=pieces, row_samples=samples)
                            for pieces in _divisors(samples) if pp == 1 or pieces >= pp]  # fmt: skip
                    fitting = [mesh for mesh in made if _fits(mesh, job, device_bytes)]
                    yield from fitting if pp > 1 else fitting[:1]


def _row_samples(samples: int, cut: int) -> list[int]:
    """From one to as many as give each of the row's ranks what it had, by powers of two of what it had."""
    found = [samples]
    while found[-1] % 2 == 0:
        found.append(found[-1] // 2)
    factor = 2
    while factor <= cut:
        found.append(samples * factor)
        factor *= 2
    return found if 1 in found else [*found, 1]


def _replicas(job: Job, num: int) -> Mesh:
    """As the job is described: without any split, and in as many batches a step."""
    return Mesh(dp=num, microbatches=job.input.batches, row_samples=job.input.samples)


def _fits(mesh: Mesh, job: Job, device_bytes: float) -> bool:
    """True where nothing is known against it."""
    return not device_bytes or bytes_per_rank(mesh, job.memory) <= USABLE * device_bytes


def _simplest(found: tuple[float, Mesh]) -> tuple[int, float]:
    hours, mesh = found
    return (mesh.fsdp > 1) + 2 * (mesh.tp > 1) + 4 * (mesh.pp > 1), hours


def _memory_of(job: Job, system: System) -> float:
    """Zero: not known."""
    if job.memory.device_bytes:
        return job.memory.device_bytes
    device = find_row(system.device) if system.device else None
    memory = device.figures.get("memory") if device else None
    return memory.value if memory else 0.0


def _why(plain: Mesh, job: Job, device_bytes: float, work: Work, *, is_fitting: bool) -> str | None:
    if not is_fitting:
        return (
            f"The model does not fit: a rank would hold {_gb(bytes_per_rank(plain, job.memory))}, and the device has "
            f"{_gb(device_bytes)}, of which {USABLE:.0%} can be used."
        )
    critical = work.critical_batch and work.critical_batch[0]
    if critical and plain.batch > GROWN * critical:
        return (
            f"The batch can grow no further: {plain.batch:,} is {plain.batch / critical:,.1f} times the critical one "
            f"({critical:,.0f}), and twice the nodes would save less than a sixth of the time."
        )
    return None


def _nothing_fits(plain: Mesh, job: Job, device_bytes: float, nodes: int) -> TopoutError:
    do = "more nodes, a device with more memory, or recomputed activations"
    if not job.memory.blocks:
        do = "say memory.blocks, so that layers and stages can be split; or " + do
    return TopoutError(
        f"The model fits {nodes:,} nodes in no way.",
        why=f"A rank alone would hold {_gb(bytes_per_rank(plain, job.memory))}; the device has {_gb(device_bytes)}, "
        "and no split makes it small enough, with one sample at a time.",
        do=do,
    )


def _notes(job: Job, device_bytes: float) -> list[str]:
    found = []
    if not job.memory.parameter_bytes or not device_bytes:
        found.append("What the model holds, or the device's memory, is not known ([memory] of the job): whether the "
                     "mesh fits was not checked.")  # fmt: skip
    if not job.memory.blocks:
        found.append("memory.blocks is not said, so tp and pp were not considered.")
    return found


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"
