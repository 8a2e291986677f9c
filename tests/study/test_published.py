"""What centres have published, and how near the model comes to rows that it has not seen."""

import json

import pytest

from topout.cli.main import call
from topout.schema.errors import TopoutError
from topout.study.description import read_job, read_system
from topout.study.fit import Machine, fit
from topout.study.published import names, tables
from topout.study.published.tacc_gpu import PUBLISHED, monotone_floor


def rows(name):
    (found,) = tables([name])
    return {row.what: row for row in found.rows}


def test_tacc_cpu_nodes_held_out_are_within_one_per_cent():
    found = rows("tacc-cpu")
    for what in ("256 nodes", "512 nodes"):
        assert not found[what].is_calibrated
        assert abs(found[what].error) < 0.01


def test_tacc_gpu_sixteen_nodes_are_within_two_per_cent():
    found = rows("tacc-gpu")["16 nodes"]
    assert not found.is_calibrated
    assert abs(found.error) < 0.02


def test_fitted_to_all_gpu_points_the_largest_error_is_near_the_floor_of_any_falling_curve():
    whole = fit(Machine(read_job("resnet50-1080ti").value, read_system("maverick2-1080ti").value), PUBLISHED,
                ["job.compute.transient", "job.gradients.message_s"], is_worst=True)  # fmt: skip
    worst = max(abs(whole.samples_per_s(nodes) / rate - 1) for nodes, rate in PUBLISHED.items())
    assert monotone_floor(PUBLISHED) == pytest.approx(0.0313, abs=1e-4)
    assert monotone_floor(PUBLISHED) < worst < 0.056


def test_summit_scales_as_published_with_the_spread_of_another_machine():
    found = rows("summit-scaling")
    transferred = next(row for what, row in found.items() if "TACC" in what)
    assert transferred.predicted == pytest.approx(0.87, abs=0.01)
    assert found["1,024 nodes, spread 8.0%"].predicted < 0.87 < found["1,024 nodes, spread 4.0%"].predicted


def test_summits_storage_is_what_its_own_formula_gives():
    found = rows("summit-storage")
    assert found["needed (TB/s)"].predicted == pytest.approx(19.98, abs=0.01)
    assert found["GPFS against the need"].predicted == pytest.approx(0.125, abs=0.001)
    assert found["NVMe against the need"].predicted == pytest.approx(1.384, abs=0.001)


def test_aachens_rows_are_shown_with_their_rounding_gap():
    (found,) = tables(["aachen-pop"])
    assert [round(row.predicted, 3) for row in found.rows] == [0.327, 0.257]
    assert all("outside" in note for note in found.notes[:2])


def test_lustre_is_shown_as_inconsistent():
    (found,) = tables(["tacc-lustre"])
    assert "inconsistent" in found.title
    assert rows("tacc-lustre")["4 nodes"].error > 1


def test_as_many_numbers_as_points_are_refused():
    machine = Machine(read_job("resnet50-skx").value, read_system("stampede2-skx").value)
    with pytest.raises(TopoutError, match="2 points cannot tell 2 numbers apart"):
        fit(machine, {1: 32, 64: 1968}, ["job.compute.transient", "job.gradients.message_s"])


def test_reproduce_prints_every_table(capsys):
    assert call(["reproduce"]) == 0
    text = capsys.readouterr().out
    assert all(f"[{name}]" in text for name in names())
    assert "fitted" in text


def test_reproduce_and_simulate_speak_json(capsys):
    assert call(["reproduce", "tacc-cpu", "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert table["rows"][0]["published"] == 32
    assert call(["simulate", "resnet50-v100", "--system", "summit", "--nodes", "1,2", "--steps", "20", "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [point["nodes"] for point in points] == [1, 2]
    assert points[1]["low"] < points[1]["samples_per_s"] < points[1]["high"]


def test_simulate_shows_what_a_change_changes(capsys):
    words = ["--nodes", "4608", "--steps", "20", "--what-if", "input.source=shared",
             "--what-if", "input.sample_bytes=602112"]  # fmt: skip
    assert call(["simulate", "resnet50-v100", "--system", "summit", *words]) == 0
    text = capsys.readouterr().out
    assert "x0.25" in text
    assert "input" in text


def test_an_unknown_table_gets_the_nearest(capsys):
    assert call(["reproduce", "tacc-gup"]) == 2
    assert "topout reproduce tacc-gpu" in capsys.readouterr().err
