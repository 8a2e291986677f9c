"""The choice of decoder and threads: measured at the start, then judged by what the script gets."""

from topout.feed.tuning import PERIOD, Choice, Chooser, ranked, thread_choices

HOST, FEWER, DEVICE = Choice(16), Choice(8), Choice(1, on_device=True)


def run(chooser: Chooser, choice: Choice, *, wait_ms: float, between_ms: float) -> None:
    """Batches until the choice was judged."""
    for _ in range(PERIOD // 4 + PERIOD):
        assert chooser.current == choice
        chooser.heard(int(wait_ms * 1e6), int(between_ms * 1e6))


def test_fewer_threads_come_first_where_more_gain_nothing() -> None:
    assert ranked({HOST: 0.100, FEWER: 0.102, DEVICE: 0.3}) == [FEWER, HOST, DEVICE]
    assert ranked({HOST: 0.100, FEWER: 0.150, DEVICE: 0.05}) == [DEVICE, HOST, FEWER]


def test_a_script_that_does_not_wait_is_left_alone() -> None:
    chooser = Chooser([FEWER, HOST, DEVICE])
    for _ in range(5):
        run(chooser, FEWER, wait_ms=0.1, between_ms=70)


def test_while_the_script_waits_every_choice_is_tried_and_the_best_stays() -> None:
    chooser = Chooser([FEWER, HOST, DEVICE])
    run(chooser, FEWER, wait_ms=30, between_ms=100)
    run(chooser, HOST, wait_ms=10, between_ms=80)
    run(chooser, DEVICE, wait_ms=5, between_ms=90)
    run(chooser, HOST, wait_ms=10, between_ms=80)
    run(chooser, HOST, wait_ms=10, between_ms=80)


def test_a_choice_that_ends_the_waiting_but_slows_the_script_does_not_stay() -> None:
    chooser = Chooser([HOST, DEVICE])
    run(chooser, HOST, wait_ms=10, between_ms=80)
    run(chooser, DEVICE, wait_ms=0, between_ms=120)
    run(chooser, HOST, wait_ms=10, between_ms=80)


def test_batches_made_before_a_change_are_not_counted_for_it() -> None:
    chooser = Chooser([HOST, DEVICE])
    for _ in range(PERIOD // 4):
        chooser.heard(10**12, 10**12)
    for _ in range(PERIOD):
        chooser.heard(0, 10**6)
    assert chooser.current == HOST and chooser.rates[HOST] == 1000.0


def test_thread_counts_follow_the_cores() -> None:
    assert [choice.num_threads for choice in thread_choices(16)] == [16, 14, 8]
    assert [choice.num_threads for choice in thread_choices(2)] == [2, 1]
    assert [choice.num_threads for choice in thread_choices(1)] == [1]
