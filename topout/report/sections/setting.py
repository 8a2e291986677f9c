"""How the job was set up, what could not be measured, and how each number on the page was obtained."""

from typing import Any

from topout.report import figures
from topout.report.escape import prose, text
from topout.report.sections.frame import obtained, section
from topout.schema.analysis import Analysis

MOST_RANKS = 64
"""Rows of the binding table; a thousand equal lines help nobody."""


def environment(analysis: Analysis, run: dict[str, Any]) -> str:
    parts = [_facts(analysis, run), _binding(run), _settings(run), _notes(run)]
    note = "What was asked, where it ran and with which versions, as run.json holds it."
    return section("environment", "Environment", note, "".join(parts))


def not_measured(analysis: Analysis, run: dict[str, Any], *, has_steps: bool) -> str:
    missing = list(analysis.measures.not_measured)
    if not has_steps:
        why = f" {run['unreadable']}" if run.get("unreadable") else ""
        missing.append(f"No single steps to show: timeline, step times, spans and counters are left out.{why}")
    if not missing:
        return ""
    items = "".join(f"<li>{prose(line)}</li>" for line in missing)
    return section(
        "missing", "Not measured", "What is missing on this page, and why.", f'<ul class="missing">{items}</ul>'
    )


_PEAKS = {
    "table": "The device’s peak comes from a table of data sheets.",
    "assumed": "The peak of this device is computed from its cores, clock and vector width.",
    "measured": "Nothing on this page: the peak is that of a matrix product, timed on the same cores after training.",
}


def provenance(analysis: Analysis) -> str:
    peak = _PEAKS.get(analysis.measures.compute.peak_origin or "", "")
    rows = (
        ("measured", "Times, shares, efficiencies, rates and counters: from the clocks and counters of this run."),
        (
            "predicted",
            "Gains and the ideal rate: upper bounds computed from measured shares, as if one loss went to zero alone.",
        ),
        ("assumed", f"What topout took from elsewhere. {peak}"),
    )
    items = "".join(f"<dt>{obtained(how)}</dt><dd>{meaning}</dd>" for how, meaning in rows)
    return f'<dl class="provenance">{items}</dl>'


def _facts(analysis: Analysis, run: dict[str, Any]) -> str:
    measured = analysis.measures.environment
    rows: list[tuple[str, object]] = [("run", analysis.run), ("command", _command(run.get("command")))]
    rows += [("git commit", run.get("git_commit")), ("started", run.get("started_at"))]
    rows += [(f"{name} version", version) for name, version in _table(run.get("versions")).items()]
    rows += [("device", measured.device_name), ("threads per rank", measured.threads_per_rank)]
    rows += [("cores per rank", measured.cores_per_rank), ("backend", analysis.measures.communication.backend)]
    for host in _tables(run.get("hosts")):
        rows.append((f"host {host.get('name', '')}", _host(host)))
    body = "".join(f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>' for name, value in rows if value)
    return f'<table class="facts-table"><tbody>{body}</tbody></table>'


def _host(host: dict[str, Any]) -> str:
    gpus = host.get("gpus")
    names = [str(gpu) for gpu in gpus] if isinstance(gpus, list) else []
    parts = [
        str(host.get("cpu_model") or ""),
        f"{host['num_cores']} cores" if host.get("num_cores") else "",
        figures.size(host["memory_bytes"]) if _is_size(host.get("memory_bytes")) else "",
        *(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)),
    ]
    return ", ".join(part for part in parts if part)


def _binding(run: dict[str, Any]) -> str:
    ranks = _tables(run.get("ranks"))
    if not ranks:
        return ""
    rows = "".join(
        f'<tr><td class="number">{text(rank.get("rank", ""))}</td><td>{text(rank.get("host", ""))}</td>'
        f"<td>{text(_cores(rank.get('cores')))}</td><td class='number'>{_given(rank.get('num_threads'))}</td>"
        f"<td class='number'>{_given(rank.get('gpu'))}</td><td class='number'>{_ending(rank)}</td></tr>"
        for rank in ranks[:MOST_RANKS]
    )
    more = f'<p class="caption">The first {MOST_RANKS} of {len(ranks):,} ranks.</p>' if len(ranks) > MOST_RANKS else ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("rank", "host", "cores", "threads", "GPU", "exit"))
    return _folded("Ranks and their cores", f"{_tabulated(head, rows)}{more}")


def _settings(run: dict[str, Any]) -> str:
    spec = _table(run.get("spec"))
    origins = _table(run.get("origins")) or _table(spec.get("origins"))
    rows = "".join(
        f'<tr><th scope="row">{text(name)}</th><td><code>{text(value)}</code></td>'
        f"<td>{text(origins.get(name, ''))}</td></tr>"
        for name, value in spec.items()
        if name != "origins"
    )
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("setting", "value", "from"))
    return _folded("Settings and where each came from", _tabulated(head, rows))


def _notes(run: dict[str, Any]) -> str:
    notes = run.get("notes")
    if not isinstance(notes, list) or not notes:
        return ""
    items = "".join(
        f"<li>{text(note.get('text', note) if isinstance(note, dict) else note)}</li>" for note in notes[:50]
    )
    return _folded(f"Notes of the launcher and the recorder ({len(notes)})", f"<ul>{items}</ul>")


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>"


def _tabulated(head: str, rows: str) -> str:
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cores(cores: object) -> str:
    numbers = [core for core in cores if isinstance(core, int)] if isinstance(cores, list) else []
    return figures.ranks(tuple(numbers)).partition(" ")[2] if numbers else "not bound"


def _is_size(value: object) -> bool:
    """In a run.json that a hand has changed it may be anything."""
    return isinstance(value, int | float) and 0 <= value < 1 << 63


def _ending(rank: dict[str, Any]) -> str:
    return f"signal {text(rank['signal'])}" if rank.get("signal") else _given(rank.get("exit_code"))


def _given(value: object) -> str:
    return figures.NOT_MEASURED if value is None else text(value)


def _command(command: object) -> str:
    return " ".join(str(part) for part in command) if isinstance(command, list) else str(command or "")


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _tables(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
