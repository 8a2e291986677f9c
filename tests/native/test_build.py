"""The library is compiled by whatever C compiler there is, and its absence is no failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from topout.native import build

CODE = "from topout.native.bindings import library, why_not; print(library() is None, why_not())"


def told(**env):
    done = subprocess.run(
        [sys.executable, "-c", CODE], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_compiled_on_first_use_into_the_cache_of_a_user_who_cannot_write_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "places", lambda: [Path("/proc/none"), tmp_path / "cache"])
    found = build.find_or_compile()
    assert found.parent == tmp_path / "cache"
    assert [path.name for path in found.parent.iterdir()] == [build.file_name_of(build.usable_variants()[0])]


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_has_the_package_alone(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert build.places() == [build.FOLDER / "lib"]


def test_without_a_compiler_the_reason_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "places", lambda: [tmp_path])
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(RuntimeError, match="there is no C compiler"):
        build.find_or_compile()


def test_a_compiler_that_fails_is_quoted(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "false")
    with pytest.raises(RuntimeError, match="false failed"):
        build.compile_library(build.usable_variants()[0], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_it_can_be_forbidden():
    assert told(TOPOUT_NATIVE="0") == "True TOPOUT_NATIVE=0 is set\n"
    assert told() == "False None\n"


def test_other_sources_have_another_name(tmp_path, monkeypatch):
    before = build.file_name_of("plain")
    for path in [*build.FOLDER.glob("*.h"), *(build.FOLDER / name for name in build.SOURCES)]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    assert build.file_name_of("plain") == before
    with (tmp_path / "crc32c.c").open("a") as file:
        file.write("/* changed */\n")
    assert build.file_name_of("plain") != before


def test_where_the_compiler_does_not_know_the_best_processor_the_next_one_serves(tmp_path, monkeypatch):
    """As GCC 7 on a processor with AVX-512."""
    best, *others = build.usable_variants()
    refused = build.machine_variants()[best][-1]
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\nfor word; do [ "$word" = {refused} ] && exit 1; done\nexec cc "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setattr(build, "places", lambda: [tmp_path / "lib"])
    monkeypatch.setattr(build, "OPTIONS", tuple("-O0" if word == "-O3" else word for word in build.OPTIONS))
    monkeypatch.setenv("CC", str(compiler))
    assert build.find_or_compile().name == build.file_name_of(others[0])
