"""A script compiles to what Python makes of it, in whatever it is written."""

import pytest

from topout.record.script_code import _function, script_code

SOURCES = {
    "plain": b"import os\n\n\ndef place():\n    return os.sep\n",
    "without a last line's end": b"x = 1",
    "nothing": b"",
    "ends of lines of another system": b"if True:\r\n    x = 1\r\n",
    "the mark of UTF-8": b"\xef\xbb\xbfx = '\xc3\xa9'\n",
    "another encoding": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
    "annotations of the future": b"from __future__ import annotations\nx: y = 1\n",
}


def test_python_has_the_function_that_this_is_for() -> None:
    assert _function() is not None


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_it_is_the_same_code(source: bytes) -> None:
    assert script_code(source, "/tmp/é.py") == compile(source, "/tmp/é.py", "exec", dont_inherit=True)
    assert script_code(source, "/tmp/é.py").co_filename == "/tmp/é.py"


@pytest.mark.parametrize(
    "source", [b"x = (\n", b"  x = 1\n", b"x = '\xe9'\n", b"a\0b", b"x = \xc3\xa9 +\n", b"\xff\xfe"]
)
def test_it_is_the_same_error(source: bytes) -> None:
    with pytest.raises(Exception) as expected:
        compile(source, "script.py", "exec", dont_inherit=True)
    with pytest.raises(Exception) as caught:
        script_code(source, "script.py")
    assert (caught.type, caught.value.args) == (expected.type, expected.value.args)


def test_it_warns_as_python_does() -> None:
    with pytest.warns(SyntaxWarning) as warned:
        script_code(b"x = 1\ny = x is 1\n", "script.py")
    assert (warned[0].filename, warned[0].lineno) == ("script.py", 2)
