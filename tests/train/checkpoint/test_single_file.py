"""One safetensors file, checked with a reader of its own: 8 bytes of length, JSON, data."""

import json
import struct
from pathlib import Path

import pytest
import torch

from tests.train.checkpoint.conftest import MakeTraining
from topout.schema.errors import TopoutError
from topout.train.checkpoint import to_safetensors

TYPES = {"F32": torch.float32, "I64": torch.int64}


def read(path: Path) -> dict[str, torch.Tensor]:
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert (8 + length) % 8 == 0
    return {
        name: torch.frombuffer(data[8 + length :][slice(*entry["data_offsets"])], dtype=TYPES[entry["dtype"]]).reshape(
            entry["shape"]
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


def test_the_model_is_one_file_with_its_own_names(training: MakeTraining, tmp_path: Path) -> None:
    trained = training().take(2).close()
    used = to_safetensors(tmp_path / "checkpoints", tmp_path / "model.safetensors")
    assert used.name == "step-000000000002"
    tensors = read(tmp_path / "model.safetensors")
    expected = trained.model.state_dict()
    assert list(tensors) == list(expected)
    assert all(torch.equal(tensors[name], value) for name, value in expected.items())


def test_a_damaged_checkpoint_is_not_converted(training: MakeTraining, tmp_path: Path) -> None:
    training().take(2).close()
    (tmp_path / "checkpoints" / "step-000000000002" / "rank-00000.data").write_bytes(b"")
    with pytest.raises(TopoutError, match="There is no good checkpoint"):
        to_safetensors(tmp_path / "checkpoints", tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()
