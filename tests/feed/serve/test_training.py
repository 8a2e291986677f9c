"""An unmodified script trains the same bits from packs as from the folder, with the folder there or gone."""

import io
import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from tests.feed.serve.packs import pack_folder, write_tree

SCRIPT = Path(__file__).parent / "scripts" / "image_folder.py"
WORKERS = {
    "no workers": ["0"],
    "forked": ["2", "fork"],
    "spawned": ["2", "spawn"],
    "from a server": ["1", "forkserver"],
}


def image(seed: int, kind: str) -> bytes:
    pixels = random.Random(seed).randbytes(24 * 18 * 3)
    out = io.BytesIO()
    Image.frombytes("RGB", (24, 18), pixels).save(out, kind)
    return out.getvalue()


@dataclass(frozen=True)
class Prepared:
    root: Path
    pack: Path
    expected: str
    """What the script prints when it reads the folder, without topout."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Once trained from the folder; then the folder holds something else under the same names, sizes and times."""
    files = {f"{name}/{number}.jpg": image(number, "JPEG") for name in ("cat", "dög s") for number in range(6)}
    files |= {"zebra/nested/deeper/new\nline.png": image(77, "PNG"), "zebra/1.jpeg": image(78, "JPEG")}
    # one file in fifteen is no image: it is left out of the pack
    root = write_tree(tmp_path_factory.mktemp("set") / "images", {**files, "README": b"of the set"})
    plain = subprocess.run([sys.executable, SCRIPT, root, "0"], capture_output=True, text=True, check=True)
    expected = digest(plain.stdout)
    assert " 14 ['cat', 'dög s', 'zebra']" in expected
    pack = pack_folder(root, root.parent / "pack")
    for name in files:
        before = (root / name).stat()
        (root / name).write_bytes(bytes(before.st_size))
        os.utime(root / name, ns=(before.st_atime_ns, before.st_mtime_ns))
    return Prepared(root, pack, expected)


def digest(text: str) -> str:
    found = re.findall(r"^DIGEST .*$", text, re.MULTILINE)
    assert len(found) == 1, text
    return found[0]


def test_the_weights_are_the_same_bits_and_the_folder_is_not_read(prepared, run_topout):
    served = run_topout(["run", "-n", "1", "--no-report", "--packs", prepared.pack, SCRIPT, prepared.root, "0"])
    assert served.code == 0, served.stderr
    assert digest(served.stdout) == prepared.expected


@pytest.mark.parametrize("words", WORKERS.values(), ids=WORKERS)
def test_the_weights_are_the_same_bits_from_packs_alone(words, prepared, run_topout):
    """The folder's own path does not exist here, so nothing but the pack can have been read, by any worker."""
    gone = prepared.root.parent / "gone"
    order = f"{gone}={prepared.pack}"
    # the number of workers changes no bit, with the same seed
    served = run_topout(["run", "-n", "1", "--no-record", "--packs", order, SCRIPT, "gone", *words], cwd=gone.parent)
    assert served.code == 0, served.stderr
    assert digest(served.stdout) == prepared.expected
    assert not gone.exists()
