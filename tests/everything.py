"""All tests: two files of them at a time where that does no harm, then one by one those that need a quiet machine.

python -m tests.everything [WORKERS]        # what `make test` calls; options of pytest by PYTEST_ADDOPTS
"""

import subprocess
import sys

import pytest

QUIET = "alone or lab"


def main(workers: str = "2") -> int:
    beside = run("-n", workers, "--dist", "loadfile", "-m", f"not ({QUIET})")
    if beside == pytest.ExitCode.INTERRUPTED:
        return beside
    alone = run("-m", QUIET)
    # one that a choice of tests has left empty says nothing
    said = [code for code in (beside, alone) if code != pytest.ExitCode.NO_TESTS_COLLECTED]
    return max(said, default=beside)


def run(*options: str) -> int:
    """Ends with pytest, whose own words an interruption has; a signal that ended it counts as a shell counts it."""
    started = subprocess.Popen([sys.executable, "-m", "pytest", *options])
    while True:
        try:
            code = started.wait()
        except KeyboardInterrupt:
            continue
        return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
