"""What comes first stays unless another grouping beats it in every round, or beyond doubt."""

from topout.train.buckets import trial


def times(*rounds: list[float]) -> list[tuple[int, float]]:
    """Step times by candidate, of a round each, in the order in which candidates take turns."""
    order = trial.turns(len(rounds[0]))
    return [(number, rounds[place // len(rounds[0])][number]) for place, number in enumerate(order)]


def test_the_second_round_goes_backwards_against_drift() -> None:
    assert trial.turns(3) == [0, 1, 2, 2, 1, 0]


def test_the_quickest_in_every_round_is_chosen() -> None:
    choice = trial.choose(times([1.0, 0.9, 0.8], [1.1, 1.0, 0.9]), 3)
    assert choice.candidate == 2
    assert abs(choice.gain_share - (1 - 1.7 / 2.1)) < 1e-12


def test_one_that_lost_a_round_is_not_chosen_for_a_little() -> None:
    assert trial.choose(times([1.0, 0.92], [1.0, 1.01]), 2).candidate == 0


def test_a_round_in_which_the_machine_was_slower_does_not_lose_what_is_beyond_doubt() -> None:
    assert trial.choose(times([1.0, 0.8], [1.0, 1.01]), 2).candidate == 1


def test_the_gain_is_told_of_ddps_own_groups_wherever_they_stand() -> None:
    choice = trial.choose(times([0.9, 1.0, 0.95], [0.9, 1.0, 0.95]), 3, default=1)
    assert choice.candidate == 0
    assert abs(choice.gain_share - 0.1) < 1e-12
    beaten_by_little = trial.choose(times([1.0, 0.995], [1.0, 0.995]), 2, default=1)
    assert beaten_by_little.candidate == 0
    assert beaten_by_little.gain_share < 0


def test_less_than_a_hundredth_is_noise() -> None:
    assert trial.choose(times([1.0, 0.995], [1.0, 0.995]), 2).candidate == 0


def test_of_two_that_take_about_as_long_the_first_is_chosen() -> None:
    assert trial.choose(times([1.0, 0.8, 0.796], [1.0, 0.8, 0.796]), 3).candidate == 1
    assert trial.choose(times([1.0, 0.8, 0.79], [1.0, 0.8, 0.79]), 3).candidate == 2


def test_three_candidates_settle_within_fifty_steps() -> None:
    from topout.train.buckets.autotune import FIRST_TRIED

    assert FIRST_TRIED + trial.num_steps(3) <= 50
