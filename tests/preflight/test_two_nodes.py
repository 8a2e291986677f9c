"""Two nodes of the laboratory: own addresses, own clocks, a link of one gigabit, and everything is found out."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.nodes import BOOTED_APART_S, Nodes
from tests.lab.slurm import Slurm
from tests.preflight.samples import named_check
from topout.preflight.check import Verdict
from topout.preflight.diagnosis import Diagnosis, diagnose
from topout.preflight.doctor import read_findings
from topout.preflight.orders import Orders
from topout.preflight.table import render
from topout.schema.run_folder import RunFolder

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with Nodes() as laboratory:
        yield laboratory


def examine(nodes: Nodes, folder: Path, orders: Orders) -> Diagnosis:
    variables = {
        "GROUP_WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": nodes[0].address,
        "MASTER_PORT": "29555",
        "TOPOUT_RUN": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "topout.preflight.probes.host", orders.to_text()]
    probes = [
        node.popen(command, env={**variables, "GROUP_RANK": str(number)}, cwd=folder)
        for number, node in enumerate(nodes)
    ]
    for probe in probes:
        _, errors = probe.communicate(timeout=240)
        assert probe.returncode == 0, errors
    hosts = read_findings(RunFolder(folder))
    return diagnose(hosts, num_hosts=2, absent=[], sweeps=False, started_at="", duration_s=0.0)


def test_link_clocks_and_hosts_are_found_out(nodes: Nodes, tmp_path: Path) -> None:
    # a busy machine imports torch slowly, and that is not what is tested
    diagnosis = examine(nodes, tmp_path, Orders(data=str(tmp_path), limit_s=150.0))
    assert [(facts.host, facts.address, facts.interface) for facts in diagnosis.hosts] == [
        ("n1", nodes[0].address, "eth0"),
        ("n2", nodes[1].address, "eth0"),
    ]
    assert [facts.not_measured for facts in diagnosis.hosts] == [{}, {}]
    assert {check.name for check in diagnosis.checks if check.verdict is Verdict.UNFIT} == set()
    links = {(link.link_class, link.operation): link for link in diagnosis.links}
    assert set(links) == {
        ("within a host", "point-to-point"),
        ("within a host", "all-reduce"),
        ("between hosts", "point-to-point"),
        ("between hosts", "all-reduce"),
    }
    # a gigabit is 125 MB/s; the shaper lets a burst of small messages through at once, which bends the line
    for across in (links["between hosts", "point-to-point"], links["between hosts", "all-reduce"]):
        assert 60e6 < across.largest_bytes_per_s < 126e6
    checks = list(diagnosis.checks)
    slow = named_check(checks, "point-to-point between hosts")
    assert slow.verdict is Verdict.WARNING and "is eth0 the fast network?" in str(slow.fix)
    (first, *_) = diagnosis.hosts[0].clocks
    assert first.host == "n2"
    assert first.monotonic_offset_s == pytest.approx(BOOTED_APART_S, abs=first.uncertainty_s + 1e-6)
    assert named_check(checks, "time of day").verdict is Verdict.FINE
    assert "times as long as alone" in named_check(checks, "python, 2 hosts at once").value
    assert render(diagnosis, width=110, color=False).splitlines()[0].split("·")[0].endswith("2 hosts: n1, n2 ")
    assert [path.name for path in tmp_path.iterdir()] == ["doctor"]


def test_a_node_that_cannot_be_reached_is_named_and_both_report(nodes: Nodes, tmp_path: Path) -> None:
    nodes[1].set_link(up=False)
    try:
        diagnosis = examine(nodes, tmp_path, Orders(limit_s=4.0))
    finally:
        nodes[1].mend_link()
    assert diagnosis.is_unfit
    check = named_check(list(diagnosis.checks), "meeting")
    assert check.hosts == ("n1", "n2")
    assert "n1: 1 of 2 hosts did not come" in check.value
    assert f"n2: {nodes[0].address}:29555" in check.value


def test_every_task_of_a_slurm_job_takes_part_and_one_reports(nodes: Nodes, tmp_path: Path) -> None:
    with Slurm(nodes, tmp_path / "slurm") as slurm:
        words = ["srun", "-N2", "-n2", sys.executable, "-m", "topout", "doctor", "--json", "--runs", tmp_path / "runs"]
        done = slurm.run(words, cwd=tmp_path, timeout=240)
    document = json.loads(done.stdout)
    assert done.returncode == (3 if document["verdict"] == "unfit" else 0), done.stderr
    assert [host["host"] for host in document["hosts"]] == ["n1", "n2"]
    assert {link["link_class"] for link in document["links"]} == {"within a host", "between hosts"}
    (kept,) = (tmp_path / "runs").glob("doctor/*/doctor.json")
    assert json.loads(kept.read_text()) == document


def test_hosts_that_share_neither_home_nor_run_folder_are_examined_from_a_batch_script(
    nodes: Nodes, tmp_path: Path, torchless: dict[str, str]
) -> None:
    (tmp_path / "runs").mkdir()
    nodes[0].run(["mount", "-t", "tmpfs", "none", tmp_path / "runs"], check=True)
    script = f"""
export XDG_CONFIG_HOME=/proc/no-home TMPDIR={tmp_path} PYTHONPATH={torchless["PYTHONPATH"]}
{sys.executable} -m topout doctor --json --quiet --runs {tmp_path}/runs > {tmp_path}/document.json
"""
    try:
        with Slurm(nodes, tmp_path / "slurm") as slurm:
            job = slurm.sbatch(script, "-N2", "--ntasks-per-node=1", cwd=tmp_path)
            slurm.wait(job, timeout=240)
            said = slurm.output(job)
    finally:
        nodes[0].run(["umount", tmp_path / "runs"])
    document = json.loads((tmp_path / "document.json").read_text())
    assert [host["host"] for host in document["hosts"]] == ["n1", "n2"], said
    checks = {check["name"]: check for check in document["checks"]}
    assert (checks["hosts"]["verdict"], "meeting" in checks) == ("fine", False)
    assert (checks["run folder: shared"]["verdict"], checks["run folder: shared"]["hosts"]) == ("warning", ["n2"])
