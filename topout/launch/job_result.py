"""How a job ended, as its launcher tells whoever asked for it."""

from __future__ import annotations

from topout.schema.light_dataclass import dataclass
from topout.schema.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """How a job ended, and what is left of it."""

    exit_code: int
    status: str
    """`finished`, `failed` or `interrupted`; `followed` in a launcher that another one led."""
    folder: RunFolder | None
    """Of the last round. None when no place could be written, and in a launcher that followed."""
    last_words: str | None = None
    """The first failing rank's traceback, or why the job was ended; to be printed after everything else."""
    notes: tuple[str, ...] = ()
    is_refused: bool = False
    """It was ended because it could not have done what was asked: there is nothing to explain but that."""
