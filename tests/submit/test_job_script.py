"""The job script does in a real bash what it says: arguments arrive, warnings are passed on, stopped jobs requeue."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.launch.jobs import wait_for
from topout.submit.job_script import environment, in_container, job_script
from topout.submit.queues import QUEUES, Queue, queue_of
from topout.submit.quoting import joined
from topout.submit.site import Site

TOPOUT = f"""#!{sys.executable}
import json, os, signal, sys, time
heard = []
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, frame: heard.append(signal.Signals(number).name))
def say(**content):
    with open(os.environ["HEARD"] + ".tmp", "w") as file:
        json.dump(dict(argv=sys.argv[1:], cwd=os.getcwd(), job=os.environ.get("TOPOUT_JOB"), **content), file)
    os.rename(file.name, os.environ["HEARD"])
say(heard=[])
code = int(os.environ.get("CODE", "0"))
num_signals = int(os.environ.get("NUM_SIGNALS", "0"))
num_said = 0
while num_said < num_signals:
    time.sleep(0.01)
    if len(heard) > num_said:
        num_said = len(heard)
        say(heard=heard)
# Python takes its handlers back while it leaves, and a late warning would end it
os._exit(code)
"""
"""Plays topout: tells what it was called with and which signals it heard, and leaves with CODE."""

ECHO = '#!/bin/bash\necho "$(basename "$0") $*" >> "$CALLS"\n'


def program(path: Path, text: str) -> None:
    """Put in place at once: a program that is being written cannot be started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}")
    beside.write_text(text)
    beside.chmod(0o755)
    beside.replace(path)


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bin")
    program(folder / "topout", TOPOUT)
    for name in ("scontrol", "qsub", "flux"):
        program(folder / name, ECHO)
    return folder


class Job:
    """A job script as a process, with everything it calls replaced by stubs."""

    def __init__(self, folder: Path, bin_folder: Path, text: str, **env: object) -> None:
        self.heard_at = folder / "heard.json"
        self.heard_at.unlink(missing_ok=True)
        self.calls_at = folder / "calls"
        self.calls_at.unlink(missing_ok=True)
        script = folder / "job.sh"
        script.write_bytes(text.encode("utf-8", "surrogateescape"))
        variables = {
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "HEARD": self.heard_at,
            "CALLS": self.calls_at,
            **env,
        }
        self.process = subprocess.Popen(
            ["bash", str(script)],
            env={**os.environ, **{name: str(value) for name, value in variables.items()}},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def heard(self):
        return json.loads(self.heard_at.read_text())

    def end(self):
        """Exit code, stdout, stderr."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


def write_script(folder, *words, site=None, queue=None, **options):
    return job_script(
        ["#SBATCH --nodes=1"],
        site or Site(),
        joined(["topout", "run", *words]),
        folder=folder,
        queue=queue or Queue(),
        **options,
    )


def test_a_whole_script_reads_well(tmp_path):
    site = Site(modules=("gcc/12", "cuda"), venv="/v", before=("export A=1",))
    text = job_script(
        ["#SBATCH --nodes=4"],
        site,
        "topout run train.py",
        folder=Path("/home/me/project"),
        queue=QUEUES["slurm"],
        job=Path("/home/me/project/topout-runs/jobs/1"),
    )
    head, _, rest = text.partition("\n# written by topout submit ")
    assert head == "#!/bin/bash -l\n#SBATCH --nodes=4"
    assert (
        rest.partition("\n")[2]
        == """
set -euo pipefail
export TOPOUT_JOB=/home/me/project/topout-runs/jobs/1

set +u  # modules and environments read variables that need not be set
module load gcc/12 cuda
source /v/bin/activate
set -u
cd /home/me/project
export A=1

# the warning before the end reaches the script as topout.should_stop()
run=
trap '[ -z "$run" ] || kill -USR1 "$run" 2> /dev/null || true' USR1 USR2
trap '[ -z "$run" ] || kill -TERM "$run" 2> /dev/null || true' TERM
topout run train.py &
run=$!
while kill -0 "$run" 2> /dev/null; do wait "$run" || true; done
code=0
wait "$run" || code=$?

if [ "$code" -eq 75 ]; then
    # it saved and stopped when it was asked to: in line again, to go on from there
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_characters="\0")), max_size=5))
def test_arguments_arrive_as_typed(tmp_path, bin_folder, words):
    try:
        [os.fsencode(word) for word in words]
    except UnicodeEncodeError:
        return  # no command line can hold it
    job = Job(tmp_path, bin_folder, write_script(tmp_path, "train.py", *words))
    assert job.end() == (0, "", "")
    assert job.heard()["argv"] == ["run", "train.py", *words]


def test_folder_and_job_may_have_any_name(tmp_path, bin_folder):
    folder = tmp_path / "it's a $HOME"
    folder.mkdir()
    job = Job(tmp_path, bin_folder, write_script(folder, "train.py", job=folder / "job 1"))
    assert job.end()[0] == 0
    assert (job.heard()["cwd"], job.heard()["job"]) == (str(folder), str(folder / "job 1"))


@pytest.mark.parametrize("sent", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_warning_is_passed_on_and_the_job_requeued_once_it_has_stopped(tmp_path, bin_folder, sent):
    text = write_script(tmp_path, "train.py", queue=QUEUES["slurm"])
    job = Job(tmp_path, bin_folder, text, NUM_SIGNALS=1, CODE=75, SLURM_JOB_ID=17)
    assert wait_for(job.heard_at.exists)
    job.process.send_signal(sent)
    assert job.end()[0] == 75
    assert job.heard()["heard"] == ["SIGUSR1"]
    assert job.calls_at.read_text() == "scontrol requeue 17\n"


def test_termination_is_passed_on_and_nothing_requeued(tmp_path, bin_folder):
    text = write_script(tmp_path, "train.py", queue=QUEUES["slurm"])
    job = Job(tmp_path, bin_folder, text, NUM_SIGNALS=2, CODE=143, SLURM_JOB_ID=17)
    assert wait_for(job.heard_at.exists)
    job.process.send_signal(signal.SIGUSR1)
    assert wait_for(lambda: job.heard()["heard"] == ["SIGUSR1"])
    job.process.send_signal(signal.SIGTERM)
    assert job.end()[0] == 143
    assert job.heard()["heard"] == ["SIGUSR1", "SIGTERM"]
    assert not job.calls_at.exists()


def test_the_script_warns_where_the_scheduler_does_not(tmp_path, bin_folder):
    text = write_script(tmp_path, "train.py", "a b", queue=QUEUES["pbs"], job=tmp_path, warn_after_s=2)
    job = Job(tmp_path, bin_folder, text, NUM_SIGNALS=1, CODE=75)
    assert job.end()[0] == 75
    assert (job.heard()["heard"], job.heard()["argv"]) == (["SIGUSR1"], ["run", "train.py", "a b"])
    assert job.calls_at.read_text() == f"qsub {tmp_path}/job.sh\n"


def test_a_job_that_was_warned_long_before_its_time_does_not_submit_itself_again(tmp_path, bin_folder):
    text = write_script(tmp_path, "train.py", queue=queue_of("sge", 2), job=tmp_path, warn_after_s=1000)
    job = Job(tmp_path, bin_folder, text, NUM_SIGNALS=1, CODE=75)
    assert wait_for(job.heard_at.exists)
    job.process.send_signal(signal.SIGUSR2)
    assert job.end()[0] == 75
    assert not job.calls_at.exists()


def test_a_job_that_must_not_submit_itself_is_requeued(tmp_path, bin_folder):
    program(tmp_path / "bin/qsub", "#!/bin/bash\necho 'denied: host n1 is no submit host' >&2\nexit 1\n")
    text = write_script(tmp_path, "train.py", queue=queue_of("sge", 2), job=tmp_path)
    job = Job(tmp_path, bin_folder, text, CODE=75, PATH=f"{tmp_path}/bin:{bin_folder}:{os.environ['PATH']}")
    assert job.end() == (99, "", "denied: host n1 is no submit host\n")


def test_a_clock_that_warns_passes_signals_on_and_ends_with_the_run(tmp_path, bin_folder):
    text = write_script(tmp_path, "train.py", queue=QUEUES["sge"], warn_after_s=1000)
    job = Job(tmp_path, bin_folder, text, NUM_SIGNALS=2, CODE=5)
    assert wait_for(job.heard_at.exists)
    job.process.send_signal(signal.SIGUSR2)
    assert wait_for(lambda: job.heard()["heard"] == ["SIGUSR1"])
    job.process.send_signal(signal.SIGTERM)
    assert job.end()[0] == 5
    assert job.heard()["heard"] == ["SIGUSR1", "SIGTERM"]


def test_warnings_at_any_moment_leave_the_exit_code_alone(tmp_path, bin_folder):
    text = write_script(tmp_path, "train.py", queue=QUEUES["slurm"])
    for _ in range(15):
        job = Job(tmp_path, bin_folder, text, NUM_SIGNALS=1, CODE=5)
        assert wait_for(job.heard_at.exists)
        for _ in range(30):
            job.process.send_signal(signal.SIGUSR1)
        assert job.end()[0] == 5


@pytest.mark.parametrize("code", [0, 1, 3, 74, 75, 255])
@pytest.mark.parametrize("scheduler", sorted(QUEUES))
def test_only_a_job_that_stopped_on_request_gets_in_line_again(tmp_path, bin_folder, scheduler, code):
    text = write_script(tmp_path, "train.py", queue=QUEUES[scheduler], job=tmp_path)
    job = Job(tmp_path, bin_folder, text, CODE=code, SLURM_JOB_ID="17", CALLS=tmp_path / "calls")
    left_with = job.end()[0]
    calls = job.calls_at.read_text().splitlines() if job.calls_at.exists() else []
    is_again = code == 75
    assert left_with == (99 if is_again and scheduler == "sge" else code)
    again = {
        "slurm": ["scontrol requeue 17"],
        "pbs": [f"qsub {tmp_path}/job.sh"],
        "flux": [f"flux --parent batch {tmp_path}/job.sh"],
    }
    assert calls == (again.get(scheduler, []) if is_again else [])


def test_what_comes_after_a_success_comes_only_then(tmp_path, bin_folder):
    text = write_script(tmp_path, "train.py", then="qsub eval.sh")
    for code, calls in ((0, "qsub eval.sh\n"), (75, None), (1, None)):
        job = Job(tmp_path, bin_folder, text, CODE=code)
        assert job.end()[0] == code
        assert (job.calls_at.read_text() if job.calls_at.exists() else None) == calls


def test_a_failing_line_before_the_run_ends_the_job(tmp_path, bin_folder):
    job = Job(tmp_path, bin_folder, write_script(tmp_path, "train.py", site=Site(before=("false",))))
    assert job.end()[0] == 1
    assert not job.heard_at.exists()


def test_a_venv_whose_activation_reads_unset_variables_is_no_problem(tmp_path, bin_folder):
    (tmp_path / "my venv/bin").mkdir(parents=True)
    (tmp_path / "my venv/bin/activate").write_text('export SEEN="$NOT_SET_ANYWHERE-activated"\n')
    site = Site(venv=str(tmp_path / "my venv"), before=('[ "$SEEN" = -activated ]',))
    assert Job(tmp_path, bin_folder, write_script(tmp_path, "train.py", site=site)).end() == (0, "", "")


def test_conda_is_activated_by_its_hook(tmp_path, bin_folder):
    program(tmp_path / "bin/conda", "#!/bin/bash\necho 'conda() { SEEN=\"$*\"; }'\n")
    site = Site(conda="my env", before=('[ "$SEEN" = "activate my env" ]',))
    job = Job(
        tmp_path,
        bin_folder,
        write_script(tmp_path, "train.py", site=site),
        PATH=f"{tmp_path}/bin:{bin_folder}:/usr/bin:/bin",
    )
    assert job.end() == (0, "", "")


@pytest.mark.parametrize("runtime", ["apptainer", "singularity"])
def test_a_container_is_entered_by_whichever_runtime_is_there(tmp_path, bin_folder, runtime):
    program(
        tmp_path / f"bin/{runtime}",
        '#!/bin/bash\n[ "$1 $2 $3" = "exec --nv /images/my image.sif" ] && shift 3 && exec "$@"\n',
    )
    site = Site(container="/images/my image.sif")
    line = in_container(site, ["topout", "run", "a b.py"], has_gpus=True)
    text = job_script([], site, line, folder=tmp_path, queue=Queue())
    job = Job(tmp_path, bin_folder, text, PATH=f"{tmp_path}/bin:{bin_folder}:/usr/bin:/bin")
    assert job.end() == (0, "", "")
    assert job.heard()["argv"] == ["run", "a b.py"]


def test_a_container_without_a_runtime_is_said(tmp_path, bin_folder):
    site = Site(container="image.sif")
    text = job_script([], site, in_container(site, ["x"], has_gpus=False), folder=tmp_path, queue=Queue())
    code, _, said = Job(tmp_path, bin_folder, text, PATH=f"{bin_folder}:/usr/bin:/bin").end()
    assert code == 3
    assert said == "neither apptainer nor singularity is on the PATH\n"


def test_options_of_a_container_are_the_sites_when_it_gives_any(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    site = Site(container="image.sif", container_options=("--rocm", "--bind", "/scratch"))
    assert (
        in_container(site, ["x"], has_gpus=True) == f'"$container" exec --rocm --bind /scratch {tmp_path}/image.sif x'
    )
    assert in_container(Site(container="docker://a/b"), ["x"], has_gpus=False) == '"$container" exec docker://a/b x'
    assert in_container(Site(), ["a b"], has_gpus=True) == "'a b'"


def test_a_site_without_modules_has_no_lines_for_them():
    assert environment(Site(), Path("/here")) == ["cd /here"]
