"""What loads before a script's first line comes out of one file, and of that only what its sources say."""

import ast
import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from topout.launch import start_code

PACKAGE = Path(start_code.__file__).parents[1]
FIRST = {"topout", "topout.cli", "topout.cli.main", "topout.launch", "topout.launch.start_code"}
"""Loaded before that file is opened."""
START = "from topout.cli.main import main\nmain()\n"
SCRIPT = """
import json, sys
found = {
    name: (type(module.__loader__).__name__, module.__file__, module.__cached__, module.__package__, module.__doc__,
           module.__spec__.origin, module.__spec__.cached, module.__spec__.parent, getattr(module, "__path__", None),
           module.__loader__.get_source(name), getattr(module, "NEW", None),
           sorted({value.__code__.co_filename for value in vars(module).values() if hasattr(value, "__code__")
                   and value.__module__ == name}))
    for name, module in list(sys.modules.items()) if name.split(".")[0] == "topout"
}
finders = [type(finder).__name__ for finder in sys.meta_path]
with open("found.json", "w") as file:
    json.dump([found, finders, [kind.__name__ for kind in object.__subclasses__()]], file)
"""


class Copy:
    """A package of topout that nobody has started yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "topout"
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("__pycache__", "lib"))
        (folder / "start.py").write_text(START)
        (folder / "script.py").write_text(SCRIPT)
        self.environment = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
        }

    def kept(self) -> Path | None:
        return next(iter((self.package / "launch/__pycache__").glob("start_code.*.code")), None)

    def start(self, *options: str, **more: str) -> tuple[dict, list, list]:
        """What the script found: modules, finders, classes."""
        words = [sys.executable, "start.py", "run", "-n", "1", "--no-report", *options, "script.py"]
        subprocess.run(words, cwd=self.folder, env=self.environment | more, check=True, capture_output=True)
        return json.loads((self.folder / "found.json").read_text())

    def loaders(self) -> set[str]:
        return {entry[0] for name, entry in self.start()[0].items() if name not in FIRST}

    def python(self, code: str) -> str:
        words = [sys.executable, "-c", f"import sys; sys.path.insert(0, '.')\n{code}"]
        done = subprocess.run(words, cwd=self.folder, env=self.environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_from_the_second_start_on_all_comes_out_of_one_file(copy: Copy) -> None:
    plain = copy.start()
    kept = copy.start()
    assert {entry[0] for entry in plain[0].values()} == {"SourceFileLoader"}
    assert {entry[0] for name, entry in kept[0].items() if name not in FIRST} == {"_KeptLoader"}
    # and nobody can tell
    assert {name: entry[1:] for name, entry in kept[0].items() if name in plain[0]} == {
        name: entry[1:] for name, entry in plain[0].items() if name in kept[0]
    }
    assert "StartCode" not in kept[1]


def test_compiling_the_script_makes_no_classes_of_syntax_trees(copy: Copy) -> None:
    # the first start compiles topout itself
    assert "AST" in copy.start()[2]
    assert "AST" not in copy.start()[2]
    assert ast.AST in object.__subclasses__()


def test_a_source_that_has_changed_is_read_itself_and_kept_for_the_next_start(copy: Copy) -> None:
    copy.start()
    source = copy.package / "launch/job_result.py"
    source.write_text(source.read_text() + "\nNEW = 'as written now'\n")
    entry = copy.start()[0]["topout.launch.job_result"]
    assert (entry[0], entry[10]) == ("SourceFileLoader", "as written now")
    assert copy.start()[0]["topout.launch.job_result"][0] == "_KeptLoader"


@pytest.mark.parametrize("spoil", [
    lambda data: data[: len(data) // 2],
    lambda data: data[:40],
    lambda data: b"",
    lambda data: data + b"\0",
    lambda data: b"\0" + data[1:],
    lambda data: data.replace(b"topout ", b"topout 9", 1),
])  # fmt: skip
def test_what_is_torn_or_of_another_python_or_topout_is_not_read(copy: Copy, spoil) -> None:
    copy.start()
    whole = copy.kept().read_bytes()
    copy.kept().write_bytes(spoil(whole))
    assert copy.loaders() == {"SourceFileLoader"}
    assert copy.loaders() == {"_KeptLoader"}


def test_what_was_kept_in_another_order_is_not_read(copy: Copy) -> None:
    copy.start()
    source = copy.package / "launch/start_code.py"
    text = source.read_text()
    first, second = '    "launch.head",\n', '    "launch.link launch.gathering",\n'
    assert first in text
    assert second in text
    source.write_text(text.replace(first, "@@").replace(second, first).replace("@@", second))
    assert copy.loaders() == {"SourceFileLoader"}
    assert copy.loaders() == {"_KeptLoader"}


def test_a_group_that_cannot_be_read_comes_from_its_sources(copy: Copy) -> None:
    copy.start()
    whole = copy.kept().read_bytes()
    # its last group, as long as before
    copy.kept().write_bytes(whole[:-20_000] + bytes(20_000))
    assert "_KeptLoader" in copy.loaders()
    number = copy.python(
        "from topout.launch import start_code; f = start_code.StartCode(*start_code._opened());"
        "print(sum(not f._content(number) for number in range(len(start_code.GROUPS))))"
    )
    assert int(number) <= 1


def test_what_belongs_to_somebody_else_is_not_read(copy: Copy) -> None:
    copy.start()
    read = "from topout.launch import start_code; print(len(start_code._opened()[1]) > 0)"
    assert copy.python(read) == "True"
    other = "import os; real = os.fstat; os.fstat = lambda fd: os.stat_result([*real(fd)[:4], 12345, *real(fd)[5:]])"
    assert copy.python(f"{other}\n{read}") == "False"


def test_nothing_is_kept_where_python_writes_no_compiled_files(copy: Copy) -> None:
    copy.start(PYTHONDONTWRITEBYTECODE="1")
    assert copy.kept() is None
    assert copy.start()[0]


def test_where_nothing_can_be_written_it_starts_as_well(copy: Copy) -> None:
    (copy.package / "launch/__pycache__").write_text("a file where a folder should be")
    assert copy.loaders() == {"SourceFileLoader"}


def test_a_package_that_has_moved_says_where_it_is_now(copy: Copy, tmp_path: Path) -> None:
    copy.start()
    # with the times of its files
    shutil.copytree(tmp_path, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("elsewhere", "topout-runs"))
    moved = object.__new__(Copy)
    moved.folder, moved.package = tmp_path / "elsewhere", tmp_path / "elsewhere/topout"
    moved.environment = copy.environment
    entry = moved.start()[0]["topout.launch.job"]
    assert entry[0] == "_KeptLoader"
    assert entry[1] == entry[5] == str(moved.package / "launch/job.py")
    assert entry[11] == [entry[1]]


def test_the_groups_name_modules_that_are_there_each_once() -> None:
    names = [name for group in start_code.GROUPS for name in start_code._names(group)]
    assert len(names) == len(set(names))
    assert [name for name in names if start_code._kept(name) is None] == []


def test_a_module_that_was_kept_shows_its_source() -> None:
    finder = start_code.StartCode(None, (), {})
    for name in ("topout.launch.rounds", "topout.record.torch_taps"):
        kept = start_code._kept(name)
        spec = finder._spec(name, kept)
        module = start_code.module_from_spec(spec)
        assert spec.loader.is_package(name) == hasattr(module, "__path__")
        assert inspect.getsource(module) == Path(module.__file__).read_text()
