"""Host lists mean what the scheduler means by them, and what cannot be read is named with its place."""

import subprocess
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topout.launch.node_list import (
    MOST_HOSTS,
    compress_counts,
    expand_counts,
    expand_hosts,
    read_host_file,
)
from topout.schema.errors import ExitCode, TopoutError

HOST_LISTS = [
    ("n1", "n1"),
    ("n[1-3]", "n1 n2 n3"),
    ("n[01-03,7],gpu-a[1-2]-ib0", "n01 n02 n03 n7 gpu-a1-ib0 gpu-a2-ib0"),
    ("n[08-11]", "n08 n09 n10 n11"),
    ("n[8-11]", "n8 n9 n10 n11"),
    ("n[099-101]", "n099 n100 n101"),
    ("n[3,1,2]", "n3 n1 n2"),
    ("r[1-2]n[01-02]", "r1n01 r1n02 r2n01 r2n02"),
    ("n[1-2][3-4]", "n13 n14 n23 n24"),
    # of three brackets the second is the slowest, as scontrol has it
    ("a[1-2]b[1-2]c[1-2]", "a1b1c1 a1b1c2 a2b1c1 a2b1c2 a1b2c1 a1b2c2 a2b2c1 a2b2c2"),
    ("n2,n1,n2,n[1-3]", "n2 n1 n3"),
    ("n1 n2\nn3", "n1 n2 n3"),
    ("n1.example.org,10.0.0.7", "n1.example.org 10.0.0.7"),
    ("[1-2]", "1 2"),
]


@pytest.mark.parametrize(("text", "names"), HOST_LISTS, ids=[text for text, _ in HOST_LISTS])
def test_a_host_list_is_written_out_in_order_and_without_repetition(text: str, names: str) -> None:
    assert expand_hosts(text, source="LIST") == tuple(names.split())


@pytest.mark.parametrize(
    ("text", "character", "why"),
    [
        ("n[1-3", 2, "never closed"),
        ("n1,n2]", 6, "never opened"),
        ("n[1-[2]]", 2, "inside another one"),
        ("n[]", 3, "'' is neither a number"),
        ("n[1,]", 5, "'' is neither a number"),
        ("n[01-03,x]", 9, "'x' is neither a number"),
        ("n[1-]", 3, "'1-' is neither"),
        ("n[-2]", 3, "'-2' is neither"),
        ("n1,n[5-3]", 6, "5-3 runs backwards"),
        ("n1;reboot", 3, "';' is no part of a host name"),
        ("--pty", 1, "starts with a letter or a digit"),
        ("a1,-x", 4, "starts with a letter or a digit"),
        ("", 1, "names no host"),
        (" , ", 1, "names no host"),
        ("n[1-99999999]", 3, "more than 65536 hosts"),
        ("n[1-300][1-300]", 9, "more than 65536 hosts"),
        ("n[1-40000],m[1-40000]", 12, "more than 65536 hosts"),
    ],
)
def test_a_list_that_cannot_be_read_is_named_with_its_place(text: str, character: int, why: str) -> None:
    with pytest.raises(TopoutError) as caught:
        expand_hosts(text, source="SLURM_JOB_NODELIST")
    assert f"SLURM_JOB_NODELIST cannot be read at character {character}:" in caught.value.problem
    assert why in caught.value.why
    assert caught.value.exit_code == ExitCode.ENVIRONMENT


def test_of_a_long_list_only_the_wrong_part_is_shown() -> None:
    names = ",".join(f"node{number}" for number in range(1000))
    with pytest.raises(TopoutError) as caught:
        expand_hosts(names + "]" + names, source="LIST")
    assert "node999]" in caught.value.problem
    assert len(caught.value.problem) < 200


def test_as_many_hosts_as_slurm_allows_are_read() -> None:
    assert len(expand_hosts(f"n[1-{MOST_HOSTS}]", source="LIST")) == MOST_HOSTS


numbers = st.integers(0, 120)
ranges = st.tuples(numbers, st.integers(0, 4), st.integers(1, 4)).map(lambda r: (r[0], r[0] + r[1], r[2]))
literals = st.text("abcxyz-", max_size=4)
brackets = st.lists(ranges, min_size=1, max_size=2)
items = st.tuples(st.sampled_from("nrg"), st.lists(st.tuples(brackets, literals), max_size=3))


def write(item: tuple) -> str:
    first, parts = item
    text = first
    for inside, literal in parts:
        text += f"[{','.join(f'{low:0{width}}-{high}' for low, high, width in inside)}]{literal}"
    return text


def naive(item: tuple) -> list[str]:
    """The names one by one; the last bracket turns fastest, then the first, the second, …"""
    first, parts = item
    choices = [
        [f"{number:0{len(f'{low:0{width}}')}}" for low, high, width in inside for number in range(low, high + 1)]
        for inside, _ in parts
    ]
    order = [*range(len(parts) - 2, -1, -1), len(parts) - 1] if parts else []
    names = []
    for chosen in product(*(choices[place] for place in order)):
        number_at = dict(zip(order, chosen, strict=True))
        names.append(first + "".join(number_at[place] + literal for place, (_, literal) in enumerate(parts)))
    return names


@settings(deadline=None)
@given(st.lists(items, min_size=1, max_size=4))
def test_writing_out_agrees_with_the_naive_way(written: list) -> None:
    names = list(dict.fromkeys(name for item in written for name in naive(item)))
    assert expand_hosts(",".join(map(write, written)), source="LIST") == tuple(names)


@pytest.mark.lab
def test_scontrol_writes_out_the_same(tmp_path: Path) -> None:
    """A real one; it needs a configuration and no daemon. This version knows no text after a bracket's end."""
    configuration = tmp_path / "slurm.conf"
    configuration.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=a\nPartitionName=p Nodes=a\n")
    texts = [text for text, _ in HOST_LISTS if "-ib0" not in text and "\n" not in text]
    texts += ["a[1-2]b[1-3]c[0-1]d[5,7]", "x[1-2]y[01-03]z[9-11,2]"]
    for text in texts:
        said = subprocess.run(
            ["scontrol", "show", "hostnames", text],
            env={"SLURM_CONF": str(configuration), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert expand_hosts(text, source="LIST") == tuple(dict.fromkeys(said.stdout.split())), text


@pytest.mark.parametrize(
    ("text", "counts"), [("4", (4,)), ("2(x3),1", (2, 2, 2, 1)), ("1(x2)", (1, 1)), ("4,1", (4, 1)), ("0,2", (0, 2))]
)
def test_counts_are_written_out_one_a_host(text: str, counts: tuple[int, ...]) -> None:
    assert expand_counts(text, source="COUNTS") == counts


@pytest.mark.parametrize("text", ["", "x", "2(3)", "2(x)", "2,,1", "-1", "2(x999999999)"])
def test_counts_that_cannot_be_read_are_named(text: str) -> None:
    with pytest.raises(TopoutError, match="SLURM_TASKS_PER_NODE cannot be read"):
        expand_counts(text, source="SLURM_TASKS_PER_NODE")


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_counts_survive_being_written(counts: list[int]) -> None:
    assert expand_counts(compress_counts(counts), source="COUNTS") == tuple(counts)


def test_counts_are_written_as_slurm_writes_them() -> None:
    assert compress_counts([2, 2, 2, 1]) == "2(x3),1"


def test_a_host_file_counts_slots_in_order(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("n2\nn1\n\n# a remark\nn2 more\n")
    assert list(read_host_file(str(path), source="HOSTFILE").items()) == [("n2", 2), ("n1", 1)]


@pytest.mark.parametrize(
    ("content", "why"), [(None, "No such file"), ("", "it is empty"), ("\n", "it is empty"), ("-x\n", "no host name")]
)
def test_a_host_file_that_cannot_be_read_is_named(tmp_path: Path, content: str | None, why: str) -> None:
    path = tmp_path / "hosts"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TopoutError) as caught:
        read_host_file(str(path), source="PBS_NODEFILE")
    assert str(path) in caught.value.problem
    assert "PBS_NODEFILE" in caught.value.why
    assert why in caught.value.why
    assert caught.value.exit_code == ExitCode.ENVIRONMENT


def test_a_folder_in_place_of_a_host_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopoutError, match="cannot be read"):
        read_host_file(str(tmp_path), source="PBS_NODEFILE")
