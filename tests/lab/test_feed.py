"""Packs on two nodes: an unmodified script trains the same bits from them, and ranks share an epoch without overlap."""

import io
import json
import random
import re
from pathlib import Path

import pytest
from PIL import Image

from tests.feed.serve.packs import pack_folder, write_tree
from tests.lab import ways
from tests.lab.cluster import Slurm
from topout.packs.fields import Field
from topout.packs.packing.writer import PackWriter

pytestmark = pytest.mark.lab
SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
NUM_RECORDS = 37


def image(seed: int) -> bytes:
    out = io.BytesIO()
    Image.frombytes("RGB", (24, 18), random.Random(seed).randbytes(24 * 18 * 3)).save(out, "JPEG")
    return out.getvalue()


def said(folder: Path, pattern: str) -> list[tuple[str, str]]:
    """Host and finding of every rank, from its log."""
    (run,) = (folder / "topout-runs").iterdir()
    logs = [(run / f"logs/rank-{rank:05d}.out").read_text() for rank in range(2)]
    return [re.search(rf"on (\w+): .*{pattern}", log).groups() for log in logs]


def test_a_script_trains_the_same_bits_from_packs_on_both_nodes(slurm: Slurm, tmp_path: Path, run_topout) -> None:
    files = {f"{name}/{number}.jpg": image(number) for name in ("cat", "dog") for number in range(10)}
    root = write_tree(tmp_path / "images", files)
    script = SCRIPTS / "image_hosts.py"
    plain = run_topout(["run", "-n", "2", "--no-record", script, root], cwd=tmp_path)
    assert plain.code == 0, plain.stderr
    expected = re.search(r"DIGEST (\w+)", plain.stdout)[1]
    pack = pack_folder(root, tmp_path / "pack")
    root.rename(tmp_path / "elsewhere")
    for way in ways.SLURM:
        work = tmp_path / way
        work.mkdir()
        ended = ways.run(way, slurm, work, "run", "--no-report", "--packs", f"{root}={pack}", script, root)
        assert ended.returncode == 0, ended
        assert said(work, r"DIGEST (\w+)") == [("n1", expected), ("n2", expected)], way


@pytest.mark.parametrize("way", ways.SLURM)
def test_the_loaders_of_two_nodes_share_an_epoch(slurm: Slurm, tmp_path: Path, way: str) -> None:
    with PackWriter(tmp_path / "pack", fields=(Field(name="number", kind="int"),)) as writer:
        for number in range(NUM_RECORDS):
            writer.add(f"{number}", {"number": number})
    ended = ways.run(way, slurm, tmp_path, "run", "--no-report", SCRIPTS / "loader_hosts.py", tmp_path / "pack")
    assert ended.returncode == 0, ended
    (first, ours), (second, theirs) = said(tmp_path, r"GOT (\[.*\])")
    assert (first, second) == ("n1", "n2")
    got = [*json.loads(ours), *json.loads(theirs)]
    assert sorted(got) == list(range(NUM_RECORDS))
    assert abs(len(json.loads(ours)) - len(json.loads(theirs))) <= 1
