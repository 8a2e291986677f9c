"""Local SGD and DiLoCo on two real ranks that begin with different models."""

import pytest
import torch
from torch import nn

from topout.schema.errors import TopoutError
from topout.train.diloco import DiLoCo
from topout.train.local_sgd import LocalSGD
from topout.train.place import alone


@pytest.fixture
def ranks(facts):
    return facts("rare_ranks.py", 2)


def mean(first, second):
    """Of lists of lists of numbers; counts of batches are equal on both ranks here."""
    return [[(a + b) / 2 for a, b in zip(*rows, strict=True)] for rows in zip(first, second, strict=True)]


def flat(values):
    return [value for row in values for value in row]


def test_ranks_begin_with_the_model_of_rank_0(ranks):
    for kind in ("local", "diloco"):
        assert ranks[0][kind]["begun"] == ranks[1][kind]["begun"]


def test_ranks_meet_each_step_of_the_warm_up_and_every_so_many_after_it(ranks):
    assert ranks[0]["local"]["met"] == [1, 2, 6]


def test_between_meetings_ranks_differ_and_at_the_end_they_hold_the_mean_batch_norm_included(ranks):
    first, second = (said["local"] for said in ranks)
    assert first["before"] != second["before"]
    assert first["after"] == second["after"]
    assert flat(first["after"]) == pytest.approx(flat(mean(first["before"], second["before"])), abs=1e-6)


def test_one_step_and_a_meeting_is_the_mean_of_the_steps_apart(ranks):
    apart = mean(*(said["apart"]["before"] for said in ranks))
    assert flat(ranks[0]["one_step"]["after"]) == pytest.approx(flat(apart), abs=1e-6)


def test_diloco_each_step_with_rate_1_and_no_momentum_is_plain_averaging(ranks):
    assert flat(ranks[1]["diloco_plain"]["after"]) == pytest.approx(flat(ranks[0]["every_step"]["after"]), abs=1e-5)


def test_diloco_meets_every_so_many_steps_and_all_ranks_then_hold_the_same(ranks):
    assert ranks[0]["diloco"]["met"] == [3, 6]
    assert ranks[0]["diloco"]["after"] == ranks[1]["diloco"]["after"]


def test_the_first_outer_step_is_nesterovs(ranks):
    """With v = delta at first: begun - lr * (1 + momentum) * (begun - mean), here 0.5 * 1.8 = 0.9 of the way."""
    num_parameters = 6
    begun = flat(ranks[0]["diloco_met"]["begun"][:num_parameters])
    there = flat(mean(*(said["diloco_apart"]["after"] for said in ranks))[:num_parameters])
    expected = [a - 0.9 * (a - b) for a, b in zip(begun, there, strict=True)]
    assert flat(ranks[0]["diloco_met"]["after"][:num_parameters]) == pytest.approx(expected, abs=1e-6)


def test_a_resumed_run_is_the_uninterrupted_one(ranks):
    """Between two meetings, so each rank resumes from parameters of its own."""
    for said in ranks:
        assert said["diloco_resumed"]["after"] == said["diloco_straight"]["after"]


@pytest.mark.parametrize("kind", ["local", "diloco"])
def test_a_checkpoint_between_meetings_gives_each_rank_its_own_parameters_and_momenta(ranks, kind):
    first, second = (said[f"{kind}_checkpointed"] for said in ranks)
    assert first["after"] == first["before"] and second["after"] == second["before"]
    assert all(mine != other for mine, other in zip(first["before"][:6], second["before"][:6], strict=True))


def test_a_finished_run_that_is_taken_up_has_nothing_to_finish(ranks):
    for said in ranks:
        assert said["diloco_finished"]["after"] == said["diloco_finished"]["before"]


def test_a_diloco_state_that_does_not_say_whether_there_is_news_is_judged_by_its_steps():
    class Counted(DiLoCo):
        num_meetings = 0

        def meet(self):
            self.num_meetings += 1
            super().meet()

    model = nn.Linear(2, 2)
    for num_steps, expected in ((3, 1), (4, 0)):
        local = Counted(model, torch.optim.SGD(model.parameters(), lr=0.1), alone(), every=2)
        state = {**local.state_dict(), "num_steps": num_steps}
        del state["has_news"]
        local.load_state_dict(state)
        local.finish()
        assert local.num_meetings == expected


def test_frozen_parameters_stay_at_home(ranks):
    """Parameters are: frozen weight and bias, batch norm's two, weight and bias of the head; then the table."""
    first, second = (said["frozen"] for said in ranks)
    assert first["after"] == second["after"] and first["begun"] == second["begun"]
    table, weight, bias, scale, shift, *_ = first["after"]
    assert [table, weight, bias, scale, shift] == first["begun"][:5]
    assert table == [0, 1, 2, 3]
    # one rank went 1 further, the other 2; the weight, frozen since, as well as the bias
    for after, begun in zip(first["after"][5:7], first["begun"][5:7], strict=True):
        assert after == pytest.approx([value + 1.5 for value in begun], abs=1e-6)
    of_batch_norm, of_head, running = 4 * (5 + 5), 4 * (5 * 2 + 2), 4 * (5 + 5)
    assert first["bytes"] == of_batch_norm + of_head + running


def test_diloco_does_not_move_what_rests(ranks):
    """Parameters are: weight and bias, batch norm's two, weight and bias of the head."""
    first, second = (said["diloco_frozen"] for said in ranks)
    assert first["after"] == second["after"]
    assert first["after"][4:6] == first["before"][4:6]
    # changed on one rank alone, and trained
    assert first["after"][3] != first["before"][3] and first["after"][0] != first["before"][0]


def test_one_rank_alone_trains_as_without(ranks):
    assert flat(ranks[0]["world_1"]["after"]) == pytest.approx(flat(ranks[0]["world_1_apart"]["after"]), abs=1e-6)


def test_an_optimizer_of_another_model_is_refused():
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(TopoutError, match="holds no parameter of this model"):
        DiLoCo(nn.Linear(2, 2), other, alone())


def test_parameters_that_join_later_are_refused():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    local = DiLoCo(model, optimizer, alone())
    optimizer.add_param_group({"params": [model.bias]})
    with pytest.raises(TopoutError, match="holds other parameters than when DiLoCo was made"):
        local.meet()


def test_a_state_of_another_model_is_refused():
    def made(width):
        model = nn.Linear(width, 2)
        return DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), alone())

    with pytest.raises(TopoutError, match="belongs to another model"):
        made(3).load_state_dict(made(2).state_dict())


def test_meeting_every_0_steps_is_refused():
    with pytest.raises(TopoutError, match="every=0 is too small"):
        LocalSGD(nn.Linear(2, 2), alone(), every=0)
