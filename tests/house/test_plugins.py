"""A plug-in is a file: dropping one in is enough, listing imports none, an unknown name gets the nearest."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from topout.schema import plugin
from topout.schema.errors import TopoutError


@pytest.fixture
def toppings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package `toppings` with the plug-ins `basil` and `onion`; importing `onion` fails."""
    package = tmp_path / "toppings"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_cheese.py").touch()
    (package / "basil.py").write_text("COLOUR = 'green'\n")
    (package / "onion.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "toppings"
    for name in [name for name in sys.modules if name.partition(".")[0] == "toppings"]:
        del sys.modules[name]


def test_a_file_is_a_plugin_and_listing_imports_none(toppings: str) -> None:
    assert plugin.plugin_names(toppings) == ["basil", "onion"]
    assert "toppings.basil" not in sys.modules


def test_a_plugin_is_imported_by_its_name(toppings: str) -> None:
    assert plugin.load_plugin(toppings, "basil").COLOUR == "green"


def test_an_unknown_name_is_answered_with_the_nearest(toppings: str) -> None:
    with pytest.raises(TopoutError) as caught:
        plugin.load_plugin(toppings, "basel")
    assert caught.value.problem == "There is no basel in toppings."
    assert caught.value.do == "choose one of basil"


def test_a_package_from_outside_adds_a_plugin(toppings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = ModuleType("outside")
    point = EntryPoint(name="capers", value="outside", group=toppings)
    monkeypatch.setitem(sys.modules, "outside", outside)
    monkeypatch.setattr(plugin, "outside_plugins", lambda package: [point] if package == toppings else [])
    assert plugin.plugin_names(toppings) == ["basil", "capers", "onion"]
    assert plugin.load_plugin(toppings, "capers") is outside


def test_an_entry_point_that_is_no_module_is_refused(toppings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name="capers", value="os:sep", group=toppings)
    monkeypatch.setattr(plugin, "outside_plugins", lambda package: [point])
    with pytest.raises(TopoutError, match="is not a module"):
        plugin.load_plugin(toppings, "capers")


def test_listing_rules_imports_no_rule() -> None:
    program = (
        "import sys; from topout.schema.plugin import plugin_names; names = plugin_names('topout.recommend.rules');"
        "assert len(names) >= 10, names;"
        "print([name for name in sys.modules if name.startswith('topout.recommend.rules.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
