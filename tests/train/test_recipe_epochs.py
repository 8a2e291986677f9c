"""A recipe that goes on at another number of ranks has the rate and the steps of that number."""

import pytest
import torch
from torch.utils.data import DataLoader

import topout
from topout.cli.main import main
from topout.recipes.epochs import batches_behind, check_enough, set_rates, steps_behind
from topout.recipes.resnet50_input import make_small_folders
from topout.recipes.surrogate_mlp_data import make_rows, write_rows
from topout.schema.errors import ExitCode, TopoutError
from topout.train.place import alone
from topout.train.sharding import shard

WATCHED = """
import sys

import topout
from topout.recipes import resnet50

# the scheduler's warning is heard at this call
last, num_calls = int(sys.argv.pop()), 0


def should_stop():
    global num_calls
    num_calls += 1
    tell()
    return num_calls >= last


def watched(model, batches, stepper, ctx, **more):
    global tell

    def tell():
        state = batches.state_dict()
        if ctx.is_first:
            print("at", state["epoch"], state["position"], stepper.step, stepper.optimizer.param_groups[0]["lr"])

    tell()
    return train_epoch(model, batches, stepper, ctx, **more)


topout.should_stop, train_epoch, resnet50.train_epoch = should_stop, resnet50.train_epoch, watched
resnet50.main()
"""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("few")
    make_small_folders(folder, num_classes=2, num_train=42, num_eval=4, size=40)
    return folder


def rates_at(stdout):
    """{(epoch, samples into it): (step, rate)}"""
    words = [line.split()[1:] for line in stdout.splitlines() if line.startswith("at ")]
    return {(int(epoch), int(position)): (int(step), float(rate)) for epoch, position, step, rate in words}


def test_two_ranks_stopped_and_one_that_goes_on_have_the_rates_of_one_that_was_not(pictures, tmp_path, run_ranks):
    options = ["--small", "--data", pictures, "--epochs", 3, "--batch-size", 8, "--size", 32, "--precision", "fp32"]
    saving = [*options, "--checkpoints", tmp_path / "saved"]
    [whole] = run_ranks(WATCHED, 1, [*options, 1000])
    assert whole.code == 0, whole.stderr
    # 84 images: 5 steps an epoch on two ranks, and a call of should_stop more after each epoch
    begun, _ = run_ranks(WATCHED, 2, [*saving, 8])
    assert begun.code == 0, begun.stderr
    assert max(rates_at(begun.stdout)) == (1, 32)
    [ended] = run_ranks(WATCHED, 1, [*saving, 1000])
    assert ended.code == 0, ended.stderr
    expected, found = rates_at(whole.stdout), rates_at(ended.stdout)
    assert min(found) == (1, 32)
    assert found == {place: expected[place] for place in expected if place >= (1, 32)}
    assert found[max(found)] == (30, 0.0)
    assert expected[1, 32][1] > 0.01


def test_a_warning_between_batches_of_a_step_is_heard_after_the_step(pictures, tmp_path, run_ranks):
    options = ["--small", "--data", pictures, "--epochs", 2, "--batch-size", 8, "--size", 32, "--accumulate", 3]
    [ended] = run_ranks(WATCHED, 1, [*options, "--precision", "fp32", "--checkpoints", tmp_path / "saved", 1])
    assert ended.code == 0, ended.stderr
    assert "does not hold their gradients" not in ended.stderr
    assert max(rates_at(ended.stdout)) == (0, 24)  # three batches, one step
    assert "loss" in ended.stdout


@pytest.mark.parametrize("position", [0, 8, 12, 20, 36, 39, 40, 41])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_batches_are_counted_from_the_end_of_the_epoch(position, accumulate):
    batches = shard(DataLoader(range(41), 4, shuffle=True, drop_last=True), alone())
    batches.load_state_dict({**batches.state_dict(), "epoch": 2, "position": position})
    done, step = batches_behind(batches, 4), steps_behind(batches, 4, accumulate)
    left = sum(1 for _ in batches)
    assert done + left == len(batches) == 10
    steps_per_epoch = -(-10 // accumulate)
    assert step + -(-left // accumulate) == 3 * steps_per_epoch
    assert steps_behind(batches, 4, accumulate) == 3 * steps_per_epoch
    assert batches_behind(batches, 4) == 0


def test_batches_of_packs_are_counted_alike(tmp_path):
    write_rows(tmp_path / "rows", *make_rows(60))  # a tenth is for testing
    with pytest.raises(SystemExit) as ended:
        main(["pack", str(tmp_path / "rows" / "train.npz"), str(tmp_path / "pack"), "--quiet"])
    assert not ended.value.code
    for position in (0, 6, 22, 52, 54):
        with topout.Loader(tmp_path / "pack", 4, rank=0, world_size=1) as batches:
            batches.load_state_dict({**batches.state_dict(), "position": position})
            left = (54 - position) // 4
            assert batches_behind(batches, 4) == 13 - left
            if left:
                assert sum(1 for _ in batches) == left


def test_a_schedule_goes_on_from_rates_that_are_given():
    def made(rate):
        optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=rate)
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

    straight, other = made(0.4), made(9.0)
    for _ in range(7):
        straight.optimizer.step()
        straight.step()
    set_rates(other, [0.4], 7)
    for _ in range(2):
        assert other.get_last_lr() == straight.get_last_lr()
        assert other.optimizer.param_groups[0]["lr"] == straight.optimizer.param_groups[0]["lr"]
        assert other.optimizer.param_groups[0]["initial_lr"] == 0.4
        for one in (straight, other):
            one.optimizer.step()
            one.step()


def test_data_that_fill_no_batch_are_refused():
    class Options:
        batch_size = 32

    with pytest.raises(TopoutError, match="do not fill one batch of 32") as refused:
        check_enough(DataLoader(range(17), 32, drop_last=True), Options)
    assert refused.value.exit_code == ExitCode.USAGE
    assert "--batch-size" in refused.value.do
    check_enough(DataLoader(range(32), 32, drop_last=True), Options)


def test_pictures_and_text_that_fill_no_batch_end_at_once(pictures, tmp_path, run_ranks):
    recipes = "from topout.recipes import {0}\n{0}.main()\n"
    [ended] = run_ranks(recipes.format("resnet50"), 1, ["--small", "--data", pictures, "--batch-size", 100])
    assert "do not fill one batch of 100" in ended.stderr
    (tmp_path / "text").write_bytes(b"to be or not to be " * 1000)
    (tmp_path / "mesh.toml").write_text("[mesh]\n")
    text = ["--small", "--text", tmp_path / "text", "--context", 1024, "--batch-size", 32]
    for options in (text, [*text, "--mesh", tmp_path / "mesh.toml"]):
        [ended] = run_ranks(recipes.format("gpt_small"), 1, options, timeout=60)
        assert "do not fill one batch of 32" in ended.stderr
        assert ended.code != 0
