"""Descriptors that can be read lead to what is to be called then."""

import os
import time

import pytest

from topout.host.light_selector import Selector


@pytest.fixture
def pipe():
    fds = os.pipe()
    yield fds
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            continue


@pytest.fixture
def selector():
    made = Selector()
    yield made
    made.close()


def test_what_can_be_read_is_called_for_and_nothing_else(selector, pipe):
    said = []
    selector.register(pipe[0], lambda: said.append("read"))
    assert selector.select(0) == []
    os.write(pipe[1], b"x")
    for act in selector.select(10):
        act()
    assert said == ["read"]


def test_an_end_can_be_read_too(selector, pipe):
    selector.register(pipe[0], lambda: None)
    os.close(pipe[1])
    assert len(selector.select(10)) == 1


def test_nobody_waits_for_what_was_taken_back(selector, pipe):
    selector.register(pipe[0], lambda: None)
    assert pipe[0] in selector
    selector.unregister(pipe[0])
    os.write(pipe[1], b"x")
    assert selector.select(0) == []
    assert pipe[0] not in selector
    with pytest.raises(KeyError):
        selector.unregister(pipe[0])


def test_a_descriptor_that_was_closed_can_be_taken_back_and_its_number_used_again(selector, pipe):
    selector.register(pipe[0], lambda: None)
    os.close(pipe[0])
    selector.unregister(pipe[0])
    assert selector.select(0) == []


def test_a_descriptor_has_one_place(selector, pipe):
    selector.register(pipe[0], lambda: None)
    with pytest.raises(KeyError, match="registered already"):
        selector.register(pipe[0], lambda: None)


def test_time_that_is_over_is_no_waiting_without_end(selector, pipe):
    selector.register(pipe[0], lambda: None)
    began = time.monotonic()
    assert selector.select(-1.0) == []
    # without a limit it would never come back
    assert time.monotonic() >= began


def test_it_is_not_inherited(selector):
    assert not os.get_inheritable(selector._epoll.fileno())


def test_of_several_those_that_are_here_are_dropped(selector, pipe):
    selector.register(pipe[0], lambda: None)
    selector.drop([pipe[0], pipe[1], 10**6])
    assert pipe[0] not in selector
    selector.drop([pipe[0]])
