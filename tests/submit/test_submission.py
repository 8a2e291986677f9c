"""What is asked of a scheduler, what it is given, and what is left behind when it says no."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from topout.launch.schedulers import slurm
from topout.schema.errors import TopoutError
from topout.submit.job_folder import JobFolder
from topout.submit.site import Site
from topout.submit.submission import Submission, scripts_of, submit, topout_words


def stub_plugin(command=("cat",)):
    """A scheduler that keeps what it was asked, and answers with the number 17."""
    plugin = SimpleNamespace(requests=[], TITLE="Stub")

    def directives(request):
        plugin.requests.append(request)
        return [f"#STUB --name={request.name} --nodes={request.nodes}", *request.extra]

    plugin.directives = directives
    plugin.submit_command = lambda script: [*command, str(script)]
    plugin.read_job_id = lambda output: "17" if output.startswith("#!/bin/bash") else None
    plugin.task_prefix = lambda request: ["start", f"--tasks={request.tasks_per_node}"]
    return plugin


def submission(folder: Path, **changes) -> Submission:
    plugin = changes.pop("plugin", None) or stub_plugin()
    values = {
        "scheduler": "slurm",
        "plugin": plugin,
        "site": Site(time="2h"),
        "nodes": 4,
        "ranks_per_node": None,
        "options": (),
        "script_words": ("train.py", "--lr", "0.1"),
        "name": "train",
        "folder": folder,
        "runs": folder / "topout-runs",
        **changes,
    }
    return Submission(**values)


def topout_line(script):
    return next(line for line in script.splitlines() if " run" in line and line.endswith("&"))


def test_a_dry_run_writes_nothing_and_shows_the_next_folder(tmp_path):
    (script,) = scripts_of(submission(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert f"{tmp_path}/topout-runs/jobs/" in script
    assert script.startswith("#!/bin/bash -l\n#STUB --name=train --nodes=4\n")


def test_a_submitted_job_is_the_one_that_was_shown(tmp_path):
    asked = submission(tmp_path)
    (shown,) = scripts_of(asked)
    job, _ = submit(asked)
    assert job.script.read_text() == shown
    assert os.access(job.script, os.X_OK)
    assert (job.scheduler, job.job_ids()) == ("slurm", ["17"])
    assert json.loads(job.job_json.read_text())["script"] == ["train.py", "--lr", "0.1"]


def test_two_submissions_get_two_folders(tmp_path):
    first, second = (submit(submission(tmp_path))[0] for _ in range(2))
    assert first.path.name.removesuffix("-1") == second.path.name.removesuffix("-2")


def test_what_is_settled_reaches_the_scheduler(tmp_path):
    plugin = stub_plugin()
    site = Site(time="2h", account="a", partition="p", qos="", gpus_per_node=4, memory="8G", switches=1, lines=("#X",))
    scripts_of(submission(tmp_path, plugin=plugin, site=site, ranks_per_node=4))
    (request,) = plugin.requests
    assert (request.nodes, request.tasks_per_node, request.gpus_per_node, request.time_s) == (4, 4, 4, 7200)
    assert (request.account, request.partition, request.qos, request.memory) == ("a", "p", None, "8G")
    assert (request.switches, request.extra, request.warn_s, request.is_requeued) == (1, ("#X",), 90, True)
    assert request.working_folder == tmp_path
    assert request.output.name == "output.txt"


@pytest.mark.parametrize(
    ("time", "warn_s", "effective_s"),
    [("2h", None, 90), ("3m", None, None), ("181s", None, 90), ("2h", 0, None), ("2h", 600, 600), ("3m", 100, 100)],
)
def test_a_job_is_warned_where_its_time_leaves_room(tmp_path, time, warn_s, effective_s):
    asked = submission(tmp_path, site=Site(time=time, warn_s=warn_s))
    assert asked.warn_s == effective_s
    (script,) = scripts_of(asked)
    assert ("scontrol requeue" in script) == (effective_s is not None)


@pytest.mark.parametrize(("scheduler", "is_timed"), [("slurm", False), ("lsf", True), ("pbs", True), ("sge", True)])
def test_a_script_looks_at_the_clock_where_its_scheduler_does_not_warn(tmp_path, scheduler, is_timed):
    (script,) = scripts_of(submission(tmp_path, scheduler=scheduler))
    clock = "timeout --foreground --preserve-status -s USR1 $((7110 > SECONDS ? 7110 - SECONDS : 1)) "
    assert (clock in script) == is_timed
    (script,) = scripts_of(submission(tmp_path, scheduler=scheduler, site=Site(time="2h", warn_s=0)))
    assert "timeout" not in script


def test_a_scheduler_that_does_not_warn_is_not_asked_to(tmp_path):
    for scheduler, warn_s in (("slurm", 90), ("lsf", None), ("sge", None)):
        plugin = stub_plugin()
        scripts_of(submission(tmp_path, scheduler=scheduler, plugin=plugin))
        assert (plugin.requests[0].warn_s, plugin.requests[0].is_requeued) == (warn_s, True)


def test_a_warning_longer_than_the_job_is_refused(tmp_path):
    with pytest.raises(TopoutError, match="not possible"):
        scripts_of(submission(tmp_path, site=Site(time="60s", warn_s=60, origins={"warn_s": "site.toml:2"})))


def test_a_job_that_must_not_requeue_does_not(tmp_path):
    (script,) = scripts_of(submission(tmp_path, site=Site(time="2h", requeue=False)))
    assert "requeue" not in script
    assert "trap" in script, "the warning still reaches the script"


def test_a_job_without_a_time_is_not_submitted(tmp_path):
    with pytest.raises(TopoutError, match="How long may the job run"):
        submit(submission(tmp_path, site=Site()))
    assert not list(tmp_path.glob("topout-runs/jobs/*"))


def test_topout_is_called_where_the_job_finds_it(tmp_path, monkeypatch):
    assert topout_words(Site(venv="/v")) == topout_words(Site(conda="c")) == ["topout"]
    assert topout_words(Site(container="i.sif")) == ["python3", "-P", "-m", "topout"]
    installed = Path(sys.executable).with_name("topout")
    assert topout_words(Site()) == [str(installed)]
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert topout_words(Site()) == [str(tmp_path / "python"), "-P", "-m", "topout"]


def test_in_a_container_the_scheduler_starts_every_rank(tmp_path):
    plugin = stub_plugin()
    site = Site(time="2h", container="/i.sif", gpus_per_node=2)
    (script,) = scripts_of(submission(tmp_path, plugin=plugin, site=site, ranks_per_node=2, options=("--steps", "9")))
    inside = '"$container" exec --nv /i.sif python3 -P -m topout run --steps 9 train.py --lr 0.1'
    assert topout_line(script) == f"start --tasks=2 {inside} &"


def test_a_container_alone_gets_whole_nodes_and_one_rank_on_each(tmp_path):
    site = Site(time="2h", container="/i.sif")
    (script,) = scripts_of(submission(tmp_path, plugin=slurm, site=site))
    assert "#SBATCH --exclusive\n" in script
    assert "srun --ntasks=4 --ntasks-per-node=1 " in topout_line(script)


@pytest.mark.parametrize(("scheduler", "is_named"), [("slurm", False), ("sge", False), ("pbs", True), ("flux", True)])
def test_tasks_in_a_container_are_told_the_first_host_where_nothing_else_does(tmp_path, scheduler, is_named):
    asked = submission(tmp_path, scheduler=scheduler, site=Site(time="2h", container="/i.sif"))
    for script in scripts_of(replace(asked, evaluation_words=("eval.py",))):
        assert ('\nexport TOPOUT_HEAD="$(hostname)"  #' in script) == is_named
    (script,) = scripts_of(replace(asked, site=Site(time="2h")))
    assert "TOPOUT_HEAD" not in script, "outside of an image topout starts the ranks, and needs to be told nothing"


def test_a_script_that_looks_like_an_option_stays_a_script(tmp_path):
    (script,) = scripts_of(submission(tmp_path, script_words=("-odd.py", "-n")))
    assert topout_line(script).endswith(" run -- -odd.py -n &")


REFUSALS = {
    "no": (["bash", "-c", "echo invalid account >&2; exit 1"], "invalid account"),
    "absent": (["no-such-sbatch"], "No such file or directory: 'no-such-sbatch'"),
    "silent": (["false"], "exit code 1"),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_a_refused_job_leaves_nothing_behind(tmp_path, why):
    command, said = REFUSALS[why]
    with pytest.raises(TopoutError) as caught:
        submit(submission(tmp_path, plugin=stub_plugin(command)))
    assert said in caught.value.why
    assert caught.value.exit_code == 3
    assert not list(tmp_path.glob("topout-runs/jobs/*"))


def test_a_full_disk_is_said_and_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(TopoutError, match="cannot be kept") as caught:
        submit(submission(tmp_path))
    assert caught.value.why == "No space left on device"
    assert not list(tmp_path.glob("topout-runs/jobs/*"))


def test_a_job_whose_number_cannot_be_read_is_kept(tmp_path):
    job, _ = submit(submission(tmp_path, plugin=stub_plugin(["echo"])))
    assert job.script.exists()
    assert job.job_id is None


def test_an_evaluation_waits_for_the_success_of_the_training(tmp_path):
    site = Site(time="2h", gpus_per_node=4, lines=("#X",))
    plugin = stub_plugin()
    asked = submission(tmp_path, plugin=plugin, site=site, ranks_per_node=4, evaluation_words=("eval.py", "a b"))
    job, evaluation_id = submit(asked)
    assert evaluation_id == "17"
    *_, training, evaluation = plugin.requests
    assert (training.nodes, training.tasks_per_node, training.extra) == (4, 4, ("#X",))
    assert (evaluation.nodes, evaluation.tasks_per_node, evaluation.gpus_per_node) == (1, 1, 1)
    assert evaluation.extra == ("#SBATCH --dependency=afterok:17", "#SBATCH --kill-on-invalid-dep=yes", "#X")
    text = job.eval_script.read_text()
    assert topout_line(text).endswith(f" run -n 1 --nodes 1 --runs {tmp_path}/topout-runs eval.py 'a b' &")
    assert "requeue" not in text and "TOPOUT_JOB" not in text
    assert len(scripts_of(asked)) == 2


def test_an_evaluation_reads_the_packs_of_the_training(tmp_path):
    options = ("--steps", "9", "--packs", "a b.pack", "--packs", "/data=c.pack", "--ddp")
    _, evaluation = scripts_of(submission(tmp_path, options=options, evaluation_words=("eval.py",)))
    assert topout_line(evaluation).endswith("/topout-runs --packs 'a b.pack' --packs /data=c.pack eval.py &")


@pytest.mark.parametrize(
    ("scheduler", "line"),
    [("pbs", "qsub "), ("flux", "flux --parent batch "), ("sge", "env -u PE_HOSTFILE qsub -terse ")],
)
def test_a_job_that_changes_its_number_submits_its_evaluation_itself(tmp_path, scheduler, line):
    asked = submission(tmp_path, scheduler=scheduler, evaluation_words=("eval.py",))
    job, evaluation_id = submit(asked)
    assert evaluation_id is None
    assert f'[ "$code" -ne 0 ] || {line}{job.eval_script}\n' in job.script.read_text()
    assert job.eval_script.exists()
    waiting = replace(asked, site=Site(time="2h", requeue=False))
    job, evaluation_id = submit(waiting)
    assert evaluation_id == "17"
    assert str(job.eval_script) not in job.script.read_text()


def test_grid_engine_takes_back_a_job_of_one_node_and_not_one_of_several(tmp_path):
    (one,) = scripts_of(submission(tmp_path, scheduler="sge", nodes=1))
    (several,) = scripts_of(submission(tmp_path, scheduler="sge", nodes=2))
    assert "    exit 99\n" in one and "qsub" not in one
    assert '    env -u PE_HOSTFILE qsub -terse "$TOPOUT_JOB/job.sh" >> "$TOPOUT_JOB/job_ids" || exit 99\n' in several


def test_an_evaluation_on_grid_engine_leaves_out_the_parallel_environment(tmp_path):
    site = Site(time="2h", lines=("#$ -pe mpi 64", "#$ -l gpu=1"))
    training, evaluation = scripts_of(submission(tmp_path, scheduler="sge", site=site, evaluation_words=("eval.py",)))
    assert "#$ -pe mpi 64\n" in training and "#$ -l gpu=1\n" in training
    assert "-pe" not in evaluation and "#$ -l gpu=1\n" in evaluation


def test_a_scheduler_that_does_not_answer_may_have_taken_the_job(tmp_path, monkeypatch):
    monkeypatch.setattr("topout.submit.submission._ANSWER_WITHIN_S", 0.05)
    with pytest.raises(TopoutError, match="Stub did not answer; the job may be in line") as caught:
        submit(submission(tmp_path, plugin=stub_plugin(["sh", "-c", "exec sleep 9"])))
    assert "before you submit again" in caught.value.do
    (folder,) = (tmp_path / "topout-runs/jobs").iterdir()
    assert JobFolder(folder).script.exists()


@pytest.mark.parametrize(
    ("answer", "limit_s", "problem", "do"),
    [
        ("echo bad qos >&2; exit 1", 60, "Job 17 is submitted, its evaluation is not.", "mend what it names in "),
        ("exec sleep 60", 2, "Job 17 is submitted, its evaluation perhaps.", "look at your jobs"),
    ],
)
def test_an_evaluation_that_is_refused_leaves_the_training_in_line(tmp_path, monkeypatch, answer, limit_s, problem, do):
    monkeypatch.setattr("topout.submit.submission._ANSWER_WITHIN_S", limit_s)
    only_training = ["sh", "-c", f'case "$0" in *eval.sh) {answer};; esac; cat "$0"']
    with pytest.raises(TopoutError) as caught:
        submit(submission(tmp_path, plugin=stub_plugin(only_training), evaluation_words=("eval.py",)))
    assert (caught.value.problem, caught.value.exit_code) == (problem, 3)
    assert caught.value.do.startswith(do)
    (folder,) = (tmp_path / "topout-runs/jobs").iterdir()
    assert JobFolder(folder).job_id == "17"
    assert JobFolder(folder).eval_script.exists()


def test_an_evaluation_that_nothing_can_wait_for_is_said(tmp_path):
    asked = submission(tmp_path, scheduler="from-outside", evaluation_words=("eval.py",))
    with pytest.raises(TopoutError, match="its evaluation is not"):
        submit(asked)
    (folder,) = (tmp_path / "topout-runs/jobs").iterdir()
    assert JobFolder(folder).job_id == "17", "the training is in line all the same"


def test_every_script_is_good_bash(tmp_path):
    for scheduler in ("slurm", "lsf", "pbs", "sge", "flux", "from-outside"):
        for site in (Site(time="2h"), Site(time="2h", container="i"), Site(time="2h", conda="c", modules=("m",))):
            for script in scripts_of(
                submission(tmp_path, scheduler=scheduler, site=site, evaluation_words=("eval.py", "it's"))
            ):
                subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_a_job_whose_number_cannot_be_kept_is_said_to_be_in_line(tmp_path, monkeypatch):
    write = Path.write_text

    def full(path, *words, **more):
        if path.name == "job_ids":
            raise OSError(28, "No space left on device")
        return write(path, *words, **more)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(TopoutError, match="is submitted, and topout cannot keep its number") as caught:
        submit(submission(tmp_path))
    assert "do not submit it again" in caught.value.do
    assert len(list(tmp_path.glob("topout-runs/jobs/*/job.sh"))) == 1
