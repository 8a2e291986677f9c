"""What a process with packs in place reads, counts and writes."""

import errno
import json
import shutil

import pytest

from tests.feed.serve.packs import pack_folder, run_served, write_tree

C_READER = """
import ctypes

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fopen.restype = ctypes.c_void_p
_libc.fopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
_libc.fread.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
_libc.fclose.argtypes = [ctypes.c_void_p]


def imread(filename, flags=1):
    file = _libc.fopen(str(filename).encode(), b"rb")
    if not file:
        return None
    buffer = ctypes.create_string_buffer(1 << 16)
    length = _libc.fread(buffer, 1, len(buffer), file)
    _libc.fclose(file)
    return buffer.raw[:length], flags
"""


@pytest.fixture
def served(tmp_path):
    """Runs code in a folder beside `data`, which is packed and gone unless `keeps_folder`; gives what it printed."""
    files = {"a/1.txt": b"one", "a/2.txt": b"two", "b/3.bin": bytes(range(256)) * 40}
    root = write_tree(tmp_path / "data", files)
    pack = pack_folder(root, tmp_path / "pack")

    def run(code, *, keeps_folder=False):
        if not keeps_folder:
            shutil.rmtree(root)
        done = run_served(f"import os, json, sys\nos.chdir({str(tmp_path)!r})\n{code}", f"{root}={pack}")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_a_damaged_file_is_a_read_error_that_names_it_and_the_others_are_whole(served, tmp_path):
    shard = tmp_path / "pack" / "shard-00000.bin"
    data = bytearray(shard.read_bytes())
    data[data.index(b"two")] ^= 1
    shard.write_bytes(data)
    code = """
said = []
for way in (lambda: open("data/a/2.txt"), lambda: os.open("data/a/2.txt", os.O_RDONLY)):
    try:
        way()
    except OSError as error:
        said.append([type(error).__name__, error.errno, error.filename, error.strerror])
print(json.dumps([said, os.path.getsize("data/a/2.txt"), open("data/a/1.txt").read()]))
"""
    said, size_bytes, other = served(code)
    for kind, number, name, text in said:
        assert (kind, number, name) == ("OSError", errno.EIO, "data/a/2.txt")
        assert "'a/2.txt'" in text and f"topout data check {tmp_path / 'pack'}" in text
    assert len(said) == 2 and (size_bytes, other) == (3, "one")


def test_what_the_script_writes_goes_to_the_folder_and_is_read_from_there(served, tmp_path):
    code = """
open("data/a/new.txt", "w").write("new")
open("data/a/1.txt", "w").write("written")
open("data/a/2.txt", "a").write(" and more")
os.rename("data/b/3.bin", "data/b/4.bin")
seen = [open(f"data/a/{name}").read() for name in ("new.txt", "1.txt", "2.txt")]
seen += [os.path.getsize("data/a/1.txt"), os.path.exists("data/b/3.bin"), os.path.getsize("data/b/4.bin")]
os.remove("data/a/1.txt")
print(json.dumps([*seen, sorted(os.listdir("data/a")), sorted(os.listdir("data/b")), os.path.exists("data/a/1.txt")]))
"""
    assert served(code, keeps_folder=True) == [
        "new", "written", "two and more", 7, False, 10240, ["2.txt", "new.txt"], ["4.bin"], False,
    ]  # fmt: skip
    assert (tmp_path / "data" / "a" / "new.txt").read_text() == "new"


def test_files_that_nobody_packed_are_read_from_the_folder(served, tmp_path):
    code = """
os.makedirs("data/cache", exist_ok=True)
os.mkdir("data/empty")
open("data/cache/index.json", "w").write("{}")
print(json.dumps([open("data/cache/index.json").read(), sorted(os.listdir("data")), open("data/a/1.txt").read()]))
"""
    assert served(code, keeps_folder=True) == ["{}", ["a", "b", "cache", "empty"], "one"]


def test_the_recorder_counts_packed_files_and_folders_as_it_counts_others(served):
    code = """
from topout.record.files import FileCounts
counts = FileCounts()
counts.install()
open("data/b/3.bin").close()  # opens the shard
before = counts.totals()
for name in sorted(os.listdir("data/a")):
    open(f"data/a/{name}").close()
os.close(os.open("data/b/3.bin", os.O_RDONLY))
list(os.scandir("data/b"))
if not os.fork():
    open("data/a/1.txt").close()
    os._exit(0)
os.wait()
print(json.dumps([after - old for old, after in zip(before, counts.totals())]))
"""
    assert served(code) == [4, 2]


def test_many_threads_and_forked_processes_read_the_same(served):
    code = """
from concurrent.futures import ThreadPoolExecutor
def read(number):
    with open(("data/a/1.txt", "data/b/3.bin")[number % 2], "rb") as file:
        return file.read() == (b"one", bytes(range(256)) * 40)[number % 2]
with ThreadPoolExecutor(8) as threads:
    here = all(threads.map(read, range(400)))
children = []
while len(children) < 3 and 0 not in children:
    children.append(os.fork())
if 0 in children:
    os._exit(0 if all(map(read, range(100))) else 1)
print(json.dumps([here, [os.waitpid(child, 0)[1] for child in children]]))
"""
    assert served(code) == [True, [0, 0, 0]]


def test_no_file_number_is_left_behind(served):
    code = """
def count(): return len(os.listdir("/proc/self/fd"))
open("data/a/1.txt").close()
before = count()
for _ in range(50):
    with open("data/b/3.bin", "rb") as file:
        file.fileno()
    open("data/b/3.bin", "rb").fileno()
print(json.dumps([count() - before]))
"""
    assert served(code) == [0]


def test_a_descriptor_cannot_be_written_through(served):
    code = """
import mmap
fd = os.open("data/a/1.txt", os.O_RDONLY)
said = []
for wrong in (lambda: os.write(fd, b"x"), lambda: os.truncate(fd, 0), lambda: mmap.mmap(fd, 0)):
    try:
        wrong()
    except OSError as error:
        said.append(error.errno)
print(json.dumps([said, os.read(fd, 9).decode()]))
"""
    said, text = served(code)
    assert len(said) == 3 and set(said) <= {errno.EPERM, errno.EACCES, errno.EBADF} and text == "one"


@pytest.mark.parametrize("keeps_folder", [True, False])
def test_readers_in_c_get_the_packed_bytes_through_a_path(keeps_folder, served, tmp_path):
    """A stand-in of the same name and call as OpenCV's, which opens with fopen."""
    (tmp_path / "cv2.py").write_text(C_READER)
    code = """
sys.path.insert(0, os.getcwd())
import pathlib, cv2
read = [cv2.imread("data/a/1.txt"), cv2.imread(pathlib.Path("data/a/2.txt"), flags=7), cv2.imread("data/none.txt")]
read.append(cv2.imread(filename="data/a/1.txt"))
print(json.dumps([[item[0].decode(), item[1]] if item else None for item in read]))
"""
    if keeps_folder:
        # behind our back, so that only the pack can have the bytes
        code = "import subprocess; subprocess.run(['mv', 'data/a', 'data/c'], check=True)\n" + code
    assert served(code, keeps_folder=keeps_folder) == [["one", 1], ["two", 7], None, ["one", 1]]


def test_shutil_still_deletes_trees_without_following_links(served):
    """It asks at import whether os takes file numbers; ours must not change the answer."""
    code = "import shutil; print(json.dumps([shutil.rmtree.avoids_symlink_attacks, os.stat in os.supports_fd]))"
    assert served(code) == [True, True]


def test_a_folder_that_the_script_removes_or_renames_is_gone(served):
    code = """
import shutil
shutil.rmtree("data/a")
os.rename("data/b", "data/c")
os.symlink("data/c/3.bin", "link")
seen = [os.path.exists(path) for path in ("data/a/1.txt", "data/a", "data/b/3.bin", "data/b")]
print(json.dumps([seen, sorted(os.listdir("data")), os.path.getsize("data/c/3.bin"), os.path.getsize("link")]))
"""
    assert served(code, keeps_folder=True) == [[False] * 4, ["c"], 10240, 10240]


def test_functions_can_still_be_sent_to_other_processes(served):
    code = """
import pickle
print(json.dumps([pickle.loads(pickle.dumps(function)) is function for function in (open, os.stat, os.listdir)]))
"""
    assert served(code) == [True, True, True]
