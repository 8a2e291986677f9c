"""Devices in the order in which they would serve a job, with what bounds each."""

import json
import re
from dataclasses import replace

import pytest

from tests.tables import Plan, StepPlan, build_run
from topout.analyze.measure import measure_run
from topout.cli.main import call
from topout.schema.errors import TopoutError
from topout.schema.hardware import devices
from topout.schema.measures import Compute, Environment, Input, Measures, Memory, StepTime
from topout.study.devices import Prices, amount_of, place_step, rank_devices, rate_for, read_prices, unranked_prices

STEP = StepTime(mean_ns=100e6, median_ns=100e6, p05_ns=100e6, p95_ns=100e6)
ON_V100 = Measures(
    step=STEP,
    shares={"forward": 0.3, "backward": 0.6, "input": 0.1},
    environment=Environment(device_name="Tesla V100-SXM2-32GB"),
    input=Input(batch_size=64),
    memory=Memory(peak_device_bytes=30 * 10**9),
)


def by_name(measures, **options):
    return {fit.device: fit for fit in rank_devices(measures, **options)}


def test_the_part_that_computes_is_scaled_and_the_rest_is_not():
    found = by_name(ON_V100)
    h200 = found["H200"]
    # 90 ms by 125/989 TFLOP/s and by 0.9/4.8 TB/s, and 10 ms of input
    assert h200.low_s == pytest.approx(0.010 + 0.090 * 125 / 989, rel=0.02)
    assert h200.high_s == pytest.approx(0.010 + 0.090 * 0.9 / 4.8, rel=0.02)
    assert h200.bound == "bandwidth"
    assert h200.low_s < h200.step_s < h200.high_s
    assert h200.samples_per_s == pytest.approx(64 / h200.step_s)


def test_a_job_that_does_not_fit_comes_last():
    found = rank_devices(ON_V100)
    assert found[-1].bound == "memory size"
    assert {fit.device for fit in found if fit.bound == "memory size"} >= {"P100"}


def test_a_job_fits_the_device_that_it_ran_on_whatever_its_maker_prints():
    on_h200 = replace(
        ON_V100, environment=Environment(device_name="NVIDIA H200"), memory=Memory(peak_device_bytes=145 * 10**9)
    )
    assert by_name(on_h200)["H200"].bound == "as measured"


def test_where_input_is_the_most_of_a_step_no_device_is_the_bound():
    starved = replace(ON_V100, shares={"forward": 0.05, "backward": 0.1, "input": 0.85})
    assert by_name(starved)["H200"].bound == "not the device"


def test_from_a_processor_operations_and_usual_utilisation_are_all_there_is():
    measures = replace(ON_V100, environment=Environment(), compute=Compute(flops_per_step=1e12), memory=Memory())
    h200 = by_name(measures)["H200"]
    assert h200.step_s - 0.010 == pytest.approx(1e12 / (989e12 * 0.35), rel=0.02)


def test_a_run_that_says_nothing_is_refused():
    with pytest.raises(TopoutError, match="Neither the device"):
        rank_devices(replace(ON_V100, environment=Environment()))


def test_prices_turn_time_into_cost_and_energy(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text('date = "2026-11-01"\ncurrency = "EUR"\n[device."H200"]\nper_hour = 3.6\nwatts = 700\n')
    fit = by_name(ON_V100, prices=read_prices(path))["H200"]
    hours = 1e6 / fit.samples_per_s / 3600
    assert fit.cost_per_million == pytest.approx(3.6 * hours)
    assert fit.kilowatt_hours_per_million == pytest.approx(0.7 * hours)


def test_prices_of_devices_that_are_not_ranked_are_named(tmp_path, monkeypatch, capsys):
    path = tmp_path / "prices.toml"
    known, unknown = "h200 V100-SXM2".split(), ["EPYC 9654", "H2OO"]
    path.write_text('date = "2026-11-01"\n' + "".join(f'[device."{name}"]\nwatts = 1\n' for name in known + unknown))
    prices = read_prices(path)
    note = unranked_prices(prices, rank_devices(ON_V100))
    assert note is not None and "goes by 'epyc 9654', 'h2oo' in the prices" in note
    assert unranked_prices(replace(prices, watts=dict.fromkeys(known, 1.0)), rank_devices(ON_V100)) is None
    monkeypatch.chdir(tmp_path)
    facts = {"device_name": "NVIDIA A100-SXM4-80GB", "batch_size": 64}
    build_run(tmp_path / "run", [[StepPlan(forward=10**7, backward=10**7)] * 20], Plan(facts=facts))
    assert call(["hardware", "--for", "run", "--prices", "prices.toml", "--html", "page.html"]) == 0
    assert f"Note    {note}\n" in capsys.readouterr().err
    assert "epyc 9654" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "There is no file .*prices.toml"),
        ("", "holds no prices.\n  why  It is empty"),
        ("date =", "holds no prices.\n  why  It is no TOML: "),
        ("[device]\n", "holds no prices.\n  why  It has no .device.NAME."),
        ("[device.H200]\nper_hour = 3\n", "holds no prices.\n  why  It has no date"),
        ('date = "2026"\n[device.H200]\nperhour = 3\n', "Device 'H200' has neither per_hour nor watts"),
        ('date = "2026"\n[device.H200]\nwatts = "700"\n', "watts of 'h200' is 700"),
    ],
)
def test_a_file_without_prices_is_told_what_it_lacks(tmp_path, content, says):
    path = tmp_path / "prices.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TopoutError) as caught:
        read_prices(path)
    assert re.search(says, str(caught.value))
    assert "Error" not in str(caught.value)


@pytest.mark.parametrize("name", ["h100", "H100 SXM", "NVIDIA H100 80GB HBM3"])
def test_a_price_is_found_by_any_name_of_its_device(name):
    fits = by_name(ON_V100, prices=Prices("2026-11-01", "EUR", {name.lower(): 3.6}, {}))
    assert fits["H100"].cost_per_million is not None
    assert fits["H100 PCIe"].cost_per_million is None


def test_of_two_names_the_one_that_was_asked_for_goes_first():
    prices = {"v100": 2.0, "v100 sxm2": 3.0}
    assert (amount_of(prices, "V100"), amount_of(prices, "V100 SXM2"), amount_of(prices, "H100")) == (2, 3, None)


@pytest.mark.parametrize("amount", ["nan", "inf", "-1"])
def test_a_price_is_a_number_of_zero_or_more(tmp_path, amount):
    path = tmp_path / "prices.toml"
    path.write_text(f'date = "2026-11-01"\n[device."H200"]\nper_hour = {amount}\n')
    with pytest.raises(TopoutError, match="per_hour of 'h200' is"):
        read_prices(path)


def test_the_device_of_the_run_itself_has_no_bound_of_the_table():
    v100 = by_name(ON_V100)["V100"]
    assert v100.bound == "as measured"
    assert v100.low_s == v100.high_s == pytest.approx(0.100)


def test_where_halves_are_slow_a_device_computes_in_single_precision():
    # a GTX 1080 Ti: 0.18 TFLOP/s in halves, 11.3 in single precision, against 125 of a V100
    small = replace(ON_V100, memory=Memory())
    assert by_name(small)["GTX 1080 Ti"].high_s == pytest.approx(0.010 + 0.090 * 125 / 11.3, rel=0.02)


def test_a_precision_is_not_replaced_by_a_narrower_one():
    devices_of = {device.name: device for device in devices()}
    a100, v100, t4 = (devices_of[name] for name in ("A100", "V100", "T4"))
    assert rate_for(a100, "fp64") == ("fp64", a100.rate("fp64"))
    # a T4 has no double precision in the table, and a V100 no tf32
    assert rate_for(t4, "fp64") is None
    assert rate_for(v100, "tf32") == ("fp32", v100.rate("fp32"))
    assert rate_for(devices_of["TPU v3"], "fp32") is None
    assert rate_for(v100, "bf16") == ("fp16", v100.rate("fp16"))
    assert "T4" not in by_name(ON_V100, precision="fp64")


def test_a_run_on_a_device_without_the_precision_cannot_be_scaled():
    with pytest.raises(TopoutError, match="T4, the device of the run, has no rate for fp64"):
        rank_devices(replace(ON_V100, environment=Environment(device_name="Tesla T4")), "fp64")


def test_state_that_is_too_large_does_not_fit_wherever_the_run_was():
    state = Memory(parameter_bytes=10 * 10**9, gradient_bytes=10 * 10**9, optimizer_bytes=20 * 10**9)
    measures = replace(ON_V100, environment=Environment(), compute=Compute(flops_per_step=1e12), memory=state)
    assert {fit.device for fit in rank_devices(measures) if fit.bound == "memory size"} >= {"V100", "RTX 4090"}
    assert by_name(measures)["A100"].bound == "compute"


def test_an_unknown_precision_is_refused():
    with pytest.raises(TopoutError, match="bf17"):
        rank_devices(ON_V100, "bf17")


def test_a_step_is_placed_between_what_memory_could_move_and_what_it_must():
    # 90 ms compute; 9 TFLOP of two ranks, 4.5 of one; 4 x 1 + 2 x 1 + 2 x 2 GB move at least
    state = Memory(parameter_bytes=10**9, gradient_bytes=10**9, optimizer_bytes=2 * 10**9)
    measures = replace(
        ON_V100, environment=Environment(num_ranks=2), compute=Compute(flops_per_step=9e12), memory=state
    )
    placed = place_step(measures, 900e9)
    assert placed is not None
    assert placed.flops_per_s == pytest.approx(4.5e12 / 0.090)
    assert placed.least_intensity == pytest.approx(4.5e12 / (0.090 * 900e9))
    assert placed.most_intensity == pytest.approx(4.5e12 / 10e9)
    # more state than could move in that time: it stayed in a cache, and bounds nothing
    held = place_step(measures, 90e9)
    assert held is not None and held.most_intensity is None
    assert place_step(replace(measures, compute=Compute()), 900e9) is None


def test_hardware_ranks_devices_for_a_run(tmp_path, capsys):
    steps = [[StepPlan(input=10**6, forward=10**7, backward=2 * 10**7, samples=8) for _ in range(20)]]
    facts = {"device_name": "NVIDIA A100-SXM4-80GB", "batch_size": 8}
    folder = build_run(tmp_path / "run", steps, Plan(facts=facts)).folder
    assert call(["hardware", "--for", str(folder.path)]) == 0
    assert "H200" in capsys.readouterr().out
    assert call(["hardware", "--for", str(folder.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["devices"][0]["bound"] in ("compute", "bandwidth")


def test_an_evaluation_after_the_last_step_makes_no_step_quicker_or_slower(tmp_path):
    step = StepPlan(input=10_000_000, forward=30_000_000, backward=60_000_000)
    facts = {"device_name": "Tesla V100-SXM2-32GB", "batch_size": 64}
    found = []
    for name, trail_ns in (("without", 0), ("with", 2_000_000_000)):
        plan = Plan(facts=facts, trail_evaluation_ns=[trail_ns])
        measures, _ = measure_run(build_run(tmp_path / name, [[step] * 20], plan).folder)
        found.append(replace(measures, compute=Compute(flops_per_step=1e12)))
    without, trailed = found
    assert trailed.shares["backward"] < 0.6 * without.shares["backward"]
    v100, h200 = by_name(trailed)["V100"], by_name(trailed)["H200"]
    assert v100.step_s == pytest.approx(0.100)
    assert v100.other_s == pytest.approx(0.010)
    assert h200.step_s == pytest.approx(by_name(without)["H200"].step_s)
    assert place_step(trailed, 1e12).flops_per_s == pytest.approx(place_step(without, 1e12).flops_per_s)
