"""One page for the terminal: the verdict first, then why, then what to do.

Not for machines: `json_report` holds every number. Colour only adds; every mark is also a word or a sign, so that a log
file reads the same.
"""

import textwrap
from collections.abc import Iterable
from pathlib import Path

from topout.analyze.mixed_forward import is_forward_mixed
from topout.report.figures import ACCEPTABLE_EFFICIENCY, is_low
from topout.report.figures import ranks as ranks_text
from topout.report.noise_sentence import CAUTION, noise_sentence
from topout.schema.analysis import Analysis
from topout.schema.counted import counted
from topout.schema.finding import Finding
from topout.schema.measures import PHASES, Count, Measures, Pop, StepTime, Verdict, Window

_NUM_FINDINGS = 3
_NUM_EVIDENCE = 3
_NUM_COUNTS = 3
_SMALLEST_SHARE = 0.015
_EIGHTHS = " ▏▎▍▌▋▊▉"
_BOLD, _DIM, _RED, _GREEN, _YELLOW, _CYAN = "1", "2", "31", "32", "33", "36"
_PHASE_COLORS = dict.fromkeys(("forward", "backward", "optimizer"), _GREEN) | {
    "wait": _RED,
    "transfer": _YELLOW,
    "bubble": _RED,
    "tensor": _YELLOW,
}


class _Page:
    """Lines of limited width, painted or not."""

    def __init__(self, width: int, color: bool) -> None:
        self.width = max(width, 40)
        self.color = color
        self.lines: list[str] = []

    def paint(self, text: str, *codes: str) -> str:
        return f"\033[{';'.join(codes)}m{text}\033[0m" if self.color and codes else text

    def wrap(self, text: str, indent: str, max_lines: int, *codes: str, first: str | None = None) -> None:
        lines = textwrap.wrap(
            # a share stays on one line
            text.replace(" %", "\u00a0%"),
            self.width,
            initial_indent=indent if first is None else first,
            subsequent_indent=indent,
            max_lines=max_lines,
            placeholder=" …",
        )
        self.lines += [self.paint(line.replace("\u00a0%", " %"), *codes) for line in lines]

    def head(self, text: str) -> None:
        self.lines += ["", self.paint(text, _BOLD)]


def render(analysis: Analysis, *, width: int, color: bool, report: Path | None = None) -> str:
    """The page, at most about 35 lines; `report` is the path of the HTML to point to."""
    page = _Page(width, color)
    measures = analysis.measures
    page.wrap(_about_run(analysis), "  ", 2, _DIM, first="")
    _add_verdict(page, analysis.verdict, measures)
    if measures.step is not None:
        page.lines.append("")
        page.wrap(_about_step(measures.step, measures.window), "  ", 2, first="")
    if measures.counts:
        page.wrap(_about_counts(measures.counts), "  ", 1, first="")
    _add_shares(page, measures)
    if measures.pop is not None and len(measures.ranks) > 1:
        _add_pop(page, measures.pop)
    if measures.noise_scale is not None:
        page.head(f"Gradient noise scale {noise_sentence(measures.noise_scale)}")
        page.wrap(CAUTION, "  ", 2)
    _add_findings(page, analysis.findings)
    page.lines.append("")
    _add_not_measured(page, analysis)
    if report is not None:
        page.lines.append(f"Report  {report}")
    page.lines.append(f"Next    {page.paint(next_command(analysis), _CYAN)}")
    return "\n".join(page.lines) + "\n"


def next_command(analysis: Analysis) -> str:
    """The one command most worth typing after reading this page."""
    if analysis.findings:
        return f"topout explain {analysis.findings[0].code}"
    if analysis.verdict is not None:
        return f"topout explain {analysis.verdict.name}"
    # the page says what is missing; how the run was started, and where, an analysis does not know
    return "topout explain"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def duration_text(duration_ns: float) -> str:
    """Three digits and the unit that fits: 52.1 ms, 1.2 s, 940 µs."""
    for unit, size_ns in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        value = duration_ns / size_ns
        # as it would be written: 999.6 ms are 1 s
        if abs(value) >= 0.9995:
            return f"{value:.3g} {unit}" if abs(value) < 999.5 else f"{value:,.0f} {unit}"
    return f"{duration_ns:.0f} ns"


def _about_run(analysis: Analysis) -> str:
    seen = analysis.measures.environment
    num_ranks = len(analysis.measures.ranks) or seen.num_ranks
    ended = analysis.status
    if analysis.exit_code:
        ended += f" with exit code {analysis.exit_code}"
    if analysis.duration_s is not None:
        ended += f" after {analysis.duration_s:,.1f} s"
    parts = [
        analysis.run,
        Path(analysis.script).name,
        f"{counted(num_ranks, 'rank')} on {counted(seen.num_hosts, 'host')}",
        *([seen.device_name] if seen.device_name else []),
        ended,
    ]
    return " · ".join(parts)


def _add_verdict(page: _Page, verdict: Verdict | None, measures: Measures) -> None:
    page.lines.append("")
    if verdict is None:
        page.lines.append(page.paint("NO VERDICT", _BOLD, _YELLOW))
        for reason in measures.not_measured[:_NUM_EVIDENCE]:
            page.wrap(reason, "  ", 2)
        return
    is_fine = verdict.name == "compute"
    title = page.paint(verdict.name.upper(), _BOLD, _GREEN if is_fine else _RED)
    is_bound = is_forward_mixed(measures.shares) or measures.communication.is_hidden
    at_most = "up to " if is_fine and is_bound else ""
    share = f"  {at_most}{percent(verdict.share)} of the time"
    page.lines.append(title + share)
    if verdict.runner_up is not None and verdict.runner_up_share is not None:
        runner_up = f"runner-up: {verdict.runner_up}, {percent(verdict.runner_up_share)}"
        if len(verdict.name + share) + 3 + len(runner_up) <= page.width:
            page.lines[-1] += page.paint(f"   {runner_up}", _DIM)
        else:
            page.wrap(runner_up, "  ", 1, _DIM)
    for sentence in verdict.evidence[:_NUM_EVIDENCE]:
        page.wrap(sentence, "  ", 2)
    concerned = _concerned(verdict)
    if concerned:
        page.wrap(concerned, "  ", 1, _DIM)


def _concerned(verdict: Verdict) -> str:
    parts = [f"phase {verdict.phase}"] if verdict.phase else []
    if verdict.ranks:
        parts.append(ranks_text(verdict.ranks))
    if verdict.hosts:
        parts.append(f"host{'s' if len(verdict.hosts) > 1 else ''} {_some(verdict.hosts)}")
    return " · ".join(parts)


def _some(items: Iterable[object], most: int = 6) -> str:
    names = [str(item) for item in items]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _about_step(step: StepTime, window: Window | None) -> str:
    usual = f"{duration_text(step.p05_ns)} to {duration_text(step.p95_ns)}"
    parts = [f"Step {duration_text(step.median_ns)} (median; mostly {usual})"]
    if step.samples_per_s is not None:
        parts.append(f"{step.samples_per_s:,.0f} samples/s")
    if window is not None:
        parts.append(f"steps {window.first_step} to {window.last_step}")
    return " · ".join(parts)


def _about_counts(counts: tuple[Count, ...]) -> str:
    shown = [f"{count.name} {count.total:,}{_rate(count.per_s)}" for count in counts[:_NUM_COUNTS]]
    left = len(counts) - _NUM_COUNTS
    return f"Counted {' · '.join(shown)}" + (f" and {left} more" if left > 0 else "")


def _rate(per_s: float | None) -> str:
    if per_s is None:
        return ""
    return f" ({per_s:,.0f}/s)" if abs(per_s) >= 100 else f" ({per_s:.3g}/s)"


def _add_shares(page: _Page, measures: Measures) -> None:
    shown = [(phase, measures.shares[phase]) for phase in PHASES if measures.shares.get(phase, 0) >= _SMALLEST_SHARE]
    if not shown:
        return
    page.head("Where the time goes")
    longest = max(share for _, share in shown)
    room = min(page.width - 22, 48)
    for phase, share in shown:
        drawn = page.paint(_bar(share / longest * room), _PHASE_COLORS.get(phase, _CYAN))
        page.lines.append(f"  {phase:<11}{percent(share):>5}  {drawn}")


def _bar(length: float) -> str:
    eighths = max(round(length * 8), 1)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _add_pop(page: _Page, pop: Pop) -> None:
    def factor(name: str, value: float) -> str:
        text = f"{name} {value:.2f}"
        return page.paint(f"{text} !", _YELLOW) if is_low(value) else text

    page.head(f"Efficiencies (POP; ! marks those below {ACCEPTABLE_EFFICIENCY})")
    communication = factor("communication", pop.communication_efficiency)
    if pop.serialisation_efficiency is not None and pop.transfer_efficiency is not None:
        serialisation = factor("serialisation", pop.serialisation_efficiency)
        communication += f" ({serialisation} × {factor('transfer', pop.transfer_efficiency)})"
    parallel = factor("parallel", pop.parallel_efficiency)
    page.lines += [
        f"  {parallel} = {factor('load balance', pop.load_balance)} × {communication}",
        f"  {factor('overall', pop.overall_efficiency)} = {parallel} × {factor('work', pop.work_efficiency)}",
    ]


def _add_findings(page: _Page, findings: tuple[Finding, ...]) -> None:
    if not findings:
        return
    page.head("What to do (predicted: time saved at most)")
    for place, finding in enumerate(findings[:_NUM_FINDINGS]):
        gain = "    ?" if finding.gain_at_most is None else f"{percent(finding.gain_at_most):>5}"
        page.lines.append(f"  {page.paint(gain, _BOLD)}  {page.paint(finding.code, _CYAN)}  {finding.title}")
        # the first gets its reason too; the others say it in `topout explain` and in the report
        if place == 0:
            page.wrap(finding.because, " " * 9, 2, _DIM)
        page.wrap(finding.advise, " " * 9, 2)
    left = [finding.code for finding in findings[_NUM_FINDINGS:]]
    if left:
        page.wrap(f"and {_some(left, 8)}", " " * 9, 1, _DIM)


def _add_not_measured(page: _Page, analysis: Analysis) -> None:
    missing = analysis.measures.not_measured
    # without a verdict the first reasons stand at the top already
    shown = missing if analysis.verdict is not None else missing[_NUM_EVIDENCE:]
    if shown:
        more = f" (and {len(shown) - 1} more)" if len(shown) > 1 else ""
        page.wrap(f"Not measured: {shown[0]}{more}", "  ", 2, _DIM, first="")
