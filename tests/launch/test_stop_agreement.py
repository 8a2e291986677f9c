"""All ranks stop at the same call, however their steps and the launchers' orders interleave, and none hangs."""

import os
import random
import signal
import subprocess
import sys
import threading
from queue import SimpleQueue

import pytest

from topout.launch import stop_agreement
from topout.launch.stop_agreement import Order, StopAgreement, agree, catches, obey
from topout.record import preemption
from topout.record.preemption import RankStop, StopPage


class _OverError(Exception):
    """Ends a thread that still waits when the turns are used up."""


class Turns:
    """Runs threads one at a time; at each `pass_turn` a seeded draw says whose turn is next."""

    def __init__(self, seed):
        self._draw = random.Random(seed)
        self._arrived = SimpleQueue()
        self._go = {}
        self._is_over = False

    def pass_turn(self):
        name = threading.current_thread().name
        self._arrived.put((name, False))
        self._go[name].acquire()
        if self._is_over:
            raise _OverError

    def run(self, actions, most_turns):
        """True when all have ended within so many turns."""
        threads = [threading.Thread(target=self._life, args=(action,), name=name) for name, action in actions.items()]
        self._go = {name: threading.Semaphore(0) for name in actions}
        waiting = set()
        for thread in threads:
            thread.start()
            waiting.add(self._arrived.get()[0])
        for _ in range(most_turns):
            if not waiting:
                break
            name = self._draw.choice(sorted(waiting))
            self._go[name].release()
            _, has_ended = self._arrived.get()
            if has_ended:
                waiting.discard(name)
        self._is_over = True
        for name in waiting:
            self._go[name].release()
        for thread in threads:
            thread.join()
        return not waiting

    def _life(self, action):
        try:
            self.pass_turn()
            action()
        except _OverError:
            pass
        finally:
            self._arrived.put((threading.current_thread().name, True))


class SharedWords(list):
    """A page on which every access may be the moment at which another process gets its turn."""

    turns: Turns

    def __getitem__(self, at):
        self.turns.pass_turn()
        return super().__getitem__(at)

    def __setitem__(self, at, value):
        self.turns.pass_turn()
        super().__setitem__(at, value)


def stops(seed, ranks_of_hosts=(2, 1)):
    """At which call each rank stopped; None for ranks that still waited in the end."""
    turns = Turns(seed)
    draw = random.Random(-seed)
    pages, ranks = [], []
    for num_ranks in ranks_of_hosts:
        words = SharedWords([0] * (2 + 2 * num_ranks))
        words.turns = turns
        pages.append(StopPage(-1, words))
        ranks += [RankStop(words, slot) for slot in range(num_ranks)]
    joined = [0] * len(ranks)
    stopped = [None] * len(ranks)

    def train(number):
        for step in range(1, 10_000):
            joined[number] = step
            while min(joined) < step:  # the all-reduce of this step
                turns.pass_turn()
            if ranks[number].should_stop():
                stopped[number] = step
                return

    def lead():
        for _ in range(draw.randrange(200)):
            turns.pass_turn()
        agreement = StopAgreement(hosts=range(len(pages)))
        orders = [agreement.ask(0.0)]
        while orders:
            order = orders.pop(0)
            hosts = draw.sample(range(len(pages)), len(pages))
            for host in hosts:
                for _ in range(draw.randrange(30)):  # the way to this host
                    turns.pass_turn()
                answer = obey(pages[host], order)
                if answer is not None and (following := agreement.hear(host, order.round, answer)):
                    orders.append(following)

    actions = {f"rank {number}": (lambda number=number: train(number)) for number in range(len(ranks))}
    turns.run({**actions, "head": lead}, most_turns=20_000)
    return stopped


@pytest.fixture
def no_sleep(monkeypatch):
    monkeypatch.setattr(preemption, "_SETTLING_S", 0)
    monkeypatch.setattr(preemption, "_LOOK_EVERY_S", 0)


@pytest.mark.parametrize("ranks_of_hosts", [(1,), (2,), (2, 1), (1, 1, 1)])
def test_ranks_agree_in_every_interleaving_tried(no_sleep, ranks_of_hosts):
    for seed in range(100):
        stopped = stops(seed, ranks_of_hosts)
        assert None not in stopped and len(set(stopped)) == 1, (seed, stopped)


def test_the_interleavings_find_a_call_that_is_chosen_too_low(no_sleep, monkeypatch):
    monkeypatch.setattr(stop_agreement, "agree", max)
    assert any(len(set(stops(seed))) > 1 for seed in range(100))


def test_the_interleavings_find_a_page_that_is_not_frozen(no_sleep, monkeypatch):
    monkeypatch.setattr(StopPage, "freeze", lambda page: max(page.calls()))
    assert any(len(set(stops(seed))) > 1 for seed in range(100))


def test_the_call_is_the_first_that_nobody_has_entered():
    assert agree([5, 7, 6]) == 8
    assert agree([0, 0]) == 1


def test_a_host_that_does_not_answer_lets_the_others_go_on_until_it_does():
    agreement = StopAgreement(hosts=[0, 1], answer_within_s=5, again_after_s=2)
    assert agreement.ask(100.0) == Order(kind="freeze", round=1)
    assert agreement.hear(0, 1, 40) is None
    assert agreement.look(104.9) is None
    assert agreement.look(105.0) == Order(kind="withdraw", round=1)
    assert agreement.hear(1, 1, 40) is None, "too late for its round"
    assert agreement.ask(105.5) is None, "the next round begins by itself"
    assert agreement.look(106.9) is None
    assert agreement.look(107.0) == Order(kind="freeze", round=2)
    assert agreement.hear(1, 2, 61) is None
    assert agreement.hear(0, 2, 60) == Order(kind="stop", round=2, call=62)
    assert agreement.stop_at == 62


def test_a_host_whose_ranks_have_ended_is_not_waited_for():
    agreement = StopAgreement(hosts=[0, 1, 2])
    assert agreement.leave(0) is None, "nobody has asked yet"
    agreement.ask(0.0)
    assert agreement.hear(1, 1, 40) is None
    assert agreement.leave(2) == Order(kind="stop", round=1, call=41)
    assert agreement.leave(1) is None, "decided already"


def test_a_call_that_ranks_have_passed_before_they_ended_is_none_to_stop_at():
    agreement = StopAgreement(hosts=[0, 1])
    agreement.ask(0.0)
    agreement.hear(0, 1, 90)
    assert agreement.leave(0) is None
    assert agreement.hear(1, 1, 89) == Order(kind="stop", round=1, call=91)


class Hosts(list):
    num_walks = 0

    def __iter__(self):
        self.num_walks += 1
        return super().__iter__()


def test_of_thousands_that_answer_or_leave_none_makes_the_head_walk_over_all():
    hosts = Hosts(range(1000))
    agreement = StopAgreement(hosts=hosts)
    agreement.ask(0.0)
    orders = [agreement.leave(host) if host % 2 else agreement.hear(host, 1, host) for host in range(1000)]
    assert orders == [*[None] * 999, Order(kind="stop", round=1, call=999)]
    assert hosts.num_walks == 1


def test_when_all_have_ended_there_is_nothing_to_agree_on():
    agreement = StopAgreement(hosts=[0])
    agreement.ask(0.0)
    assert agreement.leave(0) is None


def test_asking_twice_changes_nothing():
    agreement = StopAgreement(hosts=[0])
    assert agreement.ask(0.0) is not None
    assert agreement.ask(0.1) is None
    assert agreement.hear(0, 1, 3) == Order(kind="stop", round=1, call=4)
    assert agreement.ask(9.0) is None
    assert agreement.hear(0, 1, 9) is None
    assert agreement.look(100.0) is None


def test_an_order_survives_the_way_to_another_host():
    order = Order(kind="stop", round=3, call=41)
    assert Order.from_wire(order.to_wire()) == order


def test_ranks_go_on_after_a_withdrawal():
    page = StopPage.create(1)
    rank = RankStop(page._words, 0)
    assert obey(page, Order(kind="freeze", round=1)) == 0
    obey(page, Order(kind="withdraw", round=1))
    assert not rank.should_stop()
    assert obey(page, Order(kind="freeze", round=2)) == 1
    obey(page, Order(kind="stop", round=2, call=3))
    assert (page.stop_at, page.has_told) == (3, False)
    assert [rank.should_stop() for _ in range(3)] == [False, True, True]
    assert page.has_told


def test_a_process_that_blocks_a_signal_does_not_handle_it_yet():
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        assert not catches(os.getpid(), signal.SIGUSR1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        assert catches(os.getpid(), signal.SIGUSR1)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        signal.signal(signal.SIGUSR1, before)


def test_only_a_process_that_handles_a_signal_is_said_to():
    program = "import signal, sys; signal.signal(signal.SIGUSR1, print); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert catches(process.pid, signal.SIGUSR1)
        assert not catches(process.pid, signal.SIGUSR2)
        process.stdin.close()
    assert not catches(process.pid, signal.SIGUSR1)
    assert not catches(os.getpid(), signal.SIGKILL)
