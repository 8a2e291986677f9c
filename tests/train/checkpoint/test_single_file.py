"""One safetensors file, checked with a reader of its own: 8 bytes of length, JSON, data."""

import errno
import json
import os
import struct
from pathlib import Path

import pytest
import torch

from tests.train.checkpoint.conftest import MakeTraining
from topout.schema.errors import ExitCode, TopoutError
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


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_one_that_cannot_be_written_is_said_and_leaves_the_file_before(
    training: MakeTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    training().take(2).close()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.safetensors").write_text("before")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*{"fsync": (os, "fsync", full), "replace": (Path, "replace", full)}[at])
    with pytest.raises(TopoutError, match=r"model\.safetensors cannot be written") as raised:
        to_safetensors(tmp_path / "checkpoints", tmp_path / "out" / "model.safetensors")
    assert "No space left on device" in raised.value.why
    assert raised.value.exit_code == ExitCode.ENVIRONMENT
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["before"]


def test_one_that_cannot_be_written_into_the_checkpoint_s_own_folder_is_said_as_anywhere(
    training: MakeTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training().take(2).close()
    monkeypatch.setattr("topout.train.checkpoint.single_file.os.fsync", lambda _: os.write(-1, b""))
    folder = tmp_path / "checkpoints" / "step-000000000002"
    with pytest.raises(TopoutError, match=r"model\.safetensors cannot be written"):
        to_safetensors(folder, folder / "model.safetensors")
