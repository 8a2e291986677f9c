"""Before and after the probes: what they are handed to meet by, and what is said when nothing of them is found."""

import os
from collections.abc import Mapping

import pytest

from tests.launch.schedulers import environments as env
from topout.launch.job_result import JobResult
from topout.preflight.doctor import _let_probes_meet, _no_findings
from topout.preflight.probes.meeting import SECRET_VARIABLE
from topout.schema.run_folder import RunFolder


@pytest.mark.parametrize(("variables", "is_made"), [(env.SLURM_BATCH, True), (env.SLURM_TASK, False), ({}, False)])
def test_probes_that_the_doctor_starts_itself_get_a_secret_that_tasks_could_not_share(
    monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], is_made: bool
) -> None:
    monkeypatch.setattr(os, "environ", dict(variables))
    _let_probes_meet()
    first = os.environ.get(SECRET_VARIABLE, "")
    assert (len(first) == 32) == is_made
    _let_probes_meet()
    assert (os.environ.get(SECRET_VARIABLE, "") != first) == is_made, "each run has its own"


def test_where_nobody_sees_the_run_folder_that_is_what_is_said() -> None:
    note = "n1: /home/me/runs/1 is not there; the files of its ranks are in n1:/tmp/topout-runs-1000/1"
    ended = JobResult(exit_code=0, status="finished", folder=RunFolder("/home/me/runs/1"), notes=("2 ranks", note))
    error = _no_findings(ended, ["n1", "n2"])
    assert (error.problem, error.why) == ("No findings of 2 hosts.", note)
    assert "--runs DIR" in error.do
