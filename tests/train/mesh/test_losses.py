"""Losses in every mesh are those of one process, with SGD and AdamW, clipped or not, and after a resume elsewhere."""

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "training.py"
MANY = {"dp": 2, "tp": 2, "pp": 2, "microbatches": 4}


def train(run_ranks, num_ranks, cases, timeout=240):
    ranks = run_ranks(SCRIPT, num_ranks, [json.dumps(cases)], timeout=timeout)
    assert [ended.code for ended in ranks] == [0] * num_ranks, ranks[0].stderr[-3000:]
    first = ranks[0].said
    assert all([case["losses"] for case in ended.said] == [case["losses"] for case in first] for ended in ranks)
    return first


def check(case, said, within=1e-5):
    since = next((number for number, loss in enumerate(said["losses"]) if loss), 0)
    assert said["losses"][since:] == pytest.approx(said["alone"][since : len(said["losses"])], abs=within), case


def test_a_transformer_and_a_resnet_learn_in_every_mesh_of_two_ranks_what_one_process_learns(run_ranks):
    cases = [
        {"mesh": {"dp": 2}, "optimizer": "sgd", "clip": 0.05},
        {"mesh": {"dp": 2, "microbatches": 2}},
        {"mesh": {"fsdp": 2, "microbatches": 4}, "clip": 0.05},
        {"mesh": {"tp": 2}, "optimizer": "sgd", "clip": 0.05},
        {"mesh": {"pp": 2, "schedule": "gpipe", "microbatches": 1}},
        {"mesh": {"pp": 2, "schedule": "1f1b"}, "optimizer": "sgd", "clip": 0.05},
        {"mesh": {"pp": 2, "schedule": "interleaved"}},
        {"mesh": {"pp": 2, "schedule": "zero-bubble"}},
        {"mesh": {"pp": 2, "schedule": "interleaved-zero-bubble"}},
        {"mesh": {"dp": 2}, "model": "resnet"},
        {"mesh": {"fsdp": 2}, "model": "resnet"},
        {"mesh": {"pp": 2}, "model": "resnet"},
    ]
    for case, said in zip(cases, train(run_ranks, 2, cases), strict=True):
        check(case, said)


def test_what_one_mesh_saved_another_goes_on_from(run_ranks, tmp_path):
    meshes = [{"tp": 2}, {"pp": 2, "schedule": "interleaved"}, {"fsdp": 2}, {"dp": 2}, {"pp": 2}]
    cases = [
        {
            "mesh": mesh, "until": number + 1, "save": str(tmp_path / str(number)),
            "restore": str(tmp_path / str(number - 1)) if number else None,
        }
        for number, mesh in enumerate(meshes)
    ]  # fmt: skip
    for case, said in zip(cases, train(run_ranks, 2, cases), strict=True):
        check(case, said)


def test_eight_ranks_in_three_dimensions_learn_the_same_and_one_rank_goes_on_from_them(run_ranks, tmp_path):
    folder = str(tmp_path / "checkpoints")
    (said,) = train(run_ranks, 8, [{"mesh": MANY, "clip": 0.05, "until": 2, "save": folder}])
    check(MANY, said)
    assert len(said["held"]) == 8
    (resumed,) = train(run_ranks, 1, [{"mesh": {}, "clip": 0.05, "restore": folder}])
    check("resumed", resumed)
    whole = resumed["held"][0]["parameters"]
    # a stage and half of each split layer: a quarter of the model, and the norms and positions that nobody splits
    assert all(0.2 * whole < held["parameters"] < 0.4 * whole for held in said["held"])


def test_shards_of_shards_are_the_same_model(run_ranks, tmp_path):
    folder = str(tmp_path / "checkpoints")
    cases = [
        {"mesh": {"fsdp": 2, "tp": 2}, "clip": 0.05, "until": 2, "save": folder},
        {"mesh": {"dp": 2, "fsdp": 2}, "clip": 0.05, "restore": folder},
        {"mesh": {"fsdp": 2, "pp": 2, "schedule": "zero-bubble"}, "until": 2},
    ]
    for case, said in zip(cases, train(run_ranks, 4, cases), strict=True):
        check(case, said)


def test_stages_of_shards_in_bf16_send_what_the_next_stage_has_made_room_for(run_ranks):
    """Sharded weights are gathered in bf16, so what leaves a stage is bf16 where autocast alone keeps fp32."""
    cases = [
        {"mesh": {"fsdp": 2, "pp": 2}, "precision": "bf16"},
        {"mesh": {"fsdp": 2, "pp": 2, "schedule": "interleaved"}, "precision": "bf16", "optimizer": "sgd"},
    ]
    for case, said in zip(cases, train(run_ranks, 4, cases), strict=True):
        assert len(said["losses"]) == 6, "five steps and an evaluation"
        check(case, said, within=0.01)
