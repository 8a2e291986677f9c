"""An error that a person can act on: what is wrong, why, and what to do about it."""

from topout.schema.light_enum import IntEnum


class ExitCode(IntEnum):
    """What the process tells the shell; scripts and schedulers depend on these numbers."""

    FINE = 0
    FINDINGS = 1
    USAGE = 2
    ENVIRONMENT = 3
    JOB_FAILED = 4
    INTERRUPTED = 130


class TopoutError(Exception):
    """Raised wherever a user's input or machine cannot serve; the command line prints its three parts."""

    def __init__(self, problem: str, *, why: str, do: str, exit_code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(problem)
        self.problem = problem
        self.why = why
        self.do = do
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.problem}\n  why  {self.why}\n  do   {self.do}"
