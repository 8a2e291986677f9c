"""What all tests share: the command line as a process, an environment without torch, an account of what was skipped.

In CI (the variable CI is set) a skip fails the session, except for tests marked `gpu` or `soak`; those are listed. A
suite that may silently skip shrinks until it tests nothing.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

# a busy machine may take a second over a case of a millisecond; pytest-timeout ends what hangs
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

REPOSITORY = Path(__file__).resolve().parent.parent
MAY_BE_SKIPPED = ("gpu", "soak")
LABORATORY = {
    "ip": "iproute2",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "munged": "munge",
    "mpirun.openmpi": "openmpi-bin",
    "mpirun.mpich": "mpich",
    "numactl": "numactl",
    "hwloc-ls": "hwloc-nox",
    "sge_qmaster": "gridengine-master",
    "sge_execd": "gridengine-exec",
    "qsub": "gridengine-client",
}
"""Programs that tests marked lab run -> the Debian packages they come in; the Makefile installs them."""

_BLOCKER = """
import sys


class _NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError(f"{name} is blocked in this test")


sys.meta_path.insert(0, _NoTorch())
"""


@dataclass(frozen=True)
class Outcome:
    """How a `topout` process ended and what it said."""

    code: int
    stdout: str
    stderr: str


RunTopout = Callable[..., Outcome]


@pytest.fixture(scope="session")
def seed_of_commit() -> int:
    """Campaigns that run as samples draw others on every commit, and the same ones again on the same commit."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=REPOSITORY, check=False)
    return int(head.stdout[:8], 16) if head.returncode == 0 else 0


@pytest.fixture
def run_topout(tmp_path: Path) -> RunTopout:
    """Runs `python -m topout ARGS` with this interpreter; the working folder is the test's own unless given."""

    def run(
        args: Sequence[object],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
        before: Sequence[str] = (),
    ) -> Outcome:
        # A rank of the job under test must not take this process for its launcher.
        clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "TOPOUT_RUN")}
        done = subprocess.run(
            [*before, sys.executable, "-m", "topout", *map(str, args)],
            cwd=cwd or tmp_path,
            env={**clean, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def torchless(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables under which `import torch` fails, as on a laptop that only reads reports; pass them as `env`."""
    folder = tmp_path_factory.mktemp("torchless")
    (folder / "sitecustomize.py").write_text(_BLOCKER)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home folder, as in a container whose users are numbers alone; in the test's own folder."""

    def not_known(number: int) -> None:
        raise KeyError(number)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", not_known)
    monkeypatch.chdir(tmp_path)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run tests marked soak")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    has_lab_tests = any(item.get_closest_marker("lab") for item in items)
    absent = {
        "soak": None if config.getoption("--soak") else "soak: run by make soak",
        "gpu": None if Path("/dev/nvidiactl").exists() else "gpu: this machine has no NVIDIA GPU",
        "browser": None if shutil.which("chromium") else "browser: chromium is not installed",
        "lab": _no_laboratory() if has_lab_tests else None,
    }
    for item in items:
        for marker, reason in absent.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def _no_laboratory() -> str | None:
    """Why there can be no laboratory here; None where there can."""
    if os.geteuid() != 0:
        return "lab: needs root"
    search = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    missing = [package for program, package in LABORATORY.items() if not shutil.which(program, path=search)]
    if missing:
        return f"lab: not installed: {' '.join(missing)}"
    trial = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True, check=False
    )
    return f"lab: no namespaces here: {trial.stderr.strip()}" if trial.returncode else None


_skipped: dict[str, tuple[bool, str]] = {}
"""Test or file -> whether CI allows it to be skipped, and the reason."""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    outcome = yield
    report = outcome.get_result()
    if report.skipped and not hasattr(report, "wasxfail"):
        is_allowed = any(item.get_closest_marker(marker) for marker in MAY_BE_SKIPPED)
        _skipped[item.nodeid] = (is_allowed, _reason(report.longrepr))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _skipped[report.nodeid] = (False, _reason(report.longrepr))


def _reason(longrepr: object) -> str:
    text = str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ")


def _is_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """The account of a worker, where tests run in several."""
    _skipped.update(getattr(node, "workeroutput", {}).get("skipped", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["skipped"] = _skipped
    if _is_ci() and session.exitstatus == pytest.ExitCode.OK and not all(allowed for allowed, _ in _skipped.values()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _skipped:
        return
    terminalreporter.section("skipped")
    for name, (is_allowed, reason) in sorted(_skipped.items()):
        verdict = "allowed" if is_allowed else "NOT ALLOWED in CI" if _is_ci() else "skipped"
        terminalreporter.write_line(f"{verdict:18} {name}  ({reason})")
