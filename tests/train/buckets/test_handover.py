"""Handing the core over: on links that leave it idle, at moments that lie apart, and never to whoever keeps it."""

import time
from types import SimpleNamespace

import pytest
import torch

from topout.train.buckets import handover
from topout.train.buckets.autotune import candidates
from topout.train.buckets.grouping import Gradient
from topout.train.buckets.handover import LONGEST_S, Handover
from topout.train.buckets.ready import ReadyTimes
from topout.train.link import Link

SLOW = Link(alpha_s=1e-4, bytes_per_s=1e8, busy_share=0.1)
WITHIN_A_HOST = Link(alpha_s=1e-4, bytes_per_s=1e9, busy_share=0.97)


@pytest.fixture
def handed_over(monkeypatch):
    """Counts turns, each of which takes as long as `takes_s` says at that moment."""

    class Counter:
        count, takes_s, now_s = 0, 0.0, 0.0

        def __call__(self):
            self.count += 1
            self.now_s += self.takes_s

    counter = Counter()
    monkeypatch.setattr(handover, "_hand_over", counter)
    monkeypatch.setattr(handover, "time", SimpleNamespace(perf_counter=lambda: counter.now_s))
    return counter


@pytest.fixture
def layers():
    return [torch.nn.Linear(4, 4, bias=False) for _ in range(5)]


def backward(layers):
    torch.nn.Sequential(*layers)(torch.ones(2, 4)).sum().backward()


def in_order_of_backward(layers):
    return [layer.weight for layer in reversed(layers)]


def test_a_turn_follows_each_of_these_gradients_until_turns_end(handed_over, layers):
    handed = Handover(in_order_of_backward(layers)[1:4])
    backward(layers)
    assert handed_over.count == 3
    handed.remove()
    backward(layers)
    assert handed_over.count == 3


def test_whoever_keeps_the_core_gets_it_once_in_a_backward(handed_over, layers):
    Handover(in_order_of_backward(layers))
    handed_over.takes_s = 2 * LONGEST_S
    backward(layers)
    assert handed_over.count == 1
    handed_over.takes_s = 0.0
    backward(layers)
    assert handed_over.count == 1 + len(layers)


def test_no_parameters_no_turns(handed_over, layers):
    Handover([])
    backward(layers)
    assert handed_over.count == 0


def test_moments_lie_apart_in_the_order_of_backward(monkeypatch, layers):
    ready = ReadyTimes([layer.weight for layer in layers], lambda: True)
    seconds = iter([0.0, 1.0, 1.1, 1.4, 1.6, 2.4])
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    ready.begin()
    backward(layers)
    # from 1.0 on: 1.6 is the first half a second later, 2.4 the next
    expected = in_order_of_backward(layers)
    assert [id(parameter) for parameter in ready.apart(0.5)] == [id(expected[3]), id(expected[4])]


@pytest.mark.parametrize(
    ("link", "by_cpu", "expected"), [(SLOW, True, True), (WITHIN_A_HOST, True, False), (SLOW, False, False)]
)
def test_turns_are_tried_where_the_link_leaves_the_processor_idle_and_never_with_ddps_own_groups(
    link, by_cpu, expected
):
    gradients = [Gradient(num_bytes=1_000_000, ready_s=0.001 * number) for number in range(8)]
    default, *others = candidates(gradients, link, {}, by_cpu=by_cpu)
    assert not default.hands_over
    assert others
    assert all(candidate.hands_over is expected for candidate in others)
