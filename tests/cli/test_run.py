"""`topout run` as typed: options stand before the script, what is wrong is said before anything is made."""

import json

import pytest

from topout.cli.run_options import FLAGS, OPTIONS, delimit_script, read_quickly
from topout.cli.training import spec_from
from topout.schema.errors import TopoutError


@pytest.mark.parametrize(
    ("typed", "delimited"),
    [
        ("train.py", "-- train.py"),
        ("-n 2 train.py --lr 0.1 -n 5 --help", "-n 2 -- train.py --lr 0.1 -n 5 --help"),
        ("-n2 --steps=3 --no-bind train.py -m", "-n2 --steps=3 --no-bind -- train.py -m"),
        ("-m package.train --json", "-m -- package.train --json"),
        ("--filter a --filter b train.py", "--filter a --filter b -- train.py"),
        ("-n 2 -- train.py --", "-n 2 -- train.py --"),
        ("-n 2", "-n 2"),
        ("--help", "--help"),
        ("", ""),
    ],
)
def test_everything_from_the_script_on_is_the_scripts(typed, delimited):
    assert delimit_script(typed.split()) == delimited.split()


def test_the_quick_reader_knows_every_option_as_the_parser_does():
    from topout.cli.app import app

    arguments = [argument for argument in app["run"].assemble_argument_collection() if argument.keys == ()]
    of_parser = {
        name: (argument.field_info.name, argument.hint in (bool, bool | None))
        for argument in arguments
        for name in argument.names
        if name.startswith("-")
    }
    quick = {name: (parameter, False) for name, (parameter, _) in OPTIONS.items()}
    quick |= {name: (parameter, True) for name, (parameter, _) in FLAGS.items()}
    assert quick == of_parser


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("train.py -n 5 --help", {"script_and_args": ["train.py", "-n", "5", "--help"]}),
        ("-n 2 --steps=3 --no-report -q -- train.py --", {
            "num_ranks": 2, "steps": 3, "report": False, "quiet": True, "script_and_args": ["train.py", "--"],
        }),
        ("--filter a --filter b", {"filter": ["a", "b"]}),
        ("--bind socket,report -m package.train", {
            "bind": "socket,report", "module": True, "script_and_args": ["package.train"],
        }),
        ("-n2 train.py", None),
        ("-n two train.py", None),
        ("-n", None),
        ("--help", None),
        ("--stepz 3 train.py", None),
    ],
)  # fmt: skip
def test_what_is_right_is_read_quickly_and_the_rest_left_to_the_parser(typed, read):
    assert read_quickly(typed.split()) == (None if read is None else {"filter": [], **read})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run -n 0 train.py", "-n 0 is not possible."),
        ("run -n -3 train.py", "-n -3 is not possible."),
        ("run -n 1000000 train.py", "1000000 ranks do not fit"),
        ("run -n two train.py", "two"),
        ("run -n 2 --per-node 1 train.py", "contradict each other"),
        ("run -n 1.5 train.py", "-n 1.5 is not a whole number."),
        ("run --profile train.py --epochs 1", "--profile has train.py for its value.\n  why  --profile: Steps to look"),
        ("run --steps train.py --epochs 1", "--steps has train.py for its value."),
        ("run --stepz train.py --epochs 1", "Unknown option: --stepz"),
        ("run --steps 0 train.py", "--steps 0 is not possible."),
        ("run --restarts -1 train.py", "--restarts -1 is not possible."),
        ("run --restarts 1.5 train.py", "--restarts 1.5 is not a whole number."),
        ("run --start-timeout 0 train.py", "--start-timeout 0 is not possible."),
        ("run --start-timeout -1 train.py", "--start-timeout -1 is not possible."),
        ("run --start-timeout nan train.py", "--start-timeout nan is not possible."),
        ("run --min-nodes 0 train.py", "--min-nodes 0 is not possible."),
        ("run --min-nodes 5 train.py", "--min-nodes 5 is more than there are."),
        ("run --interface no-such0 train.py", "cannot use --interface no-such0."),
        ("run --data-share 200% train.py", "is not a share"),
        ("run --profile 9-3 train.py", "is not a range of steps"),
        ("run --num-rank 2 train.py", "Did you mean --num-ranks?"),
        ("run trian.py", "did you mean train.py?"),
        ("run absent/train.py", "there is no folder absent"),
        ("run .", "is a folder, not a script"),
        ("run -m no_such_module.train", "There is no module no_such_module.train."),
        ("run -m", "-m needs a module's name."),
        ("rum train.py", "did you mean topout run?"),
    ],
)
def test_what_cannot_be_run_is_said_in_three_parts_and_makes_no_folder(run_topout, tmp_path, words, says):
    (tmp_path / "train.py").write_text("print('ran')")
    ended = run_topout(words.split())
    assert (ended.code, ended.stdout) == (2, "")
    assert says in ended.stderr
    assert [line[:7] for line in ended.stderr.splitlines()[-2:]] == ["  why  ", "  do   "]
    assert not (tmp_path / "topout-runs").exists()


def test_a_file_for_the_cluster_may_ask_for_what_one_host_has_not(run_topout, tmp_path):
    (tmp_path / "train.py").write_text("print('ran')")
    (tmp_path / "topout.toml").write_text('[run]\nmin_nodes = 4\ninterface = "no-such0"\n')
    ended = run_topout(["run", "-q", "--no-report", "-n", "1", "train.py"])
    assert (ended.code, ended.stdout) == (0, "ran\n"), ended.stderr


def test_a_module_runs_as_python_would_run_it(run_topout, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("")
    (tmp_path / "package/train.py").write_text("import sys; print(__name__, sys.argv[1:])")
    ended = run_topout(["run", "--no-report", "-n", "1", "-m", "package.train", "--lr", "1"])
    assert (ended.code, ended.stdout) == (0, "__main__ ['--lr', '1']\n")


def test_json_is_all_there_is_on_stdout(run_topout, tmp_path):
    (tmp_path / "train.py").write_text("print('from the script')")
    ended = run_topout(["run", "--json", "-n", "1", "train.py"])
    assert ended.code == 0
    assert json.loads(ended.stdout)["status"] == "finished"
    assert "from the script" in ended.stderr


def test_quiet_says_nothing_but_what_the_script_says(run_topout, tmp_path):
    (tmp_path / "train.py").write_text("print('from the script')")
    ended = run_topout(["run", "--quiet", "-n", "1", "train.py"])
    assert (ended.code, ended.stdout, ended.stderr) == (0, "from the script\n", "")


def test_the_last_line_is_the_next_command(run_topout, tmp_path):
    (tmp_path / "train.py").write_text("print('from the script')")
    ended = run_topout(["run", "-n", "1", "train.py"])
    assert ended.stderr.splitlines()[-1].startswith("Next    topout ")


def test_a_report_that_breaks_does_not_spoil_the_exit_code(monkeypatch, capsys, tmp_path):
    from topout.cli import finish
    from topout.cli.training import conclude
    from topout.launch.job import JobResult
    from topout.schema.run_folder import RunFolder

    def broken(folder):
        raise ZeroDivisionError("in the report")

    monkeypatch.setattr(finish, "_finish", broken)
    result = JobResult(exit_code=7, status="failed", folder=RunFolder(tmp_path), last_words="ValueError: x")
    assert conclude(result, wants_report=True, is_json=False, is_quiet=False) == 7
    said = capsys.readouterr().err
    assert "could not be explained (ZeroDivisionError: in the report)" in said
    assert said.endswith("ValueError: x\n")


def test_a_job_that_is_to_go_on_does_not_wait_for_its_report(monkeypatch, capsys, tmp_path):
    from topout.cli import finish
    from topout.cli.training import conclude
    from topout.launch.job import JobResult
    from topout.schema.run_folder import RunFolder

    asked = []
    monkeypatch.setattr(finish, "_finish", lambda folder: asked.append(folder) or finish.Finished(text="explained"))
    # the last: a script may end with that code as well
    for code, status in ((75, "finished"), (0, "finished"), (75, "failed")):
        result = JobResult(exit_code=code, status=status, folder=RunFolder(tmp_path / f"{status}-{code}"))
        assert conclude(result, wants_report=True, is_json=False, is_quiet=False) == code
    assert [folder.path.name for folder in asked] == ["finished-0", "failed-75"]
    stopped, later, explained, _ = capsys.readouterr().err.strip().replace("\n\n", "\n").splitlines()
    assert "stopped to be started again, which does not wait for a report" in stopped
    assert later.startswith("Next    topout analyze ") and later.endswith("75")
    assert explained == "explained"


def test_help_version_and_launch_need_no_torch(run_topout, torchless, tmp_path):
    (tmp_path / "train.py").write_text("print('trained')")
    assert run_topout(["--help"], env=torchless).code == 0
    assert run_topout(["--version"], env=torchless).stdout == "0.1.0\n"
    ended = run_topout(["run", "--no-report", "train.py"], env=torchless)
    assert (ended.code, ended.stdout) == (0, "trained\n")


def test_the_embedded_default_without_torch_says_what_to_install(run_topout, torchless, tmp_path):
    ended = run_topout(["run"], env=torchless)
    assert ended.code == 3
    assert "pip install 'topout[torch]'" in ended.stderr
    assert not (tmp_path / "topout-runs").exists()


def test_the_launcher_never_imports_torch():
    import subprocess
    import sys

    listed = "import sys, topout.cli.run, topout.cli.watch, topout.launch.job; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--no-record --profile 20-29", "--profile is of no use where nothing is recorded."),
        ("--no-record --filter a*", "--filter is of no use where nothing is recorded."),
        ("--bind numa --no-bind", "--bind numa and --no-bind exclude each other."),
        ("--no-bind --bind numa,report", "--bind numa,report and --no-bind exclude each other."),
    ],
)
def test_options_that_would_not_be_used_together_are_refused(words, problem, run_topout, tmp_path):
    (tmp_path / "train.py").write_text("")
    for verb in (["run"], ["submit", "--dry-run", "--nodes", "1", "--time", "1h", "--scheduler", "slurm"]):
        done = run_topout([*verb, *words.split(), "train.py"])
        assert (done.code, done.stderr.splitlines()[0]) == (2, problem)
        assert len(done.stderr.splitlines()) == 3
    assert not (tmp_path / "topout-runs").exists()


def test_what_a_file_says_of_profiles_waits_for_a_run_that_is_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "topout.toml").write_text('[run]\nprofile = "20-29"\n')
    assert not spec_from({"record": False}).record
    (tmp_path / "topout.toml").write_text("[run]\nrecord = false\n")
    with pytest.raises(TopoutError, match="--profile is of no use") as caught:
        spec_from({"profile": "20-29"})
    assert caught.value.why == "record = false says so (topout.toml:2)"
    assert spec_from({"profile": "20-29", "record": True}).profile == (20, 29)


@pytest.mark.parametrize(
    ("file", "typed", "meant"),
    [
        ("per_node = 4", {"num_ranks": 1}, (1, None)),
        ("num_ranks = 2", {"per_node": "numa"}, (None, "numa")),
        ("num_ranks = 2\nper_node = 4", {"num_ranks": 3}, (3, None)),
        ("num_ranks = 2\nper_node = 4", {"num_ranks": 3, "per_node": "1"}, (3, 1)),
        ("num_ranks = 2\nper_node = 4", {}, (2, 4)),
        ("per_node = 4", {"nodes": 2}, (None, 4)),
    ],
)
def test_a_number_of_ranks_that_is_typed_wins_over_either_in_the_file(tmp_path, monkeypatch, file, typed, meant):
    """What is left of both has one origin, and may be a contradiction."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "topout.toml").write_text(f"[run]\n{file}\n")
    spec = spec_from(typed)
    assert (spec.num_ranks, spec.per_node) == meant
    unsaid = {name for name in ("num_ranks", "per_node") if getattr(spec, name) is None}
    assert all((spec.origins[name] == "default") == (name in unsaid) for name in ("num_ranks", "per_node"))


def test_topouts_own_calls_with_a_number_of_ranks_bear_a_file_for_the_cluster(run_topout, tmp_path):
    (tmp_path / "train.py").write_text("print('ran')")
    (tmp_path / "topout.toml").write_text("[run]\nper_node = 4\n")
    ended = run_topout(["run", "-q", "--no-record", "-n", "1", "train.py"])
    assert (ended.code, ended.stdout) == (0, "ran\n"), ended.stderr


def test_to_see_who_would_be_where_without_binding_is_no_contradiction():
    assert spec_from({"bind": "report", "no_bind": True}).bind == "none"
    assert spec_from({"bind": "none", "no_bind": True}).bind == "none"
