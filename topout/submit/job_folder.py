"""Where a submitted job is kept: `topout-runs/jobs/<date>-<script>-<n>/`, apart from the runs it makes.

    job.json          what was asked
    job.sh, eval.sh   what was submitted
    job_ids           the scheduler's numbers, the newest last
    logs/output.txt   what the scheduler kept of the job's output

A run knows its job (`job` in its run.json), so the runs of a job are found by reading, even on another machine.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topout.schema.run_folder import is_file

JOBS = "jobs"
"""Under the folder of the runs."""
JOB_VARIABLE = "TOPOUT_JOB"
_JOB_VERSION = 1


@dataclass(frozen=True)
class JobFolder:
    """The paths inside one job folder. Creating the object touches nothing."""

    path: Path

    @property
    def script(self) -> Path:
        return self.path / "job.sh"

    @property
    def eval_script(self) -> Path:
        return self.path / "eval.sh"

    @property
    def job_json(self) -> Path:
        return self.path / "job.json"

    @property
    def output(self) -> Path:
        return self.path / "logs" / "output.txt"

    @property
    def eval_output(self) -> Path:
        return self.path / "logs" / "eval-output.txt"

    @property
    def ids_file(self) -> Path:
        return self.path / "job_ids"

    @property
    def scheduler(self) -> str:
        return str(self._content().get("scheduler", ""))

    @property
    def job_id(self) -> str | None:
        """The newest: a job that submitted itself again goes on under another number."""
        ids = self.job_ids()
        return ids[-1] if ids else None

    def job_ids(self) -> list[str]:
        try:
            return [line.strip() for line in self.ids_file.read_text().splitlines() if line.strip()]
        except OSError:
            return []

    def runs(self) -> list[Path]:
        """The run folders of this job, the newest first."""
        dated = []
        for path in self.path.parent.parent.glob("*/run.json"):
            try:
                content = json.loads(path.read_text())
                if isinstance(content, dict) and _same(content.get("job"), self.path):
                    dated.append((str(content.get("started_at", "")), path.stat().st_mtime_ns, path.parent))
            except (OSError, ValueError):
                # half of a shared file system may be missing for a moment
                continue
        return [folder for *_, folder in sorted(dated, reverse=True)]

    def write(self, content: dict[str, Any]) -> None:
        self.job_json.write_text(json.dumps({"version": _JOB_VERSION, **content}, indent=1) + "\n")

    def _content(self) -> dict[str, Any]:
        try:
            content = json.loads(self.job_json.read_text())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}


def find_job(name: str | Path, root: Path) -> JobFolder | None:
    """The job of this folder or this number; None when `name` is something else."""
    if is_file(Path(name) / "job.json"):
        return JobFolder(Path(name))
    return next((job for job in jobs(root) if str(name) in job.job_ids()), None)


def jobs(root: Path) -> Iterator[JobFolder]:
    for path in sorted((root / JOBS).glob("*/job.json")):
        yield JobFolder(path.parent)


def _same(job: object, path: Path) -> bool:
    """The folder may have another name on the machine that reads it, so its last part decides."""
    return isinstance(job, str) and Path(job).name == path.name
