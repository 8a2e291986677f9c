"""A rank that was forked is to its script what a Python of its own would be."""

import json
from pathlib import Path

SCRIPT = """
import atexit, json, os, random, stat, sys, time
class Last:
    def __del__(self):
        os.write(1, b"deleted\\n")
last = Last()
atexit.register(os.write, 1, b"at exit\\n")
def is_odd(fd):
    try:
        mode = os.fstat(int(fd)).st_mode
    except OSError:
        return False
    return int(fd) > 2 and (stat.S_ISSOCK(mode) or "eventpoll" in os.readlink(f"/proc/self/fd/{fd}"))
print(json.dumps({
    "argv": sys.argv, "path": sys.path[0], "name": __name__, "draw": random.random(),
    "stdin": os.readlink("/proc/self/fd/0"), "leads_its_session": os.getsid(0) == os.getpid(),
    "left_open": [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_odd(fd)],
    "main": sys.modules["__main__"].__file__,
}))
print("no newline", end="")
# a rank that fails ends the job, so the other one must be gone by then
if os.environ["RANK"] == "1":
    open("other.tmp", "w").write(str(os.getpid()))
    os.rename("other.tmp", "other")
    sys.exit(0)
while not os.path.exists("other"):
    time.sleep(0.01)
while os.path.exists("/proc/" + open("other").read()):
    time.sleep(0.01)
sys.exit(5)
"""


def test_a_forked_rank_starts_and_ends_as_a_python_of_its_own(launch, tmp_path: Path) -> None:
    ended = launch(SCRIPT, "a", "--b", options=("-n", "2"))
    assert ended.code == 5
    (run,) = (tmp_path / "topout-runs").iterdir()
    outputs = [(run / f"logs/rank-0000{rank}.out").read_text() for rank in range(2)]
    told = [json.loads(output.splitlines()[0]) for output in outputs]
    for rank, output in zip(told, outputs, strict=True):
        draw = rank.pop("draw")
        assert 0 <= draw < 1
        assert rank == {
            "argv": ["train.py", "a", "--b"],
            "path": str(tmp_path),
            "name": "__main__",
            "stdin": "/dev/null",
            "leads_its_session": True,
            "left_open": [],
            "main": str(tmp_path / "train.py"),
        }
        assert output.splitlines()[1:] == ["no newlineat exit", "deleted"]


def test_forked_ranks_do_not_draw_the_same_numbers(launch, tmp_path: Path) -> None:
    launch("import random; print(random.random())", options=("-n", "3"))
    (run,) = (tmp_path / "topout-runs").iterdir()
    assert len({path.read_text() for path in (run / "logs").glob("*.out")}) == 3


UNFREEZES = """
import gc, os
opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(60)]
gc.freeze()
gc.unfreeze()
gc.collect()
for fd in opened:
    os.fstat(fd)
"""


def test_what_the_launcher_held_never_closes_what_is_the_scripts(launch) -> None:
    assert launch(UNFREEZES, options=("-n", "2")).code == 0
