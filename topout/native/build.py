"""Compiles the C sources into shared libraries, one for each kind of processor that is worth its own.

Needs a C compiler and nothing else: no Python headers, no JPEG library. Done once when topout is installed; where that
was not possible, on first use, into the package or the user's cache; there a library that others can have written is
compiled again. The name carries a digest of sources and options, so that a library never serves other sources than its
own. Standard library alone, since it runs while pip installs.
"""

import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SOURCES = (
    "crc32c.c", "jpeg_header.c", "jpeg_scan.c", "jpeg_dct.c", "jpeg_colour.c", "resample.c", "image.c", "records.c",
    "batch.c", "optimizer.c",
)  # fmt: skip
# no contraction: a fused multiply-add would round otherwise than the Python twin; wrapv: damaged files overflow
ARITHMETIC = ("-ffp-contract=off", "-fwrapv")
# without errno, square roots are taken by lanes
OPTIONS = ("-std=gnu11", "-O3", "-fno-math-errno", "-fPIC", "-shared", "-pthread", "-Wno-psabi", *ARITHMETIC)
_AVX2 = ("-mavx2", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt", "-msse4.2")
VARIANTS = {
    "x86_64": {
        "avx512": (*_AVX2, "-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mpclmul", "-mvpclmulqdq"),
        "avx2": _AVX2,
        "plain": (),
    },
    "aarch64": {"crc": ("-march=armv8-a+crc",), "plain": ()},
}  # fmt: skip
"""By machine, best first."""
_AVX2_FLAGS = {"avx2", "bmi1", "bmi2", "abm", "popcnt", "sse4_2"}
_NEEDED_FLAGS = {
    "avx512": {*_AVX2_FLAGS, "avx512f", "avx512vl", "avx512bw", "avx512dq", "pclmulqdq", "vpclmulqdq"},
    "avx2": _AVX2_FLAGS,
    "crc": {"crc32"},
}
_TIMEOUT_S = 300


def machine_variants() -> dict[str, tuple[str, ...]]:
    return VARIANTS.get(platform.machine(), {"plain": ()})


def usable_variants() -> list[str]:
    """Those that this processor runs, the fastest first."""
    flags = _processor_flags()
    return [name for name in machine_variants() if _NEEDED_FLAGS.get(name, set()) <= flags]


def file_name_of(variant: str) -> str:
    """Equal sources and options give equal names."""
    digest = hashlib.sha256()
    for path in sorted([*FOLDER.glob("*.h"), *(FOLDER / name for name in SOURCES)]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update(repr((OPTIONS, machine_variants()[variant])).encode())
    return f"topout-{digest.hexdigest()[:16]}-{variant}.so"


def places() -> list[Path]:
    """Folders where a library may lie, first choice first."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        # a user without a home folder
        return [FOLDER / "lib"]
    return [FOLDER / "lib", cache / "topout" / "native"]


def compiler() -> list[str] | None:
    """The words that start the C compiler; None where there is none."""
    words = shlex.split(os.environ.get("CC", ""))
    if words:
        return words if shutil.which(words[0]) else None
    return next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), None)


def compile_library(variant: str, folder: Path) -> Path:
    """The library of a variant in a folder, compiled if it is not there; raises OSError or RuntimeError."""
    library = folder / file_name_of(variant)
    if _may_load(library):
        return library
    words = compiler()
    if words is None:
        raise RuntimeError("there is no C compiler (cc, gcc or clang)")
    _make_folder(folder)
    # ranks of one host may all compile at once: each its own file, renamed when whole
    descriptor, name = tempfile.mkstemp(dir=folder, suffix=".tmp")
    os.close(descriptor)
    unfinished = Path(name)
    try:
        command = [*words, *OPTIONS, *machine_variants()[variant], *(str(FOLDER / name) for name in SOURCES)]
        done = subprocess.run(
            [*command, "-o", name, "-lm"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{words[0]} failed: {done.stderr.strip()[-500:]}")
        unfinished.chmod(0o755)
        unfinished.replace(library)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{words[0]} took longer than {_TIMEOUT_S} s") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return library


def find_or_compile() -> Path:
    """The library for this processor; raises RuntimeError with every reason why there is none."""
    reasons = []
    for name in usable_variants():
        for folder in places():
            if _may_load(folder / file_name_of(name)):
                return folder / file_name_of(name)
        # an old compiler may know a lesser processor only
        for folder in places():
            try:
                return compile_library(name, folder)
            except (OSError, RuntimeError) as error:
                reasons.append(str(error))
    raise RuntimeError("; ".join(dict.fromkeys(reasons)))


def _may_load(library: Path) -> bool:
    """Whether it is there, and in the cache of nobody else's making; the package's folder is trusted as its code is."""
    if not library.exists():
        return False
    if library.parent == FOLDER / "lib":
        return True
    # whose it is, nobody else can have changed; and others shall not put another in its place from now on
    _close_own(library.parent)
    return not (_why_doubted(library) or _why_doubted(library.parent))


def _why_doubted(path: Path) -> str | None:
    """In what way another user than root can have written it; None where nobody can."""
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to another user"
    return f"others may write to {path}" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None


def _make_folder(folder: Path) -> None:
    """Raises RuntimeError for a cache that stays doubtful."""
    if folder == FOLDER / "lib":
        folder.mkdir(parents=True, exist_ok=True)
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _close_own(folder)
    why = _why_doubted(folder)
    if why is not None:
        raise RuntimeError(why)


def _close_own(folder: Path) -> None:
    """A topout before this one left it to the umask."""
    if _why_doubted(folder) and folder.stat().st_uid == os.geteuid():
        with suppress(OSError):
            folder.chmod(0o700)


def _processor_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return set(line.partition(":")[2].split())
    return set()


def main() -> int:
    """Compiles all variants of this machine into the package; says what went wrong, and fails no installation."""
    for variant in machine_variants():
        try:
            compile_library(variant, FOLDER / "lib")
        except (OSError, RuntimeError) as error:
            sys.stderr.write(f"topout: no native library ({variant}): {error}; the Python twin serves.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
