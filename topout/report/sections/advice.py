"""Findings: what is wrong, why, what to do about it, and what that may win at most."""

from topout.report import figures
from topout.report.escape import prose, text
from topout.report.sections.frame import obtained, section
from topout.schema.analysis import Analysis
from topout.schema.finding import Finding


def findings(analysis: Analysis) -> str:
    if analysis.findings:
        content = f'<ol class="findings">{"".join(_card(finding) for finding in analysis.findings)}</ol>'
    elif analysis.verdict is None:
        return ""
    else:
        content = (
            '<p class="empty">No rule fired. What is left to win lies in the model itself, or was not measured.</p>'
        )
    note = f"Ranked by what each may win. A gain is an upper bound, read off the waterfall: {obtained('predicted')}"
    return section("findings", "What to do", note, content)


def _card(finding: Finding) -> str:
    gain = ""
    if finding.gain_at_most is not None:
        most = figures.share(finding.gain_at_most)
        gain = f'<span class="gain"><small>saves at most</small>{most}<small>of the time</small></span>'
    return (
        f"<li><div><h3>{text(finding.title)}</h3><p>{prose(finding.because)}</p>"
        f'<p class="advice">{prose(finding.advise)}</p>'
        f'<p class="more"><code>topout explain {text(finding.code)}</code> says more.</p></div>{gain}</li>'
    )
