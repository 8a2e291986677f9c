"""Reads a folder in as many ways as Python has and prints what came out, one JSON line each; the folder is argv[1].

Run once on the folder and once on a pack of it: both must print the same.
"""

import glob
import hashlib
import io
import json
import mmap
import os
import pathlib
import shutil
import stat
import sys
import tempfile

import numpy as np

ROOT = sys.argv[1]
NAMES = sorted(os.path.join(folder, name) for folder, _, names in os.walk(ROOT) for name in names)
TEXT, DATA = os.path.join(ROOT, "words.txt"), os.path.join(ROOT, "deep", "er", "data.bin")
RESULTS = []


def shown(value):
    if isinstance(value, bytes):
        return f"bytes {hashlib.sha256(value).hexdigest()[:16]} {len(value)}"
    if isinstance(value, os.stat_result):
        return [stat.S_IFMT(value.st_mode), value.st_size if stat.S_ISREG(value.st_mode) else None]
    if isinstance(value, (list, tuple)):
        return [shown(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def way(function):
    try:
        result = shown(function())
    except Exception as error:
        result = [type(error).__name__, getattr(error, "errno", None), str(getattr(error, "filename", None))]
        if not isinstance(error, OSError):
            result.append(str(error))
    RESULTS.append((function.__name__, result))
    return function


def whole(path, *args, **kwargs):
    with open(path, *args, **kwargs) as file:
        return file.read()


def attributes(file):
    with file:
        answers = [type(file).__name__, str(file.name), file.mode, file.readable(), file.seekable(), file.writable()]
        answers += [file.isatty(), file.closed, isinstance(file, io.BufferedReader), isinstance(file, io.TextIOWrapper)]
    return [*answers, file.closed]


@way
def names():
    return NAMES


@way
def listings():
    return [[folder, sorted(os.listdir(folder))] for folder, _, _ in sorted(os.walk(ROOT))]


@way
def listings_in_bytes():
    return [os.fsdecode(name) for name in sorted(os.listdir(os.fsencode(ROOT)))]


@way
def scans():
    with os.scandir(ROOT) as entries:
        found = [(e.name, e.path, e.is_dir(), e.is_file(), e.is_symlink(), os.fspath(e), e.stat()) for e in entries]
    return sorted(found)


@way
def scans_in_bytes():
    return sorted((os.fsdecode(e.name), os.fsdecode(e.path)) for e in os.scandir(os.fsencode(ROOT)))


@way
def walks():
    return [
        sorted([a, sorted(b), sorted(c)] for a, b, c in os.walk(ROOT, topdown=t, followlinks=f))
        for t in (0, 1)
        for f in (0, 1)
    ]


@way
def globs():
    patterns = ("*", "**/*", "*/*.txt", "deep/**", "nothing*", "*/er/data.bin", "words.txt")
    return [sorted(glob.glob(os.path.join(glob.escape(ROOT), p), recursive=True)) for p in patterns]


@way
def globs_from_root_dir():
    return sorted(glob.glob("**/*.bin", root_dir=ROOT, recursive=True))


@way
def paths():
    root = pathlib.Path(ROOT)
    return [
        sorted(map(str, root.iterdir())), sorted(map(str, root.rglob("*"))), sorted(map(str, root.glob("*/*"))),
        root.is_dir(), root.exists(), (root / "words.txt").is_file(), (root / "words.txt").read_text(encoding="utf-8"),
        (root / "words.txt").read_bytes(), (root / "words.txt").stat(), str((root / "words.txt").resolve(strict=True)),
        (root / "none").exists(), (root / "words.txt").samefile(root / "deep" / ".." / "words.txt"),
        (root / "words.txt").samefile(root / "deep" / "er" / "data.bin"), (root / "words.txt").is_symlink(),
    ]  # fmt: skip


@way
def contents():
    return [whole(name, "rb") for name in NAMES]


@way
def statuses():
    return [
        [os.stat(n), os.lstat(n), os.path.getsize(n), os.path.isfile(n), os.path.islink(n), os.path.lexists(n)]
        for n in NAMES
    ]


@way
def folder_statuses():
    return [
        [os.stat(f), os.path.isdir(f), os.path.isfile(f), os.path.ismount(f), os.path.exists(f)]
        for f, _, _ in sorted(os.walk(ROOT))
    ]


@way
def inodes_differ():
    found = [os.stat(path).st_ino for path in [*NAMES, *(folder for folder, _, _ in os.walk(ROOT))]]
    return len(set(found)) == len(found)


@way
def kinds_of_file():
    return [attributes(open(TEXT, mode)) for mode in ("r", "rt", "rb", "br")]


@way
def text():
    return [
        whole(TEXT, encoding="utf-8"),
        whole(TEXT, encoding="latin-1", newline=""),
        whole(TEXT, "rt", 1, "utf-8", "strict", "\r\n"),
    ]


@way
def text_that_does_not_decode():
    return whole(DATA, encoding="ascii")


@way
def lines():
    with open(TEXT, encoding="utf-8", newline="") as file:
        return [list(file), file.seek(3), file.readline(), file.tell()]


@way
def pieces():
    with open(DATA, "rb") as file:
        buffer = bytearray(9)
        return [
            file.read(16), file.seek(0), file.peek(3)[:3], file.read(65536), file.tell(), file.seek(-5, 2), file.read(),
            file.seek(11), file.readinto(buffer), bytes(buffer), file.read1(4), file.seek(10**9), file.read(3),
        ]  # fmt: skip


@way
def unbuffered():
    with open(DATA, "rb", buffering=0) as file:
        return [file.read(10), file.readall(), file.read(1), file.seek(4), file.tell(), file.mode, str(file.name)]


@way
def small_buffer():
    return whole(DATA, "rb", 17)


@way
def by_descriptor():
    fd = os.open(DATA, os.O_RDONLY)
    try:
        return [os.read(fd, 7), os.lseek(fd, -3, 2), os.read(fd, 99), os.fstat(fd).st_size, os.get_inheritable(fd)]
    finally:
        os.close(fd)


@way
def descriptor_of_file():
    with open(DATA, "rb") as file:
        file.seek(100)
        return [
            os.fstat(file.fileno()).st_size,
            file.fileno() == file.fileno(),
            file.read(8),
            os.pread(file.fileno(), 4, 2),
        ]


@way
def descriptor_after_close():
    file = open(DATA, "rb")
    file.close()
    return file.fileno()


@way
def mapped():
    with open(DATA, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as map_:
        return bytes(map_)


@way
def arrays():
    with open(DATA, "rb") as file:
        file.seek(8)
        some = np.fromfile(file, dtype="u1", count=16)
        after = file.tell()
    mapped = np.memmap(DATA, dtype="u1", mode="r")
    return [
        some.tobytes(),
        after,
        np.fromfile(DATA, dtype="u1").tobytes(),
        bytes(mapped),
        np.load(os.path.join(ROOT, "x.npy")).tobytes(),
    ]


@way
def arrays_from_archive():
    with np.load(os.path.join(ROOT, "x.npz")) as archive:
        return [archive["a"].tolist(), archive["b"].tolist()]


@way
def copies():
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(DATA, os.path.join(folder, "one"))
        shutil.copytree(os.path.join(ROOT, "deep"), os.path.join(folder, "tree"))
        return [whole(os.path.join(folder, "one"), "rb"), whole(os.path.join(folder, "tree", "er", "data.bin"), "rb")]


@way
def spellings():
    os.chdir(os.path.dirname(ROOT))
    here = os.path.basename(ROOT)
    ways = [
        f"{here}/words.txt",
        f"./{here}//deep/../words.txt",
        f"{ROOT}/./words.txt",
        os.fsencode(TEXT),
        f"/{TEXT}",
        f"/..{TEXT}",
    ]
    return [[whole(spelling, "rb"), os.path.getsize(spelling)] for spelling in ways]


@way
def access():
    places = [ROOT, TEXT, os.path.join(ROOT, "deep"), os.path.join(ROOT, "none")]
    return [[os.access(place, mode) for mode in (os.F_OK, os.R_OK)] for place in places]


@way
def above():
    return [os.path.basename(ROOT) in os.listdir(os.path.dirname(ROOT)), os.path.isdir(os.path.dirname(ROOT))]


@way
def makes_what_is_there():
    os.makedirs(os.path.join(ROOT, "deep", "er"), exist_ok=True)
    os.mkdir(os.path.join(ROOT, "deep"))


@way
def writes_through():
    with open(TEXT, "rb") as file:
        file.write(b"no")


for name, wrong in {
    "missing": lambda: open(os.path.join(ROOT, "none.txt")),
    "missing_in_missing": lambda: open(os.path.join(ROOT, "no", "none.txt"), "rb"),
    "missing_stat": lambda: os.stat(os.path.join(ROOT, "none.txt")),
    "missing_size": lambda: os.path.getsize(os.path.join(ROOT, "none.txt")),
    "missing_list": lambda: os.listdir(os.path.join(ROOT, "none")),
    "missing_scan": lambda: os.scandir(os.path.join(ROOT, "none")),
    "missing_descriptor": lambda: os.open(os.path.join(ROOT, "none"), os.O_RDONLY),
    "missing_array": lambda: np.load(os.path.join(ROOT, "none.npy")),
    "folder_opened": lambda: open(os.path.join(ROOT, "deep")),
    "folder_opened_as_bytes": lambda: open(os.path.join(ROOT, "deep"), "rb"),
    "file_listed": lambda: os.listdir(TEXT),
    "file_scanned": lambda: os.scandir(TEXT),
    "mode": lambda: open(TEXT, "rw"),  # noqa: PLW1501
    "mode_of_no_text": lambda: open(TEXT, 3),
    "binary_encoding": lambda: open(TEXT, "rb", encoding="utf-8"),
    "unbuffered_text": lambda: open(TEXT, buffering=0),
    "unknown_encoding": lambda: open(TEXT, encoding="no such"),
    "null": lambda: open(TEXT + "\0", "rb"),
    "no_path": lambda: open(None),
    "no_path_stat": lambda: os.stat(1.5),
}.items():
    wrong.__name__ = name
    way(wrong)

for name, result in RESULTS:
    print(json.dumps([name, result], ensure_ascii=True))
