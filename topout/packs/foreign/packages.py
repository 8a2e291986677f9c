"""Packages that only some formats need, imported when the format is met.

Not for what topout always needs: that is imported at the top of a file, and its absence is a broken installation.
"""

import importlib
from typing import Any

from topout.schema.errors import ExitCode, TopoutError


def require(module: str, *, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise TopoutError(
            f"{what} needs the package {package}, which cannot be imported.",
            why=str(error),
            do="pip install 'topout[formats]'",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error
