"""Members are ints and texts with names, alone in the world with their value."""

import copy
import enum
import json
import pickle

import pytest

from topout.launch.outcome import Cause
from topout.schema.errors import ExitCode
from topout.schema.event import Flag, Kind


def test_members_are_the_values_they_stand_for():
    assert ExitCode.USAGE == 2
    assert {2: "usage"}[ExitCode.USAGE] == "usage"
    assert f"{ExitCode.USAGE} {Cause.HOST_LOST}" == "2 host lost"
    assert json.dumps([ExitCode.USAGE, Cause.HOST_LOST]) == '[2, "host lost"]'
    assert Cause.HOST_LOST in {"host lost"}
    assert not Flag.NONE


def test_a_value_leads_to_its_member_and_no_other_does():
    assert Kind(5) is Kind.BACKWARD
    assert Cause("host lost") is Cause.HOST_LOST
    with pytest.raises(ValueError, match="4 is not a valid Kind"):
        Kind(4)
    with pytest.raises(ValueError, match=r"\[\] is not a valid Kind"):
        Kind([])


def test_members_have_names_and_an_order():
    assert [(code.name, code.value) for code in ExitCode] == [
        ("FINE", 0), ("FINDINGS", 1), ("USAGE", 2), ("ENVIRONMENT", 3), ("JOB_FAILED", 4), ("INTERRUPTED", 130),
    ]  # fmt: skip
    assert len(Kind) == len(set(Kind))


def test_copies_are_the_member_itself():
    assert pickle.loads(pickle.dumps(Cause.HOST_LOST)) is Cause.HOST_LOST
    assert copy.deepcopy(Kind.STEP) is Kind.STEP


def test_the_standard_ones_agree():
    standard = enum.IntEnum("ExitCode", {code.name: code.value for code in ExitCode})
    assert [(code.name, code.value, str(code)) for code in standard] == [
        (code.name, code.value, str(code)) for code in ExitCode
    ]
