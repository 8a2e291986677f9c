"""What scripts do besides a plain step works over a mesh, and what is wrong on one rank ends both with an error."""

from pathlib import Path

import pytest


def test_habits_of_scripts_hold_over_a_mesh_and_mistakes_end_all_ranks(run_ranks, tmp_path):
    ranks = run_ranks(Path(__file__).parent / "habits.py", 2, [tmp_path / "checkpoints"], timeout=240)
    assert [ended.code for ended in ranks] == [0, 0], ranks[0].stderr[-2000:] + ranks[1].stderr[-2000:]
    first, second = (ended.said for ended in ranks)

    assert first["uneven"] < 1e-5
    moved, step = first["unused"]
    assert {name.partition(".bias")[0].partition(".weight")[0] for name in moved} == {
        "layers.0",
        "layers.1",
        "layers.3",
    }
    assert "layers.3.weight" not in moved
    assert step == pytest.approx([0.25, 0.25])

    assert all(max(distances) < 1e-5 for distances in first["values"])

    (tp, pp, fsdp) = first["grouped"]
    assert tp[1] == pp[1] == fsdp[1] == [1e-2 / 8, 1e-2 / 8]
    # bf16 rounds differently where a layer is split, so these are near and not equal
    assert tp[0] == pytest.approx(pp[0], abs=0.05)
    assert fsdp[0] == pytest.approx(pp[0], abs=0.05)
    assert tp[0][-1] < tp[0][0]

    assert first["wrong"]["world"] == second["wrong"]["world"]
    assert "has 4 places, and this world has 2 ranks" in first["wrong"]["world"]
    assert first["wrong"]["differs"] == "Rank 1 has microbatches 8 where rank 0 has 4."
    assert first["wrong"]["one fails"] == "Rank 1 failed: ValueError: no optimizer here"
    assert first["wrong"]["other samples"] == "Rank 1 was given other samples than rank 0."
    assert first["wrong"]["other sizes"] == "Rank 1 was given 12 samples where rank 0 has 8."
    assert "7 samples does not divide into 4 microbatches" in first["wrong"]["one does not divide"]
    assert "7 samples does not divide into 4 microbatches" in second["wrong"]["one does not divide"]
    assert "not finite at step 2 on rank 0" in first["not finite"]
    assert not list((tmp_path / "checkpoints").glob("step-*"))
    assert "memory held by each rank" in ranks[0].stderr
    assert "memory held" not in ranks[1].stderr
