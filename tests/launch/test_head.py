"""The leading launcher waits for those that are there, starts all of them alike, and forgets those that are gone."""

import os
import signal
import socket
import threading
import time

import pytest

from tests.launch.test_plain_values import world_of
from topout.host.light_selector import Selector
from topout.launch import head as leading
from topout.launch.agent import Agent
from topout.launch.first_failure import RankEnd
from topout.launch.following import FollowingFellows
from topout.launch.head import Head
from topout.launch.link import Link
from topout.launch.member import Member
from topout.launch.outcome import Cause
from topout.launch.plain_values import from_outline, from_plain, outline, to_plain
from topout.launch.roster import Roster
from topout.launch.run_record import RunRecord
from topout.launch.signals import EndedByError, LauncherSignals
from topout.launch.stopping import Stopping
from topout.launch.wire import Wire
from topout.schema.launcher_process import describe_launcher
from topout.schema.run_folder import RunFolder
from topout.schema.spec import RunSpec
from topout.schema.world import Core, Host, Rank, World

CORES = tuple(Core(index=index, physical=index, socket=0, numa=0) for index in range(4))
LAUNCHER = {"pid": 7, "host": "n0", "boot_id": None, "pid_namespace": None, "start_ticks": 40}


class FakeSupervisor:
    def __init__(self):
        self.causes: list[Cause] = []
        self.num_hurried = 0

    def hurry(self):
        self.num_hurried += 1
        return self.num_hurried == 1

    def end_job(self, cause, orders, *, number=None, rank=None):
        self.causes.append(cause)


class Job:
    """A head, and the other ends of its links, which a test holds."""

    def __init__(self, num_hosts: int):
        self.hosts = [
            Host(name=f"n{number}", cores=CORES, memory_bytes=1, address=f"10.0.0.{number}")
            for number in range(num_hosts)
        ]
        pairs = [socket.socketpair() for _ in self.hosts]
        self.agents = [self._wire(right) for _, right in pairs]
        links = [
            Link(self._wire(left), Member(number=number, host=host))
            for number, (host, (left, _)) in enumerate(zip(self.hosts, pairs, strict=True))
        ]
        self.head = Head(links, None, "secret", lambda text: None)
        self.supervisor = FakeSupervisor()
        self.selector = Selector()

    def _wire(self, connection: socket.socket) -> Wire:
        wire = Wire(connection)
        wire._settle()
        wire._longest_bytes = 1 << 24
        return wire

    def start(self, numbers: list[int]) -> World:
        """One rank on each of these."""
        ranks = [
            Rank(rank=place, local_rank=0, node_rank=place, host=f"n{number}", cores=(0, 1), num_threads=2)
            for place, number in enumerate(numbers)
        ]
        hosts = tuple(self.hosts[number] for number in numbers)
        world = World(hosts=hosts, ranks=tuple(ranks), master_address="10.0.0.1", master_port=1)
        roster = Roster(world=world, ranks_of={number: (rank,) for number, rank in zip(numbers, ranks, strict=True)})
        self.head.start(roster, world, RunSpec(script="train.py"), cwd="/")
        self.selector.close()
        self.selector = Selector()
        self.head.register(self.selector, self.supervisor)
        return world

    def listen(self) -> None:
        while events := self.selector.select(0):
            for act in events:
                act()

    def ends_well(self, number: int, rank: int) -> None:
        end = RankEnd(rank=rank, host=f"n{number}", pid=1, ended_at_ns=1, exit_code=0)
        self.agents[number].send("ended", end=to_plain(end))
        self.agents[number].send("finished")
        self.listen()


def leave(agent: Wire) -> None:
    """As an agent does that SIGTERM reaches before the start."""
    agent.send("ending", cause=Cause.INTERRUPTED, orders=[[0, 15]], number=int(signal.SIGTERM), rank=None)


@pytest.fixture
def job_of():
    jobs: list[Job] = []

    def make(num_hosts: int) -> Job:
        jobs.append(Job(num_hosts))
        return jobs[-1]

    yield make
    for job in jobs:
        job.head.dismiss(0)
        job.selector.close()
        for agent in job.agents:
            agent.close()


def test_a_round_after_a_host_was_lost_ends_as_the_ranks_of_that_round_do(job_of):
    job = job_of(2)
    job.start([0, 1])
    job.agents[1].close()
    job.listen()
    job.ends_well(0, rank=0)
    assert job.supervisor.causes == [Cause.HOST_LOST]
    assert job.head.lost_hosts == ["n1"]
    assert sorted(end.exit_code for end in job.head.ends()) == [0, 4]
    job.start([0])
    job.ends_well(0, rank=0)
    assert not job.head.is_busy
    assert [(end.rank, end.exit_code) for end in job.head.ends()] == [(0, 0)]


def test_nothing_of_an_earlier_round_is_told_of_the_next(job_of):
    job = job_of(1)
    job.start([0])
    job.head.tails[0], job.head.oom_kills[0], job.head.has_told = "old words", 1, True
    job.start([0])
    assert (job.head.tails, job.head.oom_kills, job.head.has_told) == ({}, {}, False)


def test_of_many_launchers_that_were_asked_twice_all_hear_it_once(job_of):
    job = job_of(2)
    job.start([0, 1])
    for agent in job.agents:
        agent.send("hurry")
    job.listen()
    kinds = [[message["kind"] for message in agent.receive()] for agent in job.agents]
    assert [own.count("hurry") for own in kinds] == [1, 1]


def test_a_host_that_leaves_before_it_has_read_the_start_was_told_to(job_of):
    job = job_of(2)
    job.start([0, 1])
    leave(job.agents[1])
    job.agents[1].close()
    job.listen()
    # that its connection broke is no news
    assert job.supervisor.causes[0] is Cause.INTERRUPTED


def asked(job, signals):
    """The hosts' ports, which they are asked for before they start."""
    ranks = tuple(
        Rank(rank=number, local_rank=0, node_rank=number, host=f"n{number}", cores=(0,), num_threads=1)
        for number in range(len(job.hosts))
    )
    ranks_of = {rank.rank: (rank,) for rank in ranks}
    world = World(hosts=tuple(job.hosts), ranks=ranks, master_address="", master_port=0)
    return job.head.prepare(Roster(world=world, ranks_of=ranks_of), signals)


def test_a_signal_ends_the_job_while_hosts_are_asked(job_of):
    job = job_of(2)
    with LauncherSignals() as signals:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        began = time.monotonic()
        with pytest.raises(EndedByError) as ended:
            asked(job, signals)
    assert ended.value.number == signal.SIGTERM
    assert time.monotonic() - began < 5


def test_ctrl_z_while_hosts_are_asked_waits_for_the_ranks(job_of):
    """A head that stops here answers nobody, and afterwards all are late."""
    job = job_of(1)
    with LauncherSignals() as signals:
        os.kill(os.getpid(), signal.SIGTSTP)
        job.agents[0].send("prepared", ports=[7], address="10.0.0.0", master_port=8, why=None)
        assert asked(job, signals).master_port == 8
        assert signals.taken() == [signal.SIGTSTP]


def test_a_host_that_leaves_because_it_was_told_to_is_not_lost(job_of):
    job = job_of(2)
    leave(job.agents[1])
    with LauncherSignals() as signals, pytest.raises(EndedByError):
        asked(job, signals)


def test_what_came_together_with_the_start_is_for_its_ranks():
    left, right = socket.socketpair()
    fellows = FollowingFellows(Wire(left))
    fellows.early = [{"kind": "end", "cause": "interrupted", "orders": [[0, 15]], "number": 15}, {"kind": "bye"}]
    supervisor, selector = FakeSupervisor(), Selector()
    fellows.register(selector, supervisor)
    assert supervisor.causes == [Cause.INTERRUPTED]
    assert [message["kind"] for message in fellows.unread] == ["bye"]
    for closable in (selector, left, right):
        closable.close()


def test_time_in_which_the_head_itself_was_stopped_makes_nobody_lost(job_of):
    job = job_of(2)
    job.start([0, 1])
    began = time.monotonic()
    job.head.tick(began + 1)
    # nobody could be heard for ten minutes, and then nobody has said anything yet
    for away in (600, 601, 655):
        job.head.tick(began + away)
    assert job.supervisor.causes == []


def test_a_host_that_is_silent_while_the_head_looks_is_lost(job_of):
    job = job_of(1)
    job.start([0])
    began = time.monotonic()
    for second in range(1, 60):
        job.head.tick(began + second)
    assert job.supervisor.causes == []
    job.head.tick(began + 62)
    assert job.supervisor.causes == [Cause.HOST_LOST]


def test_all_launchers_are_told_their_own_ranks_and_an_outline_of_the_world(job_of):
    job = job_of(2)
    world = job.start([0, 1])
    told = [agent.receive()[-1] for agent in job.agents]
    own = [[from_plain(Rank, rank) for rank in message["ranks"]] for message in told]
    assert own == [[rank] for rank in world.ranks]
    assert [(message["kind"], message["cwd"], message["spec"]["script"]) for message in told] == 2 * [
        ("start", "/", "train.py")
    ]
    for message, host, ranks in zip(told, job.hosts, own, strict=True):
        heard = from_outline(message["world"], host, ranks)
        assert (heard.master_address, heard.master_port) == ("10.0.0.1", 1)
        assert [(host.name, host.address) for host in heard.hosts] == [("n0", "10.0.0.0"), ("n1", "10.0.0.1")]
        assert [(rank.rank, rank.node_rank) for rank in heard.ranks] == [(0, 0), (1, 1)]


def test_each_launcher_is_asked_for_the_stacks_of_its_own_ranks(job_of):
    job = job_of(3)
    job.start([0, 1, 2])
    for agent in job.agents:
        agent.receive()
    job.head.ask_stacks([0, 2])
    assert [[message["ranks"] for message in agent.receive()] for agent in job.agents] == [[[0]], [], [[2]]]


def test_what_all_launchers_are_told_is_put_into_words_once(job_of, monkeypatch):
    job = job_of(3)
    nouns: list = []
    monkeypatch.setattr(leading, "outline", lambda world: nouns.append(type(world).__name__) or outline(world))
    job.start([0, 1, 2])
    assert nouns == ["World"]


def test_a_start_longer_than_the_sockets_buffer_leaves_before_the_first_beat(job_of, monkeypatch):
    job = job_of(2)
    job.hosts[0] = Host(name="n" * 1_000_000, cores=(), memory_bytes=1)
    flushes: list[int] = []
    flush = Wire.flush

    def read_then_flush(wire):
        flushes.append(1)
        flush(wire)
        for number, agent in enumerate(job.agents):
            heard[number] += [message["kind"] for message in agent.receive()]

    heard: dict[int, list[str]] = {0: [], 1: []}
    monkeypatch.setattr(Wire, "flush", read_then_flush)
    job.start([0, 1])
    assert heard == {0: ["start"], 1: ["start"]}
    assert len(flushes) > 2


def test_a_rank_is_told_to_stop_although_another_host_has_finished(job_of):
    """One launcher is through before the warning, another in the middle of the round."""
    job = job_of(3)
    job.start([0, 1, 2])
    said: list[str] = []
    job.head.stopping = Stopping(None, own=None, others=[0, 1, 2], send=job.head.order_stop, say=said.append)
    for agent in job.agents:
        agent.receive()
    job.ends_well(0, rank=0)
    job.head.stopping.warned(10)
    assert [message["order"]["kind"] for message in job.agents[2].receive()] == ["freeze"]
    job.agents[2].send("frozen", round=1, highest=7)
    job.listen()
    assert job.agents[2].receive() == []
    job.ends_well(1, rank=1)
    assert [message["order"] for message in job.agents[2].receive()] == [{"kind": "stop", "round": 1, "call": 8}]
    assert job.agents[0].receive() == []


@pytest.fixture
def follower(tmp_path, monkeypatch):
    """A launcher on a host without the head's folder, and what it has told the head."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, right = socket.socketpair()
    agent = Agent(Wire(left), Member(number=1, host=Host(name="n1", cores=CORES, memory_bytes=1)), "secret")
    head = Wire(right)
    head._settle()
    yield agent, lambda: [message["text"] for message in head.receive()], head
    left.close()
    right.close()


def test_a_follower_that_still_writes_is_heard_and_has_patience_until_it_is_hurried(follower):
    """A file system that does not answer: the head must neither take it for gone nor wait for ever."""
    agent, _, head = follower
    agent._wire._settle()
    goes_on = agent._patience(FollowingFellows(agent._wire))
    assert goes_on() and goes_on()
    assert [message["kind"] for message in head.receive()] == ["beat", "beat"]
    head.send("bye", exit_code=0)
    assert goes_on()
    head.send("hurry")
    assert not goes_on()
    assert agent._messages[0]["kind"] == "bye"


def test_a_host_without_the_run_folder_keeps_its_files_in_its_users_own(follower, tmp_path):
    agent, told, _ = follower
    folder = agent._folder("/nowhere/runs/train-1", LAUNCHER)
    own = tmp_path / f"topout-runs-{os.getuid()}"
    assert (folder.path.parent, folder.path.name[:8]) == (own, "train-1-")
    assert (folder.path / "logs").is_dir()
    assert own.stat().st_mode & 0o777 == 0o700
    assert told() == [f"/nowhere/runs/train-1 is not there; the files of its ranks are in n1:{folder.text}"]


def test_files_that_a_host_keeps_are_those_of_one_run(follower):
    """Two heads may each have a train-1; several launchers on one host may follow the same."""
    agent, _, _ = follower
    one, same, other, elsewhere = (
        agent._folder(run, {**LAUNCHER, "pid": pid})
        for run, pid in (("/a/train-1", 7), ("/a/train-1", 7), ("/a/train-1", 8), ("/b/train-1", 7))
    )
    assert one == same
    assert len({one, other, elsewhere}) == 3


def test_a_folder_that_an_earlier_run_left_at_the_same_path_is_not_taken(follower, tmp_path):
    agent, told, _ = follower
    folder = RunFolder(tmp_path / "train-1")
    folder.path.mkdir()
    record = RunRecord(folder, RunSpec(script="train.py"), world_of(300), ["topout", "run"])
    record.write()
    led_by = record.content["launcher"]
    assert agent._folder(folder.text, led_by) == folder
    assert told() == []
    kept = agent._folder(folder.text, {**led_by, "start_ticks": 1})
    assert kept.path.parent == tmp_path / f"topout-runs-{os.getuid()}"
    assert told() == [f"{folder.text} is another run's folder there; the files of its ranks are in n1:{kept.text}"]


def test_hosts_are_told_which_launcher_leads_the_run(job_of):
    job = job_of(1)
    job.start([0])
    assert [message["launcher"] for message in job.agents[0].receive()] == [describe_launcher()]


def test_a_host_that_can_keep_no_files_trains_without(follower, tmp_path):
    agent, told, _ = follower
    own = tmp_path / f"topout-runs-{os.getuid()}"
    own.symlink_to(tmp_path)
    assert agent._folder("/nowhere/runs/train-1", LAUNCHER) is None
    assert told() == [
        f"/nowhere/runs/train-1 is not there, and nothing is kept of its ranks: {own}: it belongs to somebody else"
    ]
