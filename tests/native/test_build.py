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


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A user's cache, with a library that this topout would take; what is compiled instead is called so."""
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho compiled > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(build, "places", lambda: [tmp_path / "cache"])
    library = tmp_path / "cache" / build.file_name_of(build.usable_variants()[0])
    library.parent.mkdir(mode=0o700)
    library.write_text("planted\n")
    library.chmod(0o755)
    return library


def give_away(path, monkeypatch):
    """To another user; who is not root is made another one."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        other = os.geteuid() + 1
        monkeypatch.setattr(build.os, "geteuid", lambda: other)


def test_a_library_of_this_users_own_is_not_compiled_again(cache):
    assert build.find_or_compile().read_text() == "planted\n"


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_an_own_library_in_a_folder_that_a_umask_left_open_is_taken_and_the_folder_closed(cache, mode):
    """On a node without a compiler there would be none otherwise; nobody else can have made a file of this user's."""
    cache.parent.chmod(mode)
    assert build.find_or_compile().read_text() == "planted\n"
    assert cache.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_library_that_others_could_have_written_is_compiled_again(cache, mode):
    cache.chmod(mode)
    assert build.find_or_compile().read_text() == "compiled\n"
    assert cache.stat().st_mode & 0o777 == 0o755


def test_a_library_in_a_folder_of_another_user_is_neither_taken_nor_replaced(cache, monkeypatch):
    give_away(cache.parent, monkeypatch)
    with pytest.raises(RuntimeError, match="cache belongs to another user"):
        build.find_or_compile()
    assert cache.read_text() == "planted\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_library_of_another_user_is_compiled_again(cache, monkeypatch):
    give_away(cache, monkeypatch)
    assert build.find_or_compile().read_text() == "compiled\n"
    assert cache.stat().st_uid == 0


def test_what_lies_in_the_package_is_taken_whoever_installed_it(cache, monkeypatch):
    """A shared environment may belong to a colleague, and its code is run all the same."""
    monkeypatch.setattr(build, "FOLDER", cache.parent.parent)
    lib = cache.parent.rename(cache.parent.with_name("lib"))
    monkeypatch.setattr(build, "places", lambda: [lib])
    monkeypatch.setattr(build, "file_name_of", lambda variant: cache.name)
    lib.chmod(0o777)
    give_away(lib / cache.name, monkeypatch)
    assert build.find_or_compile().read_text() == "planted\n"


def test_the_folder_in_the_cache_is_for_its_user_alone(cache):
    cache.unlink()
    cache.parent.rmdir()
    build.find_or_compile()
    assert cache.parent.stat().st_mode & 0o777 == 0o700


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
