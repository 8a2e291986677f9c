"""One number tells whether tensors are the same, whatever they are of, and random numbers are lent and given back."""

import os

import pytest
import torch

from topout.train.parallelise.draws import EqualDraws
from topout.train.parallelise.replicas import fingerprint
from topout.train.parallelise.session import Session

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64, torch.complex128]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_change_of_one_element_changes_the_number(dtype) -> None:
    values = torch.zeros(3, 4, dtype=dtype)
    other = values.clone()
    other[1, 2] = 1
    assert fingerprint([values]) != fingerprint([other])
    assert fingerprint([other]) == fingerprint([other.clone()])


def test_no_order_of_adding_changes_the_number() -> None:
    values = torch.randn(7, 1001)
    assert fingerprint([values]) == fingerprint([values.flip(1).t()]) == fingerprint(values.split(3))
    assert fingerprint([]) == 0 and fingerprint([torch.tensor(1.0)]) == 0x3F800000


def test_own_numbers_go_on_where_they_were_once_all_loops_have_ended() -> None:
    torch.manual_seed(5)
    expected = torch.randn(2)
    torch.manual_seed(5)
    draws = EqualDraws()
    draws.begin(1, seed=0, loop=draws.next_loop(), num_taken=0)
    first = torch.randn(2)
    draws.begin(2, seed=0, loop=draws.next_loop(), num_taken=0)
    draws.end(1)
    second = torch.randn(2)
    draws.end(2)
    assert torch.equal(torch.randn(2), expected)
    assert len({tuple(values.tolist()) for values in (first, second, expected)}) == 3


def test_what_is_lent_depends_on_the_loop_and_the_batch_alone() -> None:
    drawn = []
    for own, loop, num_taken in ((5, 1, 0), (6, 1, 0), (5, 2, 0), (5, 1, 1)):
        torch.manual_seed(own)
        draws = EqualDraws()
        draws.begin(1, seed=0, loop=loop, num_taken=num_taken)
        drawn.append(tuple(torch.randn(2).tolist()))
        draws.end_all()
    assert drawn[0] == drawn[1] and len(set(drawn)) == 3


def test_a_forked_worker_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    session = Session()
    child = os.fork()
    if child == 0:
        os._exit(int(session.is_on))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert session.is_on
