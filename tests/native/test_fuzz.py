"""Damaged files never make the native code read or write where it may not: sanitizers watch it being fed with them."""

import subprocess

import pytest

from tests.native.test_jpeg import encoded, picture
from topout.native.build import ARITHMETIC, FOLDER, SOURCES, compiler, machine_variants, usable_variants

FUZZ = __file__.replace("test_fuzz.py", "fuzz.c")
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds")
    number = 0
    for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
        for size in ((33, 47), (100, 80), (8, 8), (17, 1)):
            for options in ({}, {"restart_marker_rows": 1}, {"progressive": True}):
                data = encoded(picture(*size, number), subsampling=subsampling, quality=80, **options)
                (folder / f"{number}.jpg").write_bytes(data)
                number += 1
    (folder / "grey.jpg").write_bytes(encoded(picture(50, 60, 1).convert("L")))
    (folder / "optimised.jpg").write_bytes(encoded(picture(50, 60, 1), optimize=True))
    return sorted(folder.iterdir())


def fuzz(variant, seconds, seed, seeds, folder):
    program = folder / "fuzz"
    sources = [FOLDER / name for name in SOURCES if name != "batch.c"]
    options = [
        "-std=gnu11",
        "-g",
        "-O1",
        "-pthread",
        "-Wno-psabi",
        *ARITHMETIC,
        *machine_variants()[variant],
        *SANITIZERS,
    ]
    subprocess.run([*compiler(), *options, f"-I{FOLDER}", *sources, FUZZ, "-o", program, "-lm"], check=True)
    return subprocess.run([program, str(seconds), str(seed), *seeds], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("variant", usable_variants())
def test_the_sanitizers_find_nothing(variant, seeds, tmp_path, seed_of_commit):
    done = fuzz(variant, 15, seed_of_commit, seeds, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.soak
@pytest.mark.parametrize("variant", usable_variants())
def test_the_sanitizers_find_nothing_in_ten_minutes(variant, seeds, tmp_path, seed_of_commit):
    done = fuzz(variant, 600, seed_of_commit, seeds, tmp_path)
    print(variant, done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]
