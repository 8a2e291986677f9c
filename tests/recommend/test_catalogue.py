"""Whatever a report names can be explained, and the page of the docs says the same."""

import re
import textwrap
from pathlib import Path

import pytest

from topout.recommend.catalogue import explain_name, explanations, page
from topout.recommend.engine import load_rules
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.measures import VERDICTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rules.md"


def test_the_page_of_the_docs_is_current():
    assert PAGE.read_text("utf-8") == page(), "python -m topout.recommend.catalogue > docs/rules.md"


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_is_explained(verdict):
    found = explain_name(verdict)
    assert found.kind == "verdict"
    assert [part for part in ("What it means.", "How it is told.", "What to do.") if part not in found.text] == []


def test_advice_is_not_cut_on_a_page_of_100_columns():
    advice = [module.RULE.advise for module in load_rules()[0].values() if "{" not in module.RULE.advise]
    assert advice
    assert [words for words in advice if len(textwrap.wrap(words, 100 - 9)) > 2] == []


def test_names_are_found_in_any_case():
    assert explain_name("in01").name == "IN01"
    assert explain_name("Load-Imbalance").name == "load-imbalance"


def test_codes_that_verdicts_point_to_exist():
    everything = explanations()
    known = {item.name for item in everything}
    pointed = {name for item in everything for name in re.findall(r"`topout explain ([^`]+)`", item.text)}
    assert pointed
    assert pointed <= known


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(TopoutError) as caught:
        explain_name("load-imbalence")
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.do == "topout explain load-imbalance"


def test_a_name_like_none_is_answered_with_the_list():
    with pytest.raises(TopoutError) as caught:
        explain_name("qqqqqqqq")
    assert caught.value.do.startswith("topout explain ")
    assert "resembles" in caught.value.why
