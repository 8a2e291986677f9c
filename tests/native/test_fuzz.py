"""Damaged files never make the native code read or write where it may not: sanitizers watch it being fed with them."""

import os
import struct
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


def fuzz(variant, seconds, seed, seeds, folder, sanitizer_options=""):
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
    return subprocess.run(
        [program, str(seconds), str(seed), *seeds],
        env={**os.environ, "ASAN_OPTIONS": sanitizer_options},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("variant", usable_variants())
def test_the_sanitizers_find_nothing(variant, seeds, tmp_path, seed_of_commit):
    done = fuzz(variant, 15, seed_of_commit, seeds, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


def greedy_jpeg():
    """Each zero of its scan is half a symbol of 16 bits of code and 15 of value, and the scan ends at once."""

    def segment(marker, content):
        return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content

    one_code_of_16_bits = bytes(15) + b"\1" + b"\x0f"
    return b"".join(
        [
            b"\xff\xd8",
            segment(0xDB, b"\0" + b"\1" * 64),
            segment(0xC0, struct.pack(">BHHB", 8, 64, 64, 3) + bytes([1, 0x22, 0, 2, 0x11, 0, 3, 0x11, 0])),
            segment(0xC4, b"\x00" + one_code_of_16_bits),
            segment(0xC4, b"\x10" + one_code_of_16_bits),
            segment(0xDA, bytes([3, 1, 0, 2, 0, 3, 0, 0, 63, 0])),
            b"\0\0",
        ]
    )


@pytest.mark.parametrize("variant", usable_variants())
def test_the_largest_unit_ends_within_the_padding(variant, tmp_path):
    (tmp_path / "greedy.jpg").write_bytes(greedy_jpeg())
    # memory that an image of zeros used before
    zeros = "malloc_fill_byte=0:max_malloc_fill_size=65536"
    done = fuzz(variant, 0, 1, [tmp_path / "greedy.jpg"], tmp_path, zeros)
    assert done.stderr == ""
    assert ": 0 decoded" in done.stdout


@pytest.mark.soak
@pytest.mark.parametrize("variant", usable_variants())
def test_the_sanitizers_find_nothing_in_ten_minutes(variant, seeds, tmp_path, seed_of_commit):
    done = fuzz(variant, 600, seed_of_commit, seeds, tmp_path)
    print(variant, done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]
