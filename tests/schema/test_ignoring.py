"""Errors of these kinds and of those derived from them end the block and nothing else."""

import pytest

from topout.schema.ignoring import ignoring


def test_the_block_ends_and_the_rest_goes_on():
    done = []
    with ignoring(OSError, ValueError):
        done.append(1)
        raise FileNotFoundError
        done.append(2)
    assert done == [1]


def test_others_pass():
    with pytest.raises(KeyError), ignoring(OSError):
        raise KeyError
    with pytest.raises(KeyboardInterrupt), ignoring(Exception):
        raise KeyboardInterrupt
    with ignoring(OSError):
        pass
