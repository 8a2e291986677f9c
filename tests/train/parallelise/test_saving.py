"""Under --ddp, `torch.save` before the first batch: all ranks write, and only the file that was named changes."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from topout.train.parallelise.saving import save_once


@pytest.fixture
def save(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """As a rank has it that has not met the others."""
    monkeypatch.setenv("RANK", "0")
    found = SimpleNamespace(save=torch.save, serialization=SimpleNamespace())
    save_once(found, SimpleNamespace(is_on=True, has_begun=False))
    return found.save


def test_a_link_stays_one_and_what_it_names_is_replaced(tmp_path: Path, save: Callable[..., None]) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "model.pt").write_text("before")
    (tmp_path / "model.pt").symlink_to(Path("real") / "model.pt")
    save({"step": 3}, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").is_symlink()
    assert torch.load(tmp_path / "real" / "model.pt") == {"step": 3}
    assert len(list(tmp_path.rglob("*"))) == 3


def test_what_is_no_file_is_written_to_as_it_is(tmp_path: Path, save: Callable[..., None]) -> None:
    """A pipe here; /dev/null must not become a file either."""
    os.mkfifo(tmp_path / "pipe")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    save({"step": 3}, str(tmp_path / "pipe"), _use_new_zipfile_serialization=False)
    assert (tmp_path / "pipe").is_fifo()
    reader.join(60)
    assert got[0]


class Unsaved:
    def __reduce__(self) -> str:
        raise RuntimeError("not this one")


def test_one_that_fails_leaves_what_was_there_and_nothing_else(tmp_path: Path, save: Callable[..., None]) -> None:
    (tmp_path / "model.pt").write_text("before")
    with pytest.raises(RuntimeError, match="not this one"):
        save({"part": Unsaved()}, tmp_path / "model.pt")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]
