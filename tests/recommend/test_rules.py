"""Every file in rules/ is a working rule: it fires, it stays quiet, it explains itself."""

import inspect
import re

import pytest

from topout.recommend.engine import RULES, apply_rule
from topout.schema.finding import Rule
from topout.schema.measures import Measures
from topout.schema.plugin import load_plugin, plugin_names

NAMES = plugin_names(RULES)
REQUIRED = {
    "IN01", "IN02", "IN03", "EV01", "EV02", "CK01", "LB01", "LB02", "CO01", "CO02", "PR01", "PR02", "PR03", "BI01",
    "BI02", "ME01", "ME02", "ME03", "DP01", "HO01",
}  # fmt: skip


def rule_of(name: str) -> Rule:
    rule = load_plugin(RULES, name).RULE
    assert isinstance(rule, Rule)
    return rule


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_fires_on_its_own_example(name):
    rule = rule_of(name)
    finding = apply_rule(rule, rule.fires_on)
    assert finding is not None
    assert finding.code == rule.code


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_is_quiet_on_its_counterexample(name):
    rule = rule_of(name)
    assert apply_rule(rule, rule.quiet_on) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_is_quiet_when_nothing_was_measured(name):
    assert apply_rule(rule_of(name), Measures()) is None


@pytest.mark.parametrize("name", NAMES)
def test_the_gain_of_a_rule_is_a_share_of_the_time(name):
    rule = rule_of(name)
    finding = apply_rule(rule, rule.fires_on)
    assert finding is not None
    assert finding.gain_at_most is not None
    assert 0 < finding.gain_at_most <= 1


@pytest.mark.parametrize("name", NAMES)
def test_the_sentences_of_a_rule_are_filled(name):
    rule = rule_of(name)
    finding = apply_rule(rule, rule.fires_on)
    assert finding is not None
    for sentence in (finding.title, finding.because, finding.advise):
        assert not re.search(r"[{}\[\]?]|None", sentence)
    assert finding.because.endswith(".")
    assert finding.advise.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_explains_itself(name):
    text = inspect.getdoc(load_plugin(RULES, name)) or ""
    positions = [
        text.find(part) for part in ("Why it matters.", "How it is measured.", "What to do.", "Not a problem when")
    ]
    assert -1 not in positions
    assert positions == sorted(positions)
    assert text.splitlines()[0].endswith(".")
    assert text.splitlines()[1] == ""


def test_compression_to_bf16_is_named_for_gloo_too():
    """torch's own hook refuses it."""
    text = inspect.getdoc(load_plugin(RULES, "exposed_transfer")) or ""
    assert re.search(r"default_hooks +# NCCL alone$", text, re.MULTILINE)
    assert re.search(r'ctx\.wrap\(.*compress="bf16"\) +# Gloo, too$', text, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_sees_nothing_of_topout_but_the_schema(name):
    imports = re.findall(r"^\s*(?:from|import) (topout\S*)", inspect.getsource(load_plugin(RULES, name)), re.MULTILINE)
    assert imports
    assert [module for module in imports if not module.startswith("topout.schema.")] == []


def test_every_code_is_used_once_and_none_is_missing():
    codes = [rule_of(name).code for name in NAMES]
    assert len(codes) == len(set(codes))
    assert set(codes) >= REQUIRED
    assert [code for code in codes if not re.fullmatch(r"[A-Z]{2}\d{2}", code)] == []
