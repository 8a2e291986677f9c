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


@pytest.fixture(scope="module", params=usable_variants())
def program(request, tmp_path_factory):
    """The code of one variant with its sanitizers, compiled once."""
    program = tmp_path_factory.mktemp(request.param) / "fuzz"
    sources = [FOLDER / name for name in SOURCES if name != "batch.c"]
    options = [
        "-std=gnu11",
        "-g",
        "-O1",
        "-pthread",
        "-Wno-psabi",
        *ARITHMETIC,
        *machine_variants()[request.param],
        *SANITIZERS,
    ]
    subprocess.run([*compiler(), *options, f"-I{FOLDER}", *sources, FUZZ, "-o", program, "-lm"], check=True)
    return program


def fuzz(program, seconds, seed, seeds, sanitizer_options=""):
    return subprocess.run(
        [program, str(seconds), str(seed), *seeds],
        env={**os.environ, "ASAN_OPTIONS": sanitizer_options},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_sanitizers_find_nothing(program, seeds, seed_of_commit):
    done = fuzz(program, 5, seed_of_commit, seeds)
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


def test_the_largest_unit_ends_within_the_padding(program, tmp_path):
    (tmp_path / "greedy.jpg").write_bytes(greedy_jpeg())
    # memory that an image of zeros used before
    zeros = "malloc_fill_byte=0:max_malloc_fill_size=65536"
    done = fuzz(program, 0, 1, [tmp_path / "greedy.jpg"], zeros)
    assert done.stderr == ""
    assert ": 0 decoded" in done.stdout


@pytest.mark.soak
def test_the_sanitizers_find_nothing_in_ten_minutes(program, seeds, seed_of_commit):
    done = fuzz(program, 600, seed_of_commit, seeds)
    print(program.parent.name, done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]
