"""The top of the page: which run this is, what holds it back, and the few figures everybody asks for."""

from datetime import datetime
from typing import Any

from topout.report import figures
from topout.report.escape import prose, text
from topout.report.sections.frame import obtained
from topout.report.sentences import no_verdict_sentence, verdict_sentence, verdict_title
from topout.schema.analysis import Analysis
from topout.schema.counted import counted
from topout.schema.measures import Verdict


def masthead(analysis: Analysis, run: dict[str, Any]) -> str:
    environment, launched = analysis.measures.environment, run.get("ranks")
    facts = [
        counted(len(launched) if isinstance(launched, list) and launched else environment.num_ranks, "rank"),
        counted(environment.num_hosts, "host") + _host_names(run),
        *([text(environment.device_name)] if environment.device_name else []),
        *([text(_when(run["started_at"]))] if isinstance(run.get("started_at"), str) else []),
        *([figures.duration(analysis.duration_s * 1e9)] if analysis.duration_s is not None else []),
    ]
    ending = text(analysis.status)
    if analysis.exit_code:
        ending += f", exit code {analysis.exit_code}"
    items = "".join(f"<li>{fact}</li>" for fact in facts)
    place, slash, name = analysis.script.rpartition("/")
    return (
        f'<h1><span>{text(place + slash)}</span>{text(name)}</h1><ul class="facts">{items}'
        f'<li class="status {"good" if analysis.status == "finished" else "bad"}">{ending}</li></ul>'
    )


def verdict(analysis: Analysis, run: dict[str, Any]) -> str:
    found = analysis.verdict
    if found is None:
        why = "".join(f"<li>{prose(line)}</li>" for line in analysis.measures.not_measured[:3])
        body = f'<p class="sentence">{text(no_verdict_sentence(analysis))}</p><ul class="evidence">{why}</ul>'
    else:
        sentence = text(verdict_sentence(found, analysis.measures))
        lead, colon, rest = sentence.partition(": ")
        evidence = "".join(f"<li>{prose(line)}</li>" for line in found.evidence)
        body = f'<p class="sentence"><strong>{lead}{colon}</strong>{rest}</p><ul class="evidence">{evidence}</ul>'
        body += _where(found)
    failure = run.get("first_failure")
    if isinstance(failure, str) and failure.strip():
        body += (
            f"<details open><summary>What the first failing rank printed</summary><pre>{text(failure)}</pre></details>"
        )
    return f'<section id="verdict" aria-label="Verdict">{body}</section>'


def key_figures(analysis: Analysis) -> str:
    """Step time, rate, efficiency and use of the peak; what was not measured is left out, not shown as zero."""
    measures, cards = analysis.measures, []
    if measures.step is not None:
        step = measures.step
        spread = f"median {figures.duration(step.median_ns)}, 5–95 %: {_range(step.p05_ns, step.p95_ns)}"
        cards.append(("Time per step", figures.duration(step.mean_ns), spread, "measured"))
        if step.samples_per_s is not None:
            cards.append(("Samples per second", figures.amount(step.samples_per_s), "over all ranks", "measured"))
    if measures.pop is not None and len(measures.ranks) > 1:
        note = f"load balance {figures.factor(measures.pop.load_balance)} × communication "
        note += figures.factor(measures.pop.communication_efficiency)
        cards.append(("Parallel efficiency", figures.share(measures.pop.parallel_efficiency), note, "measured"))
    compute = measures.compute
    if compute.model_flops_utilisation is not None:
        note = f"{figures.amount(compute.flops_per_s)}FLOP/s of {figures.amount(compute.peak_flops_per_s)}FLOP/s"
        how = "peak assumed" if compute.peak_origin == "assumed" else "measured"
        cards.append(("Of the peak (MFU)", figures.share(compute.model_flops_utilisation), note, how))
    elif compute.flops_per_s is not None:
        cards.append(("FLOP per second", figures.amount(compute.flops_per_s), "over all ranks", "measured"))
    if not cards:
        return ""
    rows = "".join(
        f"<div><dt>{name}</dt><dd><b>{value}</b><small>{note} {obtained(how)}</small></dd></div>"
        for name, value, note, how in cards
    )
    return f'<dl class="figures">{rows}</dl>'


def _where(found: Verdict) -> str:
    parts = [f'<span class="tag">{text(found.name)}</span>']
    if found.phase:
        parts.append(f"phase {text(found.phase)}")
    if found.ranks:
        parts.append(figures.ranks(found.ranks))
    if found.hosts:
        shown = ", ".join(text(host) for host in found.hosts[:6])
        parts.append(f"on {shown}" + (f" and {len(found.hosts) - 6} more hosts" if len(found.hosts) > 6 else ""))
    if found.runner_up:
        share = "" if found.runner_up_share is None else f" ({figures.share(found.runner_up_share)})"
        parts.append(f"runner-up: {text(verdict_title(found.runner_up))}{share}")
    return f'<p class="where">{" <i>·</i> ".join(parts)}</p>'


def _host_names(run: dict[str, Any]) -> str:
    hosts = run.get("hosts")
    names = [str(host.get("name", "")) for host in hosts if isinstance(host, dict)] if isinstance(hosts, list) else []
    return f" ({text(', '.join(names))})" if 0 < len(names) <= 3 and any(names) else ""


def _range(low_ns: float, high_ns: float) -> str:
    low, high = figures.duration(low_ns), figures.duration(high_ns)
    number, _, unit = low.rpartition("\u202f")
    return f"{number if high.endswith(unit) else low}–{high}"


def _when(started_at: str) -> str:
    try:
        moment = datetime.fromisoformat(started_at)
    except ValueError:
        return started_at
    return f"{moment.day} {moment:%B %Y, %H:%M}"
