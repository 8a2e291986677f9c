"""Folders are listed in parallel; the list is the same every time, and its cost grows with the tree."""

import dataclasses
import sys
import threading
import time
from pathlib import Path

import pytest

from topout.packs import file_tree
from topout.packs.file_tree import walk_files
from topout.schema.errors import TopoutError


def test_files_come_sorted_by_the_bytes_of_their_paths(tmp_path):
    names = ["b/2", "b/10", "a/ä/x", "a/z", "Z", "b.txt", "b/c/d/e"]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(number))
    trees = [walk_files(tmp_path, num_threads) for num_threads in (1, 2, 8)]
    for tree in trees:
        assert tree.paths == sorted(names, key=str.encode)
        assert tree.sizes.tolist() == [names.index(path) for path in tree.paths]
        assert (tree.num_folders, tree.num_others) == (6, 0)


def flat(num_folders):
    """The listing of a root with so many folders, each with one file."""

    def listing(_top, relative, ancestry):
        if relative:
            return file_tree._Folder([(relative + b"/file", 1, 2)], [], 0)
        return file_tree._Folder([], [(b"%06d" % number, ancestry) for number in range(num_folders)], 0)

    return listing


class Collected(list):
    """Lets the next folder be listed when this one is collected, as if each took long."""

    def __init__(self, files, turn):
        super().__init__(files)
        self._turn = turn

    def __iter__(self):
        self._turn.release()
        return super().__iter__()


def num_calls(num_folders, monkeypatch):
    """What the thread that collects calls, functions in C among it, while folders are listed one at a time."""
    listing, turn = flat(num_folders), threading.Semaphore(1)

    def in_turn(top, relative, ancestry):
        turn.acquire()
        found = listing(top, relative, ancestry)
        return dataclasses.replace(found, files=Collected(found.files, turn))

    monkeypatch.setattr(file_tree, "_list", in_turn)
    num = 0

    def count(_frame, event, _argument):
        nonlocal num
        num += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        tree = walk_files(Path("/data"))
    finally:
        sys.setprofile(None)
    assert (len(tree.paths), tree.num_folders) == (num_folders, num_folders + 1)
    return num


def test_four_times_the_folders_take_four_times_the_work(monkeypatch):
    assert num_calls(800, monkeypatch) < 6 * num_calls(200, monkeypatch)


def test_a_folder_that_cannot_be_listed_ends_it_and_the_rest_is_left(tmp_path, monkeypatch):
    listing, listed = flat(1_000), []

    def failing(top, relative, ancestry):
        listed.append(relative)
        if relative == b"000003":
            raise TopoutError("/data/000003 cannot be listed.", why="Permission denied", do="ls -ld")
        if relative > b"000003":
            time.sleep(0.02)
        return listing(top, relative, ancestry)

    monkeypatch.setattr(file_tree, "_list", failing)
    with pytest.raises(TopoutError, match="000003 cannot be listed"):
        walk_files(tmp_path, 1)
    assert len(listed) < 900
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("topout-walk")]
