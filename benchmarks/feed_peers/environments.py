"""The peers' environments: one virtual environment a section of feed_requirements.txt.

A peer that does not install stays a row of the results, with pip's reason; nothing here stops at the first failure.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parents[1] / "feed_requirements.txt"
NEEDED_FREE_BYTES = 16 << 30  # four torches and DALI's 2 GB, unpacked, and room to build FFCV


@dataclass(frozen=True, kw_only=True)
class Environment:
    name: str
    alone: list[str] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)
    apt: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)


def environments():
    """The sections of the requirements file, by name."""
    found = {}
    for line in REQUIREMENTS.read_text().splitlines():
        if section := re.fullmatch(r"# \[(\w+)\]", line):
            current = found.setdefault(section[1], Environment(name=section[1]))
        elif mark := re.fullmatch(r"# (alone|alone-bare|apt): (.*)", line):
            {"alone": current.alone, "alone-bare": current.bare, "apt": current.apt}[mark[1]].extend(mark[2].split())
        elif line and not line.startswith("#"):
            current.packages.append(line)
    return found


def interpreter(root, name):
    """The Python an adapter runs under: topout's own adapters and the limits run under this one."""
    return Path(sys.executable) if name == "topout" else root / name / "bin" / "python"


def install(root):
    """Every environment that is not there yet; returns what could not be installed and why."""
    root.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(root).free < NEEDED_FREE_BYTES:
        sys.exit(f"{root} has less than {NEEDED_FREE_BYTES >> 30} GiB free; name another folder with --environments")
    failures = {}
    for environment in environments().values():
        if (root / environment.name / "installed").exists():
            continue
        reason = build(root / environment.name, environment)
        note = root / f"{environment.name}.failed"
        if reason is None:
            note.unlink(missing_ok=True)
            (root / environment.name / "installed").touch()
        else:
            failures[environment.name] = reason
            note.write_text(reason)
        print(f"{environment.name}: {reason or 'installed'}", flush=True)
    return failures


def build(folder, environment):
    """None, or the reason it failed."""
    if environment.apt and (reason := debian_packages(environment.apt)):
        return reason
    steps = [[sys.executable, "-m", "venv", "--clear", str(folder)]]
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    steps += [[*pip, package] for package in environment.alone]
    steps += [[*pip, "--no-deps", package] for package in environment.bare]
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch) / "requirements.txt"
        wanted.write_text("\n".join(environment.alone + environment.packages))
        # wheel and setuptools: a package without a wheel is built in this very environment, where numpy and torch are
        steps += [[*pip, "setuptools<81", "wheel"], [*pip, "--requirement", str(wanted)]]
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode:
                (folder.parent / f"{folder.name}.log").write_text(done.stdout + done.stderr)
                return last_error(done.stderr or done.stdout)
    return None


def debian_packages(names):
    """None, or why the packages are not there: without root or apt they can only be asked for."""
    check = ["dpkg-query", "--show", "--showformat=${db:Status-Status}\n", *names]
    if shutil.which("dpkg-query"):
        done = subprocess.run(check, capture_output=True, text=True, check=False)
        if done.returncode == 0 and set(done.stdout.split()) == {"installed"}:
            return None
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return f"needs the system packages {' '.join(names)}"
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *names]
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=quiet)
    return last_error(done.stderr) if done.returncode else None


def last_error(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wrong = [line for line in lines if re.search(r"error|not find|no such|failed|impossible", line, re.IGNORECASE)]
    return ((wrong or lines or ["no message"])[-1])[:300]
