"""Folders found by bisection are those that splitting every name gives."""

from hypothesis import given
from hypothesis import strategies as st

from topout.feed.serve.tree import Tree

PART = st.binary(min_size=1, max_size=3).filter(lambda part: b"/" not in part and b"\0" not in part) | st.sampled_from(
    [b"a", b"a-", b"a.", b"a0", b"a0b", b"b"]
)


class SortedList:
    """Names in a list, as `SortedNames` wants them; the sample's number is ten times its place."""

    def __init__(self, names):
        self._names = sorted(names)

    def __len__(self):
        return len(self._names)

    def __getitem__(self, place):
        return self._names[place]

    def number(self, place):
        return 10 * place


def split_up(names):
    """Folder -> child -> whether it is a folder."""
    folders = {b"": {}}
    for name in names:
        parts = name.split(b"/")
        for depth, part in enumerate(parts):
            above = b"/".join(parts[:depth])
            folders.setdefault(above, {})[part] = depth < len(parts) - 1
    return folders


@st.composite
def file_names(draw):
    """Such as a file system can have: no name is both a file and a folder."""
    names = {b"/".join(parts) for parts in draw(st.lists(st.lists(PART, min_size=1, max_size=4), max_size=30))}
    return {name for name in names if not any(other.startswith(name + b"/") for other in names)}


@given(file_names())
def test_folders_and_files_are_those_of_the_names(names):
    tree = Tree(SortedList(names))
    expected = split_up(names)
    for folder, children in expected.items():
        assert tree.is_folder(folder) or not names
        found = sorted(tree.children(folder))
        assert found == sorted(children.items())
    for place, name in enumerate(sorted(names)):
        assert tree.file(name) == 10 * place
        assert not tree.is_folder(name)


@given(file_names(), PART, PART)
def test_what_no_name_begins_with_is_neither_file_nor_folder(names, first, second):
    tree = Tree(SortedList(names))
    path = first + b"/" + second
    assert (tree.file(path) is not None) == (path in names)
    assert tree.is_folder(path) == any(name.startswith(path + b"/") for name in names)
    assert sorted(tree.children(path)) == sorted(split_up(names).get(path, {}).items())


def test_a_file_beside_a_folder_of_the_same_beginning():
    tree = Tree(SortedList([b"a/b.jpg", b"a/b/c", b"a/b0", b"a0"]))
    assert list(tree.children(b"")) == [(b"a", True), (b"a0", False)]
    assert list(tree.children(b"a")) == [(b"b.jpg", False), (b"b", True), (b"b0", False)]
    assert tree.file(b"a") is None and tree.file(b"a/b") is None
