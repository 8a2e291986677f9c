"""`topout submit` as typed: what is shown, what `topout run` gets of it, what is refused at once."""

import os
import re
from types import SimpleNamespace

import pytest

from tests.conftest import REPOSITORY
from tests.submit.test_job_script import program
from topout.cli import run_options
from topout.cli import submit as submit_verb
from topout.cli.submit import FLAGS, OPTIONS, arrange
from topout.schema.errors import TopoutError
from topout.submit.site import KINDS, Site

HIDDEN = {"--run-option", *run_options.ASKING, *run_options.OPTIONS}

SBATCH = """#!/bin/bash
cp "${@: -1}" "$SUBMITTED"
echo "4711"
"""

TRAINING = """
import sys, torch
weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight])
for step in range(1000):
    print("step", step, sys.argv[1:], flush=True)
    weight.sum().backward()
    optimizer.step()
"""


@pytest.fixture
def site(tmp_path):
    """A login node with Slurm alone: variables for `run_topout`."""
    program(tmp_path / "bin/sbatch", SBATCH)
    (tmp_path / "train.py").write_text("print('trained')")
    (tmp_path / "site.toml").write_text('[site]\naccount = "bio"\nscheduler = "slurm"\n')
    return {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "SUBMITTED": str(tmp_path / "submitted.sh"),
        "TOPOUT_SITE": str(tmp_path / "site.toml"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }


@pytest.mark.parametrize(
    ("typed", "arranged"),
    [
        ("train.py --nodes 3", "-- train.py --nodes 3"),
        ("--nodes 4 --time=2h train.py -n 5", "--nodes 4 --time=2h -- train.py -n 5"),
        (
            "-n 8 --nodes 4 --no-record -m pkg.train",
            "--nodes 4 --run-option=-n --run-option=8 --run-option=--no-record --run-option=-m -- pkg.train",
        ),
        ("-n8 --steps=3 x.py", "--run-option=-n --run-option=8 --run-option=--steps --run-option=3 -- x.py"),
        ("--dry-run --rehearse train.py", "--dry-run --rehearse -- train.py"),
        ("--partiton gpu train.py", "--partiton gpu -- train.py"),
        ("--nodes 2 -- -odd.py", "--nodes 2 -- -odd.py"),
        ("--dry-run train.py --dry-run", "--dry-run -- train.py --dry-run"),
        ("-- train.py --dry-run", "-- train.py --dry-run"),
        ("--help", "--help --"),
        ("", "--"),
    ],
)
def test_options_of_run_are_handed_on_and_the_scripts_stay_its_own(typed, arranged):
    assert arrange(typed.split()) == arranged.split()


def test_a_dry_run_after_the_script_does_not_submit():
    with pytest.raises(TopoutError, match=r"stands after train\.py") as raised:
        arrange("--nodes 2 train.py --dry-run --lr 1".split())
    assert "topout submit … -- train.py --dry-run --lr 1" in str(raised.value)
    with pytest.raises(TopoutError, match=r"-- train\.py --dry-run 'a b'"):
        arrange(["train.py", "--dry-run", "a b"])


def test_every_option_is_known_as_such():
    from topout.cli.app import app

    arguments = app["submit"].assemble_argument_collection()
    named = {name: argument for argument in arguments for name in argument.names if name.startswith("-")}
    without_value = {name for name, argument in named.items() if argument.hint is bool}
    assert set(named) - without_value == set(OPTIONS)
    assert without_value == FLAGS - {"-h", "--help", "--version"}


def test_a_dry_run_prints_the_script_alone_and_says_where_values_come_from(run_topout, site, tmp_path):
    ended = run_topout(
        ["submit", "--dry-run", "--nodes", "2", "--time", "2h", "--bind", "socket", "train.py", "--lr", "a b"], env=site
    )
    assert ended.code == 0, ended.stderr
    assert ended.stdout.startswith("#!/bin/bash -l\n#SBATCH ")
    assert re.search(r"^#SBATCH --nodes=2$", ended.stdout, re.MULTILINE)
    assert re.search(r"^#SBATCH --account=bio$", ended.stdout, re.MULTILINE)
    assert re.search(r"/topout run --bind socket train.py --lr 'a b' &$", ended.stdout, re.MULTILINE)
    assert f"account            bio                            {tmp_path}/site.toml:2" in ended.stderr
    assert "time               2h                             command line" in ended.stderr
    assert not (tmp_path / "topout-runs").exists()
    assert not (tmp_path / "submitted.sh").exists()


def test_a_submitted_job_is_numbered_and_the_last_line_is_the_next_command(run_topout, site, tmp_path):
    ended = run_topout(["submit", "--time", "2h", "train.py"], env=site)
    assert (ended.code, ended.stdout) == (0, "4711\n"), ended.stderr
    (job,) = (tmp_path / "topout-runs/jobs").iterdir()
    assert ended.stderr.splitlines()[-1] == f"Next    topout watch topout-runs/jobs/{job.name}"
    assert (job / "job.sh").read_text() == (tmp_path / "submitted.sh").read_text()


def test_the_next_command_can_be_pasted_where_the_folder_has_a_blank(run_topout, site, tmp_path):
    ended = run_topout(["submit", "--time", "2h", "--runs", "my runs", "train.py"], env=site)
    (job,) = (tmp_path / "my runs/jobs").iterdir()
    assert ended.stderr.splitlines()[-1] == f"Next    topout watch 'my runs/jobs/{job.name}'"


def test_a_scheduler_may_greet_in_another_encoding(run_topout, site, tmp_path):
    """The job is in line, and its folder stays."""
    program(tmp_path / "bin/sbatch", "#!/bin/bash\nprintf 'Willkommen f\\xfcr alle\\n'; echo 4711\n")
    ended = run_topout(["submit", "--time", "2h", "train.py"], env=site)
    assert (ended.code, ended.stdout) == (0, "4711\n"), ended.stderr
    (job,) = (tmp_path / "topout-runs/jobs").iterdir()
    assert (job / "job.sh").exists()


def test_a_refusal_in_another_encoding_is_shown(run_topout, site, tmp_path):
    program(tmp_path / "bin/sbatch", "#!/bin/bash\nprintf 'ung\\xfcltig\\n' >&2; exit 1\n")
    ended = run_topout(["submit", "--time", "2h", "train.py"], env=site)
    assert ended.code == 3
    assert "sbatch did not take the job" in ended.stderr and "Traceback" not in ended.stderr
    assert not list((tmp_path / "topout-runs/jobs").iterdir())


def test_without_a_script_the_embedded_default_is_submitted(run_topout, site, tmp_path):
    ended = run_topout(["submit", "--dry-run", "--time", "10m"], env=site)
    assert ended.code == 0, ended.stderr
    assert re.search(r"/topout run &$", ended.stdout, re.MULTILINE)


def test_ranks_are_asked_of_the_scheduler(run_topout, site):
    words = ["submit", "--dry-run", "--time", "2h", "--nodes", "2"]
    for more, line in (
        (["-n", "8"], "4"),
        (["--per-node", "3"], "3"),
        (["-n", "6", "--per-node", "3"], "3"),
        (["--gpus", "2"], "2"),
    ):
        said = run_topout([*words, *more, "train.py"], env=site).stdout
        assert re.search(rf"^#SBATCH --ntasks-per-node={line}$", said, re.MULTILINE), said


@pytest.mark.parametrize(
    ("words", "tasks", "told"),
    [
        ("--nodes 1", 1, "run --per-node 1 train.py"),
        ("--nodes 2", 2, "run train.py"),
        ("--nodes 2 --gpus 4", 8, "run train.py"),
        ("--nodes 2 --bind none --per-node 3", 6, "run --bind none --per-node 3 train.py"),
        ("--nodes 2 -n 4", 4, "run --per-node 2 train.py"),
        ("--nodes 2 --per-node node", 2, "run --per-node 1 train.py"),
        ("--gpus 4 --per-node gpu", 4, "run --per-node 4 train.py"),
    ],
)
def test_in_a_container_topout_and_the_scheduler_mean_the_same_ranks(run_topout, site, words, tasks, told):
    asked = ["submit", "--dry-run", "--time", "2h", "--container", "i.sif", *words.split(), "train.py"]
    said = run_topout(asked, env=site).stdout
    assert f"srun --ntasks={tasks} " in said
    assert f"python3 -P -m topout {told} &" in said


def test_a_word_for_ranks_in_a_file_is_refused_with_its_line(run_topout, site, tmp_path):
    (tmp_path / "topout.toml").write_text('[run]\nper_node = "numa"\n')
    ended = run_topout(["submit", "--dry-run", "--time", "2h", "--container", "i.sif", "train.py"], env=site)
    assert (ended.code, ended.stdout) == (2, "")
    assert "; topout.toml:2 says it\n" in ended.stderr


def test_settings_of_site_and_run_stand_in_one_file(run_topout, site, tmp_path):
    (tmp_path / "topout.toml").write_text('[run]\nper_node = 3\n\n[site]\naccount = "ours"\n')
    ended = run_topout(["submit", "--dry-run", "--time", "2h", "train.py"], env=site)
    assert ended.code == 0, ended.stderr
    assert re.search(r"^#SBATCH --account=ours$", ended.stdout, re.MULTILINE)
    assert re.search(r"^#SBATCH --ntasks-per-node=3$", ended.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "nodes", "told"),
    [("", 2, "run train.py"), ("--nodes 2", 2, "run train.py"), ("--nodes 8", 8, "run --nodes 8 train.py"),
     ("--nodes 8 --container i.sif", 8, "run train.py")],
)  # fmt: skip
def test_nodes_that_are_typed_win_over_those_of_a_file_in_the_job_too(run_topout, site, tmp_path, words, nodes, told):
    (tmp_path / "topout.toml").write_text("[run]\nnodes = 2\n")
    ended = run_topout(["submit", "--dry-run", "--time", "2h", *words.split(), "train.py"], env=site)
    assert ended.code == 0, ended.stderr
    assert re.search(rf"^#SBATCH --nodes={nodes}$", ended.stdout, re.MULTILINE)
    assert f"topout {told} &\n" in ended.stdout


@pytest.mark.parametrize(("scheduler", "told"), [("sge", "run --nodes 2 train.py"), ("lsf", "run train.py")])
def test_a_job_of_slots_refuses_fewer_hosts_than_were_asked_for(run_topout, site, tmp_path, scheduler, told):
    (tmp_path / "site.toml").write_text('[site]\nlines = ["#$ -pe mpi 8"]\n')
    words = ["submit", "--dry-run", "--scheduler", scheduler, "--time", "2h", "--nodes", "2", "train.py"]
    ended = run_topout(words, env=site)
    assert ended.code == 0, ended.stderr
    assert f"topout {told} &\n" in ended.stdout


def test_an_evaluation_is_shown_after_the_job(run_topout, site, tmp_path):
    (tmp_path / "eval.py").write_text("")
    ended = run_topout(["submit", "--dry-run", "--time", "2h", "--eval-job", "eval.py --k 'a b'", "train.py"], env=site)
    assert ended.code == 0, ended.stderr
    _, _, evaluation = ended.stdout.partition("# ---- eval.sh, submitted after the job above ----\n")
    assert "#SBATCH --dependency=afterok:JOB_ID\n" in evaluation
    assert "eval.py --k 'a b' &" in evaluation


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--time 2h --nodes 0 train.py", "--nodes 0 is not possible."),
        (
            "--time 90 train.py",
            "'90' is not a time.\n  why  a bare number would be minutes to Slurm and seconds to others",
        ),
        ("--time -2h train.py", "'-2h' is not a time.\n  why  it must be positive"),
        ("--time 2h --data-share -2% train.py", "'-2%' is not a share."),
        ("train.py", "How long may the job run?"),
        ("--time 2h trian.py", "did you mean train.py?"),
        ("--time 2h --partiton gpu train.py", "Did you mean --partition?"),
        ("--time 2h --steps three train.py", "three"),
        ("--time 2h --profile 9-3 train.py", "is not a range of steps"),
        (
            "--time 2h --nodes 2 -n 5 --per-node 3 train.py",
            "-n 5 and --per-node 3 contradict each other.\n  why  on 2 hosts --per-node 3 gives 6 ranks",
        ),
        ("--time 2h --nodes 2 -n 3 train.py", "do not share out evenly over 2 nodes"),
        ("--time 2h --steps 1.5 train.py", "--steps 1.5 is not a whole number."),
        ("--time 2h --restarts -1 train.py", "--restarts -1 is not possible."),
        ("--time 2h --nodes 2 --min-nodes 3 train.py", "--min-nodes 3 is more than there are."),
        ("--time 2h --scheduler slrum train.py", "There is no scheduler slrum."),
        ("--time 2h --scheduler local train.py", "Nothing can be submitted to local."),
        ("--time 2h --eval-job evla.py train.py", "There is no script evla.py."),
        ("--time 2h --eval-job ' train.py", "cannot be read"),
        ("--time 2h --eval-job '' train.py", "names no script"),
        ("--time 2h --switches 0 train.py", "switches = 0 is not possible."),
        ("--time 2h --container i.sif --nodes 2 --per-node socket train.py", "--per-node socket is not possible in a"),
        ("--time 2h --container i.sif --gpus 4 --per-node numa train.py", "--per-node numa is not possible in a"),
        ("--time 2h --container i.sif --per-node gpu train.py", "do   --gpus 4, with as many as a node has"),
    ],
)
def test_what_cannot_be_submitted_is_said_in_three_parts_and_makes_no_folder(run_topout, site, tmp_path, words, says):
    ended = run_topout(["submit", *words.split()], env=site)
    assert (ended.code, ended.stdout) == (2, "")
    assert says in ended.stderr
    assert [line[:7] for line in ended.stderr.splitlines()[-2:]] == ["  why  ", "  do   "]
    assert not (tmp_path / "topout-runs").exists()
    assert not (tmp_path / "submitted.sh").exists()


def test_a_rehearsal_that_gets_through_is_submitted(run_topout, site, tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    ended = run_topout(["submit", "--rehearse", "--time", "2h", "train.py", "a b"], env=site)
    assert (ended.code, ended.stdout) == (0, "4711\n"), ended.stderr
    assert re.findall(r"step (\d+) \['a b'\]", ended.stderr) == ["0", "1"]
    assert [path.name for path in (tmp_path / "topout-runs").iterdir()] == ["jobs"], "it leaves no run behind"


def test_a_rehearsal_that_fails_is_not_submitted(run_topout, site, tmp_path):
    (tmp_path / "train.py").write_text("raise ValueError('no such data')")
    ended = run_topout(["submit", "--rehearse", "--time", "2h", "train.py"], env=site)
    assert (ended.code, ended.stdout) == (4, "")
    assert ended.stderr.splitlines()[-3:-1] == [
        "The rehearsal failed, so nothing was submitted.",
        "  why  ValueError: no such data",
    ]
    assert not (tmp_path / "submitted.sh").exists()
    assert not (tmp_path / "topout-runs").exists()


def test_a_rehearsal_gets_what_decides_whether_the_script_runs(monkeypatch, tmp_path):
    rehearsed = []
    monkeypatch.setattr(submit_verb, "rehearse_job", lambda site, folder, words, *_, **__: rehearsed.extend(words))
    told = ("--packs", "a.pack", "--ddp", "--no-onednn-backward", "--keep-memory", "--packs", "b.pack")
    asked = ("--steps", "9", *told, "--restarts", "1")
    planned = SimpleNamespace(site=Site(venv="/v"), folder=tmp_path, script_words=("t.py",), ranks_per_node=1, nodes=1)
    submit_verb._rehearse(planned, asked)
    assert rehearsed == ["topout", "run", *told]


def test_a_rehearsal_uses_the_jobs_environment(run_topout, site, tmp_path):
    (tmp_path / "site.toml").write_text('[site]\nscheduler = "slurm"\nbefore = ["export FROM_THE_SITE=1", "false"]\n')
    ended = run_topout(["submit", "--rehearse", "--time", "2h", "train.py"], env=site)
    assert ended.code == 4
    assert "trained" not in ended.stderr


def test_the_page_of_submit_documents_every_option():
    table = (REPOSITORY / "docs/submit.md").read_text().partition("## Options")[2].partition("## ")[0]
    assert set(re.findall(r"`(--[\w-]+)", table)) - set(run_options.OPTIONS) == (OPTIONS | FLAGS) - HIDDEN


def test_the_page_of_submit_documents_every_key():
    page = (REPOSITORY / "docs/submit.md").read_text()
    assert [key for key in KINDS if not re.search(rf"^\|.*`{key}`.*\|", page, re.MULTILINE)] == []


def test_help_names_the_options(run_topout):
    ended = run_topout(["submit", "--help"])
    assert ended.code == 0
    for option in OPTIONS - {"--run-option"}:  # the way in which `arrange` hands on
        assert option in ended.stdout
