"""The default stays unless another grouping beats it in every round, and clearly."""

from topout.train.buckets import trial


def times(*rounds: list[float]) -> list[tuple[int, list[float]]]:
    """Five equal steps of each candidate, of a round each, in the order in which candidates take turns."""
    order = trial.turns(len(rounds[0]))
    return [(number, 5 * [rounds[place // len(rounds[0])][number]]) for place, number in enumerate(order)]


def test_the_second_round_goes_backwards_against_drift() -> None:
    assert trial.turns(3) == [0, 1, 2, 2, 1, 0]


def test_the_quickest_in_every_round_is_chosen() -> None:
    choice = trial.choose(times([1.0, 0.9, 0.8], [1.1, 1.0, 0.9]), 3)
    assert choice.candidate == 2
    # the quicker six of ten: all five of the first round, and one of the second
    assert abs(choice.gain_share - (1 - (5 * 0.8 + 0.9) / (5 * 1.0 + 1.1))) < 1e-12


def test_one_that_lost_a_round_is_not_chosen_for_being_better_in_the_other() -> None:
    assert trial.choose(times([1.0, 0.9], [1.0, 1.01]), 2).candidate == 0


def test_one_that_is_far_ahead_may_have_been_disturbed_in_a_round() -> None:
    assert trial.choose(times([1.0, 0.75], [1.0, 1.3]), 2).candidate == 1


def test_a_step_that_something_else_made_long_says_nothing_of_its_candidate() -> None:
    disturbed = [(0, [1.0] * 5), (1, [0.95, 0.95, 0.95, 2.0, 3.0]), (1, [0.95] * 5), (0, [1.0] * 5)]
    assert trial.choose(disturbed, 2).candidate == 1


def test_of_sums_of_steps_both_rounds_count() -> None:
    assert trial.choose([(0, [1.0]), (1, [0.7]), (1, [1.2]), (0, [1.0])], 2).candidate == 0


def test_less_than_a_hundredth_is_noise() -> None:
    assert trial.choose(times([1.0, 0.995], [1.0, 0.995]), 2).candidate == 0


def test_of_two_that_take_about_as_long_the_first_is_chosen() -> None:
    assert trial.choose(times([1.0, 0.8, 0.796], [1.0, 0.8, 0.796]), 3).candidate == 1
    assert trial.choose(times([1.0, 0.8, 0.79], [1.0, 0.8, 0.79]), 3).candidate == 2


def test_three_candidates_settle_within_fifty_steps() -> None:
    from topout.train.buckets.autotune import FIRST_TRIED

    assert FIRST_TRIED + trial.num_steps(3) <= 50
