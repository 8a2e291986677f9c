"""Packs that several tests of feeding read."""

from pathlib import Path

import pytest

from tests.feed.image_packs import write_images, write_records


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("packs") / "images", 40)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("packs") / "records", 100, shard_bytes=400)
