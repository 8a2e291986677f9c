"""No room, file or function grows until nobody can see over it, and no name says nothing."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "topout"
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60
LARGEST_SHARE_OF_A_ROOM = 0.25  # 0.15 once all rooms of the house plan exist
SAY_NOTHING = {"utils", "util", "common", "core", "helpers", "helper", "base", "misc"}
FILES = sorted(PACKAGE.rglob("*.py"))

Function = ast.FunctionDef | ast.AsyncFunctionDef


def num_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def functions(source: str) -> Iterator[tuple[str, int]]:
    """Name and lines of every function; its docstring does not count, for explaining must cost nothing."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            docstring = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
            explained = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
            yield node.name, node.end_lineno - node.lineno + 1 - explained


def too_long(source: str) -> list[str]:
    return [f"{name} has {lines} lines" for name, lines in functions(source) if lines >= MOST_LINES_OF_A_FUNCTION]


def name_says_nothing(path: Path) -> bool:
    return any(part.removesuffix(".py").strip("_") in SAY_NOTHING for part in path.parts)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_and_its_functions_stay_short(path: Path) -> None:
    assert num_lines(path) < MOST_LINES_OF_A_FILE, "split the file along a noun of the domain"
    assert too_long(path.read_text()) == [], "give a part of the function a name of its own"


def test_no_room_eats_the_house() -> None:
    rooms = {room.name: sum(map(num_lines, room.rglob("*.py"))) for room in PACKAGE.iterdir() if room.is_dir()}
    total = sum(rooms.values())
    large = {name: f"{lines / total:.0%}" for name, lines in rooms.items() if lines > LARGEST_SHARE_OF_A_ROOM * total}
    assert large == {}, f"of {total} lines"


def test_every_name_says_something() -> None:
    assert [str(path) for path in FILES if name_says_nothing(path.relative_to(PACKAGE))] == []


def test_every_module_says_what_it_is() -> None:
    modules = {path: ast.parse(path.read_text()) for path in FILES}
    silent = [
        str(path.relative_to(PACKAGE)) for path, tree in modules.items() if tree.body and not ast.get_docstring(tree)
    ]
    assert silent == []


def test_the_root_of_the_package_holds_rooms_not_code() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} <= {"__init__.py", "__main__.py"}


def test_a_long_function_is_noticed_and_its_docstring_is_free() -> None:
    body = "    x = 1\n" * 59
    docstring = '    """Line.\n' + "    more\n" * 80 + '    """\n'
    assert too_long("def f():\n" + body) == ["f has 60 lines"]
    assert too_long("def f():\n" + docstring + "    x = 1\n" * 58) == []


def test_an_empty_name_is_noticed() -> None:
    assert name_says_nothing(Path("feed/utils.py"))
    assert name_says_nothing(Path("core/steps.py"))
    assert not name_says_nothing(Path("analyze/steps.py"))
