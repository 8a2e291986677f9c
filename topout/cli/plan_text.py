"""A plan as text: one row a number of nodes, and the mesh where there is one."""

from topout.schema.counted import counted
from topout.study.mesh_proposal import Proposal
from topout.study.plan import Choice, Plan


def plan_text(found: Plan) -> str:
    has_cost = found.choices[0].cost is not None
    has_chance = found.choices[0].chance is not None
    money = f"{found.currency or 'cost'}, {found.price_date}"
    lines = [
        f"{'nodes':>6} {'batch':>9} {'steps':>11} {'hours':>9} {'80 % interval':>22} {'node-hours':>11} {'eff.':>5}"
        + (f" {money:>16}" if has_cost else "")
        + (f" {'in time':>8}" if has_chance else "")
    ]
    for choice in found.choices:
        cost = f" {choice.cost:>16,.0f}" if choice.cost is not None else ""
        chance = f" {choice.chance:>8.0%}" if choice.chance is not None else ""
        lines.append(
            f"{choice.nodes:>6,} {choice.batch:>9,} {choice.steps:>11,.0f} {_hours(choice.hours):>9} "
            f"{_interval(choice):>22} {choice.node_hours:>11,.1f} {choice.efficiency:>5.2f}{cost}{chance}  "
            f"{', '.join(_marks(found, choice))}".rstrip()
        )
    return "\n".join(lines) + (f"\n\n{mesh_text(found.mesh)}" if found.mesh else "")


def mesh_text(found: Proposal) -> str:
    mesh = found.mesh
    sizes = " x ".join(f"{name} {getattr(mesh, name)}" for name in ("dp", "fsdp", "tp", "pp"))
    memory = beside = ""
    if found.device_bytes and found.bytes_per_rank:
        memory = f"{found.bytes_per_rank / 1e9:,.1f} of {found.device_bytes / 1e9:,.1f} GB a rank, "
    if found.replicas_hours is not None:
        beside = f" where replicas with the job's batch take {_hours(found.replicas_hours)}"
    reach = f"{found.low_s * 1e3:,.1f} to {found.high_s * 1e3:,.1f}"
    parts = ", ".join(f"{name} {value * 1e3:,.1f}" for name, value in found.parts.items() if value >= 5e-5)
    why = found.why if found.replicas_hours is not None else f"{found.why} Each row is that of a mesh."
    samples = f"{counted(mesh.row_samples, 'sample')}"
    lines = [
        why,
        f"Mesh    {sizes} on {found.nodes:,} nodes, {samples} a row, batch {mesh.batch:,}",
        f"        {memory}a step of {found.step_s * 1e3:,.1f} ms ({reach})",
        f"        ms: {parts}",
        f"        {_hours(found.hours)} ({_hours(found.low_hours)} to {_hours(found.high_hours)}){beside}",
    ]
    return "\n".join([*lines, *(f"        {line}" for line in found.toml.splitlines() if line)])


def _marks(found: Plan, choice: Choice) -> list[str]:
    named = {"fastest": found.fastest, "cheapest": found.cheapest, "best value": found.best_value}
    return [name for name, one in named.items() if one is choice] + (["in time"] if found.within is choice else [])


def _hours(hours: float) -> str:
    return f"{hours:,.1f} h" if hours >= 1 else f"{hours * 60:,.1f} min"


def _interval(choice: Choice) -> str:
    if choice.low_hours == choice.high_hours:
        return "not known"
    return f"{_hours(choice.low_hours)} to {_hours(choice.high_hours)}"
