"""What the page on staging shows runs as it stands, but for the addresses."""

import re

import pytest

from tests.conftest import REPOSITORY
from tests.feed.image_packs import write_images

PAGE = (REPOSITORY / "docs/staging.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
ADDRESS = re.compile(r'"(?:s3://bucket|/lustre|https://data\.example\.org/packs)/train(?:\.pack)?"')


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("page") / "pack", 256)


@pytest.mark.parametrize("number", range(2))
def test_a_snippet_runs(number, source, tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOUT_STAGE", str(tmp_path))
    snippet, num_addresses = ADDRESS.subn(repr(str(source)), BLOCKS[number])
    assert num_addresses == (3, 1)[number]
    names = {}
    exec(snippet, names)
    (names.get("pack") or names["loader"]).close()


def test_there_is_no_other_snippet():
    assert len(BLOCKS) == 2
