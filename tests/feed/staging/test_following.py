"""A loader's packs are staged along its course, over epochs, jumps and resumes."""

import numpy as np
import pytest

from tests.feed.staging.packs import contents, eventually, make_pack
from topout.epoch.order import order
from topout.epoch.partition import Partition
from topout.feed.mixing import Mixture
from topout.feed.staging.following import Following, ranks_of_node
from topout.feed.staging.staged_pack import open_staged
from topout.feed.staging.stager import StagingOptions
from topout.packs.pack import open_pack

OPTIONS = StagingOptions(budget_bytes=60_000, unit="samples")


@pytest.fixture
def source(tmp_path):
    return make_pack(tmp_path / "slow")


@pytest.fixture
def near(tmp_path):
    return tmp_path / "near"


def iterate(pack, following, epoch, partition):
    following.begin(epoch, partition)
    for number in range(len(partition)):
        positions = partition.batch(number)
        for sample in order(5, epoch, partition.num_positions).at(positions).tolist():
            assert pack.sample(sample)["data"] == contents(sample)
        following.passed(epoch, partition.position_after(number + 1))


def test_epochs_in_a_row_keep_one_course_and_jumps_start_another(source, near):
    with open_staged(source, root=near) as pack:
        following = Following([pack], OPTIONS, order_of=lambda epoch: order(5, epoch, 60), name="seed 5")
        partition = Partition(num_positions=60, batch_size=4)
        stagers = []
        for epoch in (0, 1, 5, 6):
            iterate(pack, following, epoch, partition)
            stagers.append(pack._stager)
        assert stagers[0] is stagers[1]
        assert stagers[1] is not stagers[2]
        assert stagers[2] is stagers[3]
        resumed = Partition(num_positions=60, batch_size=3, start=21)
        iterate(pack, following, 7, resumed)
        assert pack._stager is not stagers[3]
        following.close()
        assert pack._stager is None


def test_packs_of_a_mixture_are_staged_by_their_own_numbers(source, near, tmp_path):
    other = make_pack(tmp_path / "other", num_samples=30)
    with open_pack(other) as plain, open_staged(source, root=near) as pack:
        mixture = Mixture(seed=1, epoch=0, sizes=(30, 60), weights=(0.5, 0.5))
        following = Following(
            [plain, pack], OPTIONS, order_of=lambda _epoch: mixture, name="mixture", batches_at_once=1
        )
        following.begin(0, Partition(num_positions=90, batch_size=4))
        numbers = mixture.at(np.arange(4, 12)) - 30
        wanted = numbers[numbers >= 0].tolist()
        assert wanted
        eventually(lambda: all(pack._near_samples.read(number, 1) is not None for number in wanted))
        following.close()


def test_the_ranks_of_a_node_are_those_of_the_launcher():
    assert ranks_of_node(5, 8, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}) == (4, 5, 6, 7)
    assert ranks_of_node(5, 8, {}) == (5,)
    assert ranks_of_node(0, 1, {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}) == (0,)
    assert ranks_of_node(0, 1, {"LOCAL_RANK": "x", "LOCAL_WORLD_SIZE": "4"}) == (0,)
