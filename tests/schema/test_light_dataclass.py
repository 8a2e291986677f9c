"""A light dataclass is to its users what the standard one is."""

import copy
import dataclasses
import pickle
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topout.schema.light_dataclass import dataclass, field, names_of, replace


@dataclass(frozen=True, kw_only=True)
class Light:
    number: int
    words: tuple[str, ...] = ()
    table: dict[str, int] = field(default_factory=dict, repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standard:
    number: int
    words: tuple[str, ...] = ()
    table: dict[str, int] = dataclasses.field(default_factory=dict, repr=False)


@dataclass
class Pair:
    first: int
    second: int = 2


@given(st.integers(), st.lists(st.text()).map(tuple), st.dictionaries(st.text(), st.integers()))
def test_it_prints_compares_and_converts_as_the_standard_one(number, words, table):
    light = Light(number=number, words=words, table=table)
    standard = Standard(number=number, words=words, table=table)
    assert repr(light) == repr(standard).replace("Standard", "Light")
    assert dataclasses.asdict(light) == dataclasses.asdict(standard)
    assert msgspec.convert(msgspec.to_builtins(light), Light) == light == copy.deepcopy(light)
    assert pickle.loads(pickle.dumps(light)) == light
    assert replace(light, number=7) == dataclasses.replace(light, number=7) != replace(light, number=8)


def test_objects_of_equal_values_are_equal_only_within_a_class():
    assert Light(number=1) == Light(number=1) != Light(number=2)
    assert Light(number=1) != Standard(number=1)
    assert hash(Light(number=1, table=Hashable())) == hash(Light(number=1, table=Hashable()))
    with pytest.raises(TypeError, match="unhashable"):
        hash(Pair(1))


class Hashable(dict):
    def __hash__(self):
        return 1


def test_each_object_has_made_values_of_its_own():
    one, other = Light(number=1), Light(number=2)
    one.table["a"] = 1
    assert other.table == {}


@pytest.mark.parametrize("values", [{}, {"number": 1, "unknown": 2}, {"words": ()}, {"number": 1, "__class__": 2}])
def test_missing_and_unknown_values_are_refused(values):
    with pytest.raises(TypeError):
        Light(**values)


def test_values_in_order_are_taken_where_the_class_allows_it():
    assert Pair(1, 3) == Pair(first=1, second=3) != Pair(1)
    for wrong in (lambda: Pair(1, 2, 3), lambda: Pair(1, first=1), lambda: Light(1)):
        with pytest.raises(TypeError):
            wrong()


def test_a_frozen_object_stays_as_it_is():
    light = Light(number=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        light.number = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del light.number
    pair = Pair(1)
    pair.first = 5
    assert pair == Pair(5)


def test_fields_are_those_of_the_standard_module():
    assert [item.name for item in dataclasses.fields(Light)] == ["number", "words", "table"] == list(names_of(Light))
    assert dataclasses.fields(Light)[1].default == () == Light.words
    assert names_of(Standard) == names_of(Light(number=1))


def test_defining_one_loads_neither_the_standard_module_nor_typing():
    script = """
import sys
from topout.schema.light_dataclass import dataclass, field, replace
@dataclass(frozen=True, kw_only=True)
class Light:
    number: int
    table: dict = field(default_factory=dict)
replace(Light(number=1), number=2) == Light(number=2)
print(sorted({"dataclasses", "typing", "inspect"} & set(sys.modules)))
"""
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, '.')\n{script}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
