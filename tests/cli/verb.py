"""A verb as a process, whether or not the command line lists it yet."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

DRIVER = """
import sys
from topout.cli.app import app
from topout.cli.main import call
verb = sys.argv[1]
if verb not in list(app):
    app.command(f"topout.cli.{verb}:{verb}", name=verb)
sys.exit(call(sys.argv[1:]))
"""


def start_verb(*words: str, cwd: Path, env: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "TOPOUT_RUN")}
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, *words],
        cwd=cwd,
        env={**clean, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_verb(
    *words: str, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 240
) -> "subprocess.CompletedProcess[str]":
    process = start_verb(*words, cwd=cwd, env=env)
    try:
        out, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(list(words), process.returncode, out, errors)
