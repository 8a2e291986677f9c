"""`contextlib.suppress` for what loads before a training script's first line.

    with ignoring(OSError):
        os.unlink(path)

`contextlib` brings `collections` and `functools` along: 4 ms. Elsewhere the standard one is what a reader knows.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


class ignoring:  # noqa: N801 (reads as the function it stands for)
    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        """Nothing is kept."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool:
        return kind is not None and issubclass(kind, self._kinds)
