"""Memory that a step frees stays with the process: asked for by a flag, told in the recording, quiet elsewhere."""

import json
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from tests.conftest import REPOSITORY
from topout.api import train
from topout.record import kept_memory

# huge pages off, so that a page is what getrusage counts whatever the machine's are set to
COUNT = """
import ctypes, json, os, resource, sys, threading
from topout.record import kept_memory
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)

def step():
    return [b"x" * (size << 20) for size in (4, 40, 8, 50)]

def faults():
    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

why_not = kept_memory.keep() if "keep" in sys.argv else "not asked"
found = {"why_not": why_not, "itself": faults()}
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, str(faults()).encode())
    os._exit(0)
os.wait()
print(json.dumps(found | {"child": int(os.read(reader, 99))}))
"""
LARGE_PAGES = 5 * (90 << 20) // resource.getpagesize()
"""Of all blocks that glibc maps each by itself whatever it has learned: those of 32 MiB and more."""


def counted(*words, **variables):
    done = subprocess.run(
        [sys.executable, "-c", COUNT, *words],
        env={"PYTHONPATH": str(REPOSITORY), **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)


def test_kept_memory_is_there_again_without_page_faults_and_in_forked_children_too():
    plain, kept = counted(), counted("keep")
    assert plain["itself"] >= LARGE_PAGES
    assert kept["why_not"] is None
    assert kept["itself"] < plain["itself"] / 20
    assert kept["child"] < plain["child"] / 20


@pytest.mark.parametrize(
    ("name", "value", "why_not"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "131072", "MALLOC_TRIM_THRESHOLD_ is set"),
        ("MALLOC_MMAP_THRESHOLD_", "131072", "MALLOC_MMAP_THRESHOLD_ is set"),
        ("MALLOC_MMAP_MAX_", "65536", "MALLOC_MMAP_MAX_ is set"),
        ("MALLOC_TOP_PAD_", "131072", "MALLOC_TOP_PAD_ is set"),
        (
            "GLIBC_TUNABLES",
            "glibc.malloc.tcache_count=7:glibc.malloc.mmap_threshold=131072",
            "GLIBC_TUNABLES=glibc.malloc.mmap_threshold=131072 is set",
        ),
    ],
)
def test_what_the_user_has_set_of_glibc_stands(name, value, why_not):
    found = counted("keep", **{name: value})
    assert found["why_not"] == why_not
    assert found["itself"] >= LARGE_PAGES


@pytest.mark.parametrize(
    "variables", [{"MALLOC_ARENA_MAX": "1"}, {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=7"}], ids=str
)
def test_settings_of_other_things_are_no_obstacle(variables):
    assert counted("keep", **variables)["why_not"] is None


def test_another_allocator_is_left_alone_though_its_mallopt_says_yes(tmp_path):
    """As of tcmalloc; this one is glibc's under other addresses, so nothing may have changed."""
    (tmp_path / "other.c").write_text(
        "#include <stddef.h>\n"
        "void *__libc_malloc(size_t); void *__libc_calloc(size_t, size_t); void *__libc_realloc(void *, size_t);\n"
        "void *malloc(size_t size) { return __libc_malloc(size); }\n"
        "void *calloc(size_t number, size_t size) { return __libc_calloc(number, size); }\n"
        "void *realloc(void *block, size_t size) { return __libc_realloc(block, size); }\n"
        "int mallopt(int name, int value) { (void)name; (void)value; return 1; }\n"
    )
    library = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "other.c"], check=True)
    found = counted("keep", LD_PRELOAD=str(library))
    assert found["why_not"] == "another allocator is in use"
    assert found["itself"] >= LARGE_PAGES


def test_where_it_is_not_possible_the_reason_comes_back_and_nothing_is_raised(monkeypatch):
    def no_such_library(name, mode=0):
        raise OSError(f"{name}: cannot open shared object file")

    for name in kept_memory._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("ctypes.CDLL", no_such_library)
    assert kept_memory.keep() == "the C library is not glibc"
    monkeypatch.setitem(sys.modules, "ctypes", None)
    assert kept_memory.keep().startswith("ModuleNotFoundError: ")


TRAIN = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)
import torch
if "init" in sys.argv:
    import topout
    topout.init(keep_memory="unless" not in sys.argv)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
batch = torch.randn(200_000, 64)
start_s, num_steps = time.monotonic(), 0
# long enough for the sampler, however fast the machine
while num_steps < 20 or time.monotonic() < start_s + 4:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    num_steps += 1
"""
BLOCK_PAGES = 200_000 * 64 * 4 // resource.getpagesize()
"""Of the output of a step, and of five more like it: its square, gradients and what those are made from."""


@pytest.fixture
def trained(run_topout, tmp_path):
    def run(flags=(), words=(), env=None, table=""):
        (tmp_path / "train.py").write_text(TRAIN)
        (tmp_path / "topout.toml").write_text(f"[run]\n{table}")
        done = run_topout(["run", "-n", 1, *flags, "train.py", *words], env=env)
        assert done.code == 0, done.stderr
        (folder,) = (tmp_path / "topout-runs").iterdir()
        return json.loads((folder / "analysis.json").read_text()), json.loads((folder / "run.json").read_text())

    return run


def test_a_run_that_gives_memory_back_counts_its_faults_and_is_advised_to_keep_it(trained):
    analysis, _ = trained()
    memory = analysis["measures"]["memory"]
    assert not memory["is_kept"]
    assert memory["faults_per_step"] > 3 * BLOCK_PAGES
    assert 0 < memory["fault_share"] <= 1
    assert "ME04" in [finding["code"] for finding in analysis["findings"]]


@pytest.mark.parametrize(
    ("flags", "words", "table"),
    [(["--keep-memory"], [], ""), ([], [], "keep_memory = true"), ([], ["init"], "")],
    ids=["by the flag", "by the file", "by init()"],
)
def test_a_run_that_keeps_memory_says_so_and_takes_few_faults(trained, flags, words, table):
    analysis, run = trained(flags, words, table=table)
    memory = analysis["measures"]["memory"]
    assert memory["is_kept"]
    # some while its heap grows
    assert memory["faults_per_step"] < BLOCK_PAGES
    assert "ME04" not in [finding["code"] for finding in analysis["findings"]]
    assert run["notes"] == []


def test_init_gives_memory_back_where_it_is_told_to(trained):
    analysis, _ = trained(words=["init", "unless"])
    assert not analysis["measures"]["memory"]["is_kept"]
    assert analysis["measures"]["memory"]["faults_per_step"] > 3 * BLOCK_PAGES


@pytest.mark.parametrize(("device", "num_calls"), [("cpu", 1), ("cuda:0", 0)])
def test_init_keeps_memory_once_and_on_cpus_alone(monkeypatch, device, num_calls):
    calls = []
    monkeypatch.setattr(train, "_context", None)
    monkeypatch.setattr(train, "_join", lambda *_: SimpleNamespace(device=torch.device(device)))
    monkeypatch.setattr(kept_memory, "keep", lambda: calls.append(1))
    assert train.init() is train.init()
    assert len(calls) == num_calls


def test_a_run_that_cannot_keep_memory_says_why(trained):
    analysis, run = trained(["--keep-memory", "--steps", "20"], env={"MALLOC_MMAP_MAX_": "65536"})
    assert not analysis["measures"]["memory"]["is_kept"]
    (note,) = run["notes"]
    assert "--keep-memory changes nothing: MALLOC_MMAP_MAX_ is set" in note


def test_memory_is_kept_without_a_recording_too(run_topout, tmp_path):
    (tmp_path / "count.py").write_text(COUNT)
    found = {}
    for flags in ((), ("--keep-memory",)):
        done = run_topout(["run", "-q", "-n", 1, "--no-record", *flags, "count.py"])
        assert done.code == 0, done.stderr
        found[flags] = json.loads(done.stdout)["itself"]
    assert found["--keep-memory",] < found[()] / 20
