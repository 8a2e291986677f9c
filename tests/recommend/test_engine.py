"""Findings are ranked by what they may win, and a broken plug-in takes nothing away."""

import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from topout.recommend import engine
from topout.recommend.engine import apply_rule, examine, find, value_at
from topout.schema import plugin
from topout.schema.finding import Rule
from topout.schema.measures import (
    Communication,
    Device,
    Environment,
    Input,
    Measures,
    Memory,
    Pipeline,
    RankTime,
    Serial,
    StepTime,
    Straggler,
    WaterfallBar,
)

NOTHING = Measures()
STARVED = Measures(input=Input(wait_share=0.2), shares={"input": 0.2})
PLAIN = Rule(
    code="XX01",
    title="A title",
    measure="input.wait_share",
    above=0.1,
    because="{value:.0%} is above {limit:.0%}.",
    advise="Mend it.",
    fires_on=STARVED,
    quiet_on=NOTHING,
)


def codes(measures: Measures) -> list[str]:
    return [finding.code for finding in find(measures)]


def late(rank: int, phase: str, excess_share: float = 0.3, is_persistent: bool = True) -> Straggler:
    return Straggler(rank=rank, host=f"n0{rank}", phase=phase, excess_share=excess_share, is_persistent=is_persistent)


def test_the_largest_possible_gain_comes_first():
    measures = Measures(
        input=Input(wait_share=0.15),
        communication=Communication(transfer_share=0.30),
        serial=Serial(checkpoint_share=0.20),
        shares={"input": 0.15, "transfer": 0.30, "checkpoint": 0.20, "forward": 0.35},
    )
    assert [(finding.code, finding.gain_at_most) for finding in find(measures)] == [
        ("CO01", 0.30),
        ("CK01", 0.20),
        ("IN01", 0.15),
    ]


def test_out_of_memory_comes_before_everything():
    measures = replace(STARVED, memory=Memory(is_out_of_memory=True))
    assert codes(measures) == ["ME02", "IN01"]


def test_nothing_measured_gives_no_finding():
    assert find(NOTHING) == ()


def test_the_gain_of_input_is_that_of_the_rank_that_waits_most():
    ranks = tuple(
        RankTime(rank=rank, host="n01", shares={"input": share, "wait": 0.4 - share}, busy_step_ns=1.0)
        for rank, share in enumerate((0.4, 0.0))
    )
    measures = Measures(input=Input(wait_share=0.2), shares={"input": 0.2, "wait": 0.2}, ranks=ranks)
    found = {finding.code: finding.gain_at_most for finding in find(measures)}
    assert found["IN01"] == 0.4


def test_a_straggler_is_named_with_host_and_phase():
    measures = Measures(
        communication=Communication(wait_share=0.2),
        shares={"wait": 0.2},
        stragglers=(late(1, "forward", 0.1), late(3, "backward", 0.4)),
        environment=Environment(num_ranks=4),
    )
    (finding,) = find(measures)
    assert finding.code == "LB01"
    assert finding.because.startswith(
        "Rank 3 on n03 is late in most steps: it is busy longer than the others by 40 % of a step"
    )
    assert "40 %" in finding.because


def test_waiting_for_a_serial_evaluation_is_not_called_jitter():
    # one of 4 ranks evaluates for 40 % of the time, so ranks wait 30 % on average
    measures = Measures(
        communication=Communication(wait_share=0.30),
        shares={"wait": 0.30, "evaluation": 0.10},
        serial=Serial(
            single_rank_share=0.40,
            single_rank_evaluation_share=0.40,
            num_waiting=3.0,
            evaluation_share=0.10,
            ranks=(0,),
        ),
        stragglers=(late(0, "evaluation", is_persistent=False),),
        environment=Environment(num_ranks=4),
    )
    assert codes(measures) == ["EV01"]


def test_evaluations_of_all_ranks_are_found_though_one_saves_alone():
    serial = Serial(single_rank_share=0.15, single_rank_evaluation_share=0.0, evaluation_share=0.35, ranks=(0,))
    assert codes(Measures(serial=serial, environment=Environment(num_ranks=4))) == ["EV02"]


def test_a_straggler_without_a_wait_share_is_still_found():
    measures = Measures(
        communication=Communication(transfer_share=0.05, is_split_withheld=True), stragglers=(late(1, "input", 0.25),)
    )
    (finding,) = find(measures)
    assert (finding.code, finding.gain_at_most) == ("LB01", 0.25)


def test_only_ranks_that_hold_others_up_bound_what_may_be_won():
    measures = Measures(
        communication=Communication(transfer_share=0.05, is_split_withheld=True),
        stragglers=(
            late(1, "input", 0.25),
            late(0, "evaluation", 0.6, is_persistent=False),
            late(2, "checkpoint", 0.5),
        ),
    )
    (finding,) = find(measures)
    assert (finding.code, finding.gain_at_most) == ("LB01", 0.25)


def test_communication_that_only_kernels_tell_apart_is_found():
    device = Device(
        parallel_efficiency=0.6, load_balance=1.0, communication_efficiency=0.63, orchestration_efficiency=0.95,
        compute_share=0.6, exposed_communication_share=0.35, exposed_copy_share=0.0, idle_share=0.05,
    )  # fmt: skip
    small = Communication(transfer_share=0.0, num_collectives_per_step=60.0, mean_message_bytes=4096.0)
    ranks = tuple(RankTime(rank=rank, host="n01", shares={}, busy_step_ns=1.0) for rank in range(2))
    measures = Measures(communication=small, device=device, ranks=ranks, shares={"backward": 1.0})
    assert [(finding.code, finding.gain_at_most) for finding in find(measures)] == [("CO01", 0.35), ("CO02", 0.35)]
    assert all("35 % of the time" in finding.because for finding in find(measures))
    assert codes(replace(measures, ranks=ranks[:1])) == []


def test_micro_batches_win_no_more_than_the_bubble():
    pipeline = Pipeline(
        schedule="ScheduleGPipe", num_stages=8, num_microbatches=1, compute_share=0.8, bubble_share=0.15,
        schedule_bubble_share=0.16, formula_share=7 / 8, better_microbatches=32, better_share=7 / 39,
    )  # fmt: skip
    found = {finding.code: finding.gain_at_most for finding in find(Measures(pipeline=pipeline))}
    assert found["PP01"] == 0.15


def test_a_cpu_is_not_told_to_use_what_gpus_have():
    environment = Environment(
        device_name="Xeon", supports_bf16=True, uses_autocast=False, has_convolutions=True, uses_channels_last=False
    )
    shares = {"forward": 0.5, "backward": 0.5}
    assert codes(Measures(environment=environment, shares=shares)) == []
    on_gpu = Measures(environment=environment, shares=shares, memory=Memory(device_total_bytes=2**34))
    assert codes(on_gpu) == ["PR01", "PR03"]


_NO_GPU = Memory()


def test_onednn_in_backward_is_named_where_its_gradients_are_slow():
    def found(forward=0.2, backward=0.7, memory=_NO_GPU, transfer=None, **seen):
        usual = {"processor": "aarch64", "has_convolutions": True, "backward_uses_onednn": True, "uses_autocast": False}
        environment = Environment(**(usual | seen))
        shares = {"forward": forward, "backward": backward}
        sent = Communication(transfer_share=transfer)
        return codes(Measures(environment=environment, shares=shares, memory=memory, communication=sent))

    assert found() == found(processor="arm64") == ["PR04"]
    assert found(forward=0.3, backward=0.6) == []
    assert found(processor="x86_64") == found(has_convolutions=False) == found(backward_uses_onednn=False) == []
    # of several ranks communication stands under backward, unless it was told apart
    assert found(num_ranks=2) == []
    assert found(num_ranks=2, transfer=0.0) == ["PR04"]
    # bf16 and GPUs have kernels of their own
    assert "PR04" not in found(uses_autocast=True) + found(memory=Memory(device_total_bytes=2**34))


def test_small_products_by_onednn_are_named_where_calling_it_takes_the_time():
    def found(step_ms=40.0, forward=0.5, products=100, **seen):
        usual = {"processor": "aarch64", "backward_uses_onednn": True, "num_small_products": products}
        step = StepTime(**dict.fromkeys(("mean_ns", "median_ns", "p05_ns", "p95_ns"), step_ms * 1e6))
        shares = {"forward": forward, "backward": 0.2}
        return find(Measures(environment=Environment(**(usual | seen)), shares=shares, step=step))

    assert [(one.code, one.gain_at_most) for one in found()] == [("PR05", pytest.approx(0.375))]
    assert [one.gain_at_most for one in found(forward=0.2)] == [pytest.approx(0.15)]
    assert found(step_ms=1000) == found(products=0) == found(products=None) == ()
    assert found(processor="x86_64") == found(backward_uses_onednn=False) == ()


def test_oversubscribed_cores_are_counted_per_host():
    def on(num_hosts: int) -> Measures:
        seen = Environment(num_ranks=4, num_hosts=num_hosts, num_cores=8, threads_per_rank=4)
        return Measures(environment=seen, shares={"forward": 0.4, "backward": 0.4})

    assert codes(on(num_hosts=2)) == []
    (finding,) = find(on(num_hosts=1))
    assert finding.gain_at_most == pytest.approx(0.4)  # 2 threads a core: half of the 80 % that computes


def test_files_cost_only_what_opening_and_reading_cost():
    seen = Input(wait_share=0.5, opens_per_s=500.0, opening_share=0.3, reading_share=0.1, running_share=0.6)
    found = {finding.code: finding for finding in find(Measures(input=seen, shares={"input": 0.5}))}
    assert found["IN02"].gain_at_most == pytest.approx(0.2)
    assert found["IN01"].gain_at_most == 0.5


def test_value_and_limit_appear_in_sentences():
    finding = apply_rule(PLAIN, STARVED)
    assert finding is not None
    assert finding.because == "20 % is above 10 %."


def test_a_limit_itself_does_not_fire():
    assert apply_rule(PLAIN, Measures(input=Input(wait_share=0.1))) is None


def test_a_measured_zero_can_fire_and_none_cannot():
    rule = replace(PLAIN, measure="input.opens_per_s", above=None, below=1.0, because="Zero.")
    assert apply_rule(rule, Measures(input=Input(opens_per_s=0.0))) is not None
    assert apply_rule(rule, Measures(input=Input(opens_per_s=None))) is None


def test_a_rate_is_no_bound_of_the_gain():
    rule = replace(PLAIN, measure="input.opens_per_s", because="Many.")
    finding = apply_rule(rule, Measures(input=Input(opens_per_s=0.5)))
    assert finding is not None
    assert finding.gain_at_most is None


@pytest.mark.parametrize(("claimed", "shown"), [(1.7, 1.0), (-0.2, 0.0), (float("nan"), None), (float("inf"), None)])
def test_a_gain_stays_a_share(claimed, shown):
    finding = apply_rule(replace(PLAIN, gain=lambda _: claimed), STARVED)
    assert finding is not None
    assert finding.gain_at_most == shown


def test_a_path_leads_into_parts_and_dictionaries():
    measures = Measures(shares={"other": 0.25}, waterfall=(WaterfallBar(name="x", share=0.1, remaining_share=0.9),))
    assert value_at(measures, "shares.other") == 0.25
    assert value_at(measures, "shares.input") is None
    assert value_at(measures, "pop.load_balance") is None


def test_an_outside_rule_is_used_and_broken_ones_are_noted(monkeypatch):
    good, raising, no_rule, twin = (ModuleType(name) for name in ("good", "raising", "no_rule", "twin"))
    good.RULE = PLAIN
    raising.RULE = replace(PLAIN, code="XX02", when=lambda m: 1 / 0)
    twin.RULE = replace(PLAIN, title="Another")
    outside = {"good": good, "no_rule": no_rule, "raising": raising, "twin": twin}
    for name, module in outside.items():
        monkeypatch.setitem(sys.modules, name, module)
    points = [EntryPoint(name=name, value=name, group=engine.RULES) for name in [*outside, "absent"]]
    for place in (engine, plugin):
        monkeypatch.setattr(place, "outside_plugins", lambda package: points)
    findings, notes = examine(STARVED)
    assert [finding.title for finding in findings if finding.code.startswith("XX")] == ["A title"]
    assert [finding.code for finding in findings if not finding.code.startswith("XX")] == ["IN01"]
    assert len(notes) == 4
    assert any("absent" in note and "ModuleNotFoundError" in note for note in notes)
    assert any("no_rule" in note and "RULE" in note for note in notes)
    assert any("raising" in note and "division by zero" in note for note in notes)
    assert any("twin" in note and "XX01" in note and "good" in note for note in notes)
