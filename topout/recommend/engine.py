"""Measures to findings: every rule looks at the measures, and what fires is ranked by how much it may win.

Rules are plug-ins (`recommend/rules/`, or entry points `topout.recommend.rules`). One that breaks is left out and
noted; a report that a plug-in can take away is not worth having. Not the place for a verdict: that is `analyze`, and
there is one.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from types import ModuleType
from typing import Any

from topout.recommend.sentence import fill
from topout.schema.finding import Finding, Rule
from topout.schema.measures import SERIAL_PHASES, Measures, Straggler
from topout.schema.plugin import load_plugin, outside_plugins, plugin_names
from topout.schema.shares import ranks_per_host

RULES = "topout.recommend.rules"


def find(measures: Measures) -> tuple[Finding, ...]:
    """What the rules found, the largest possible gain first."""
    return examine(measures)[0]


def examine(measures: Measures) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Findings, and a sentence for every rule that could not be applied."""
    rules, notes = load_rules()
    findings = []
    for name, module in rules.items():
        try:
            finding = apply_rule(module.RULE, measures)
        except Exception as error:
            notes = (*notes, f"Rule {name} could not be applied: {type(error).__name__}: {error}")
            continue
        if finding is not None:
            findings.append(finding)
    return tuple(sorted(findings, key=_rank)), notes


def load_rules() -> tuple[dict[str, ModuleType], tuple[str, ...]]:
    """The modules that hold rules, by name, and a sentence for every one that did not load."""
    modules: dict[str, ModuleType] = {}
    names: dict[str, str] = {}
    notes = []
    outside = {point.name for point in outside_plugins(RULES)}
    for name in plugin_names(RULES):
        try:
            module = load_plugin(RULES, name) if name in outside else import_module(f"{RULES}.{name}")
            rule = module.RULE
            if not isinstance(rule, Rule):
                raise TypeError(f"RULE is a {type(rule).__name__}")
        except Exception as error:
            notes.append(f"Rule {name} could not be loaded: {type(error).__name__}: {error}")
            continue
        if rule.code in names:
            notes.append(f"Rule {name} is left out: its code {rule.code} is that of {names[rule.code]}.")
            continue
        modules[name], names[rule.code] = module, name
    return modules, tuple(notes)


def apply_rule(rule: Rule, measures: Measures) -> Finding | None:
    """The finding, when every condition the rule states holds; what was not measured fires nothing."""
    value = value_at(measures, rule.measure) if rule.measure else None
    if not _holds(rule, value, measures):
        return None
    gain = _bounded(rule.gain(measures) if rule.gain else _share_or_none(rule, value))
    context = _context(measures) | {"value": value, "limit": _limit(rule), "gain": gain}
    return Finding(
        code=rule.code,
        title=fill(rule.title, context),
        because=fill(rule.because, context),
        advise=fill(rule.advise, context),
        gain_at_most=gain,
        changes=rule.changes,
    )


def value_at(measures: Measures, path: str) -> Any:
    """What stands at `input.wait_share` or `shares.other`; None where a part was not measured."""
    place: Any = measures
    for name in path.split("."):
        if place is None:
            return None
        place = place.get(name) if isinstance(place, Mapping) else getattr(place, name)
    return place


def _holds(rule: Rule, value: Any, measures: Measures) -> bool:
    if rule.measure is not None and value is None:
        return False
    if rule.above is not None and not value > rule.above:
        return False
    if rule.below is not None and not value < rule.below:
        return False
    return rule.when is None or bool(rule.when(measures))


def _limit(rule: Rule) -> float | None:
    return rule.above if rule.above is not None else rule.below


def _share_or_none(rule: Rule, value: Any) -> float | None:
    # only a share of the time is a bound of the time to be won; a rate or a size is not
    is_share = rule.measure is not None and (rule.measure.startswith("shares.") or rule.measure.endswith("_share"))
    return float(value) if is_share else None


def _bounded(gain: float | None) -> float | None:
    if gain is None or not math.isfinite(gain):
        return None
    return min(max(float(gain), 0.0), 1.0)


def _rank(finding: Finding) -> tuple[float, str]:
    return (-finding.gain_at_most if finding.gain_at_most is not None else math.inf, finding.code)


def _context(measures: Measures) -> dict[str, Any]:
    """What sentences may name: every part of the measures, and the rank that most others wait for."""
    late = _latest(measures.stragglers)
    return {part.name: getattr(measures, part.name) for part in fields(measures)} | {
        "rank": late.rank if late else None,
        "host": late.host if late else None,
        "phase": late.phase if late else None,
        "excess": late.excess_share if late else None,
        "others": measures.environment.num_ranks - 1,
        "ranks_per_host": ranks_per_host(measures),
    }


def _latest(stragglers: tuple[Straggler, ...]) -> Straggler | None:
    def weight(late: Straggler) -> tuple[bool, bool, float]:
        return late.is_persistent, late.phase not in SERIAL_PHASES, late.excess_share

    return max(stragglers, key=weight, default=None)
