"""Which `horovod` a rank imports: a working one if there is one, else topout's face."""

import sys
from pathlib import Path

import pytest

from topout.record import horovod_path


@pytest.fixture
def site(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(sys, "path", ["/first", str(tmp_path), "/last"])
    return tmp_path


def install_horovod(site: Path, *, is_built: bool) -> None:
    (site / "horovod" / "torch").mkdir(parents=True)
    (site / "horovod" / "__init__.py").touch()
    if is_built:
        (site / "horovod" / "torch" / "mpi_lib_v2.cpython-311-x86_64-linux-gnu.so").touch()


def test_without_horovod_the_face_comes_last(site: Path) -> None:
    horovod_path.install()
    assert sys.path == ["/first", str(site), "/last", horovod_path.FACE]
    assert (Path(horovod_path.FACE) / "horovod" / "torch" / "__init__.py").is_file()


def test_a_working_horovod_is_left_alone(site: Path) -> None:
    install_horovod(site, is_built=True)
    horovod_path.install()
    assert horovod_path.FACE not in sys.path


def test_a_horovod_without_its_torch_part_is_stepped_over(site: Path) -> None:
    install_horovod(site, is_built=False)
    horovod_path.install()
    assert sys.path == ["/first", horovod_path.FACE, str(site), "/last"]
