"""Functions of the C library are found by name and take numbers and bytes."""

import os

from topout.host.c_library import _by_ctypes, c_function


def test_numbers_and_bytes_arrive():
    for find in (c_function, _by_ctypes):
        assert find("abs")(-7) == 7
        assert find("strlen")(b"seven..") == 7
        assert find("getpid")() == os.getpid()


def test_what_the_library_has_not_is_none():
    assert c_function("no_such_function_anywhere") is None
    assert _by_ctypes("no_such_function_anywhere") is None
