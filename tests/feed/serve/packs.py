"""Makes folders, packs of them, and processes that read them, for the tests beside this file."""

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY
from topout.packs.packing.options import PackOptions
from topout.packs.packing.packer import pack
from topout.packs.sources import open_source

STRANGE = (
    "ä ö/ü.txt",
    "new\nline/tab\t.txt",
    "dot.d/.hidden",
    "a/b.jpg",
    "a/b/c.txt",
    "a/b-1.txt",
    "bytes-\udcff\udcfe.bin",
)
"""Names that sort, split or decode in surprising ways."""


def write_tree(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    return root


def pack_folder(root: Path, destination: Path, **options) -> Path:
    name, listing = open_source(root)
    pack(listing, (name, root), destination, PackOptions(**options))
    return destination


def run_served(code: str, *orders: str) -> subprocess.CompletedProcess[str]:
    """A process with these packs in place before its first line, as in a rank; orders are `ROOT=PACK`."""
    import json

    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "RANK": "0", "TOPOUT_PACKS": json.dumps(orders)}
    start = "from topout.feed.serve.install import install; install()\n" if orders else ""
    return subprocess.run(
        [sys.executable, "-c", start + code], capture_output=True, text=True, env=environment, check=False
    )
