"""What a script sees and leaves behind under topout is what it would be under python."""

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

RUN = [sys.executable, "-m", "topout", "run", "-n", "1", "--no-report", "-q"]


def ended(command: list[str], cwd: Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False, **options)


def both(script: str, folder: Path, *before: str, **options):
    """(as python, as topout)"""
    (folder / "train.py").write_text(script)
    return (
        ended([sys.executable, "train.py"], folder, **options),
        ended([*RUN, *before, "train.py"], folder, **options),
    )


@pytest.mark.parametrize("before", [(), ("--no-record",)])
def test_a_child_that_the_script_forks_ends_alone(tmp_path, before) -> None:
    """Its end is not the rank's, which trains on for longer than a rank has after its last line."""
    (tmp_path / "train.py").write_text(
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    print('child', flush=True); sys.exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)\n"
        "if os.fork() == 0:\n"
        "    raise ValueError('child')\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)\n"
        "time.sleep(int(sys.argv[1]))\n"
        "print('trained')\n"
    )
    # python alone ends nobody
    plain = ended([sys.executable, "train.py", "0"], tmp_path)
    ours = ended([*RUN, *before, "train.py", "6"], tmp_path)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
    assert ours.stdout == "child\n0\n1\ntrained\n"


def test_the_first_rank_reads_what_is_given_to_the_job(tmp_path) -> None:
    plain, ours = both("print(repr(input()))", tmp_path, input="hello\n")
    assert ours.stdout == plain.stdout == "'hello'\n"
    two = ended([*RUN, "-n", "2", "train.py"], tmp_path, input="hello\n")
    assert "'hello'" in two.stdout and "EOFError" in two.stderr


@pytest.mark.parametrize(
    "hook",
    [
        "def fail(*_):\n    raise KeyError('hook')\nsys.excepthook = fail",
        "sys.excepthook = None",
        "del sys.excepthook",
        "sys.excepthook = lambda *_: sys.exit(7)",
    ],
    ids=["fails", "none", "deleted", "exits"],
)
def test_an_excepthook_that_does_not_work_is_told_as_python_does(tmp_path, hook) -> None:
    plain, ours = both(f"import sys\n{hook}\ndef train():\n    raise ValueError('training')\ntrain()\n", tmp_path)
    assert ours.returncode == plain.returncode
    assert ours.stderr.startswith(f"{plain.stderr}\nRank 0 on ")
    assert "topout/record" not in ours.stderr
    plain, ours = both(f"import sys\n{hook}\nprint('trained')\n", tmp_path)
    assert (ours.returncode, ours.stdout, ours.stderr) == (0, plain.stdout, "")


def test_the_scripts_name_is_whole_so_that_it_is_found_from_elsewhere(tmp_path) -> None:
    plain, ours = both(
        "import os, sys\nos.chdir('/')\n"
        "print(__file__, os.path.exists(__file__), sys.argv, __cached__, __annotations__)",
        tmp_path,
    )
    assert ours.stdout == plain.stdout


def test_builtins_can_be_replaced_as_in_any_script(tmp_path) -> None:
    script = "__builtins__.print = lambda *words, say=print: say('rank 0:', *words)\nprint('trained')"
    plain, ours = both(script, tmp_path)
    assert ours.stdout == plain.stdout == "rank 0: trained\n"
    assert ended([*RUN, "-m", "train"], tmp_path).stdout == plain.stdout


def test_the_standard_files_are_what_python_calls_them(tmp_path) -> None:
    _, ours = both(
        "import sys\nprint([getattr(sys, n) is getattr(sys, f'__{n}__') for n in ('stdin', 'stdout', 'stderr')])",
        tmp_path,
    )
    assert ours.stdout == "[True, True, True]\n"


@pytest.mark.parametrize("script", ["x = (", "import sys\nsys.exit(2**70)"])
def test_an_end_without_lines_of_the_script_shows_none_of_ours(tmp_path, script) -> None:
    plain, ours = both(script, tmp_path)
    assert ours.returncode == plain.returncode
    # Python 3.13 adds what it thinks of such a code when it shuts its threads down
    assert ours.stderr.startswith(plain.stderr.partition("Exception ignored on threading shutdown")[0])
    assert "topout/record" not in ours.stderr


def test_a_safe_path_stays_safe(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    _, ours = both(f"import sys\nprint({str(tmp_path)!r} in sys.path)", tmp_path)
    assert ours.stdout == "False\n"


def test_a_thread_that_computes_is_waited_for_without_a_recorder_too(tmp_path) -> None:
    (tmp_path / "train.py").write_text(
        "import threading, time\n"
        "def train():\n"
        "    until = time.monotonic() + 6\n"
        "    while time.monotonic() < until:\n"
        "        sum(range(1000))\n"
        "    print('trained')\n"
        "threading.Thread(target=train).start()\n"
    )
    ours = ended([*RUN, "--no-record", "train.py"], tmp_path)
    assert (ours.returncode, ours.stdout) == (0, "trained\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_closed_standard_file_is_no_fault_of_the_script(tmp_path, closed) -> None:
    (tmp_path / "train.py").write_text("open('trained', 'w').close()\nprint('out')")
    done = ended(["bash", "-c", f'"$@" {closed}', "bash", *RUN, "train.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trained").exists()
    assert done.stdout == ("" if closed == ">&-" else "out\n")


def test_words_that_no_file_can_hold_still_end_the_run(tmp_path) -> None:
    _, ours = both(r"raise ValueError('bad \udcff name')", tmp_path)
    assert ours.returncode == 1
    assert "bug in topout" not in ours.stderr
    [run] = (tmp_path / "topout-runs").iterdir()
    assert '"status": "failed"' in (run / "run.json").read_text()


def test_the_current_folder_may_go_while_the_job_runs(tmp_path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    script = tmp_path / "train.py"
    script.write_text("import os, shutil\nshutil.rmtree(os.getcwd())\nprint('trained')")
    done = ended([*RUN[:-1], "--runs", str(tmp_path / "runs"), str(script)], here)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


def test_a_background_job_leaves_the_terminals_keys_to_the_shell(tmp_path) -> None:
    """A rank has a session of its own, so the kernel would not stop it as it stops other background jobs."""
    (tmp_path / "train.py").write_text("import sys\nopen('read', 'w').write(sys.stdin.readline())")
    pid, terminal = pty.fork()
    if pid == 0:
        job = os.fork()
        if job == 0:
            os.setpgid(0, 0)
            os.chdir(tmp_path)
            os.execv(RUN[0], [*RUN, "train.py"])
        os._exit(os.waitstatus_to_exitcode(os.waitpid(job, 0)[1]))
    os.write(terminal, b"for the shell\n")
    with contextlib.suppress(OSError):
        while os.read(terminal, 1000):
            pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "read").read_text() == ""


def test_programs_that_the_script_starts_have_the_reopened_file_too(tmp_path) -> None:
    (tmp_path / "train.py").write_text("import subprocess\nprint(subprocess.run(['cat']).returncode)")
    done = ended(["bash", "-c", '"$@" <&-', "bash", *RUN, "train.py"], tmp_path)
    assert done.stdout == "0\n"


def test_the_scripts_output_is_encoded_as_python_would(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii:backslashreplace")
    plain, ours = both("import sys\nprint(sys.stdout.encoding, sys.stdout.errors, '\u00e9')", tmp_path)
    assert ours.stdout == plain.stdout


def test_hosts_that_a_file_asks_for_do_not_keep_a_script_from_one(tmp_path) -> None:
    (tmp_path / "topout.toml").write_text("[run]\nnodes = 2\n")
    assert both("print('trained')", tmp_path)[1].stdout == "trained\n"


def test_a_script_that_only_one_process_can_read_is_refused(tmp_path) -> None:
    done = ended([*RUN, "/dev/stdin"], tmp_path, input="print('trained')")
    assert done.returncode == 2
    assert "every rank can read" in done.stderr


def test_more_hosts_than_there_are_is_refused(tmp_path) -> None:
    (tmp_path / "train.py").write_text("print('trained')")
    done = ended([*RUN, "--nodes", "5", "train.py"], tmp_path)
    assert done.returncode == 2
    assert "--nodes 5 is more than there are" in done.stderr
