"""Small drawings as SVG text: bars in per cent of their width, and lines in a box that stretches to its place.

Text never stands inside these drawings: a stretched box would stretch it, so labels are HTML beside them. Not for what
a reader zooms into; that is the canvas of `page/timeline.js`.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BOX_WIDTH = 2000
BOX_HEIGHT = 500


def _short(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def bar(segments: Iterable[tuple[str, float, float]], *, height: int, label: str = "") -> str:
    """Segments (class, start, length) as shares of the width; responsive without a view box."""
    rects = "".join(
        f'<rect class="{name}" x="{_short(start * 100)}%" width="{_short(length * 100)}%" height="100%"/>'
        for name, start, length in segments
        if length > 0
    )
    role = f'role="img" aria-label="{label}"' if label else 'aria-hidden="true"'
    return f'<svg class="bar" height="{height}" {role}>{rects}</svg>'


def stacked(shares: Iterable[tuple[str, float]]) -> list[tuple[str, float, float]]:
    """Shares laid end to end, as `bar` takes them."""
    segments, start = [], 0.0
    for name, length in shares:
        segments.append((name, start, length))
        start += length
    return segments


def columns(stacks: Sequence[Sequence[tuple[str, float]]]) -> str:
    """One column a stack, each filled from below; one path a class keeps 64 columns small."""
    num = max(len(stacks), 1)
    paths: dict[str, list[str]] = {}
    for index, stack in enumerate(stacks):
        left, right = (round(BOX_WIDTH * (index + edge) / num) for edge in (0, 0.94 if num < 200 else 1))
        base = 0.0
        for name, share in stack:
            low, high = (round(BOX_HEIGHT * (1 - level)) for level in (base, base + share))
            base += share
            if low > high:
                paths.setdefault(name, []).append(f"M{left} {low}V{high}H{right}V{low}z")
    return box("".join(f'<path class="{name}" d="{"".join(parts)}"/>' for name, parts in paths.items()))


def line(x: Floats, y: Floats) -> str:
    """Path data of a line through points given as shares of the box, y upwards."""
    points = zip(np.rint(x * BOX_WIDTH).astype(int), np.rint((1 - y) * BOX_HEIGHT).astype(int), strict=True)
    return "M" + "L".join(f"{a} {b}" for a, b in points)


def band(x: Floats, low: Floats, high: Floats) -> str:
    """Path data of the area between two lines."""
    return f"{line(x, high)}L{line(x[::-1], low[::-1])[1:]}z"


def box(content: str, *, attributes: str = 'aria-hidden="true"') -> str:
    frame = f'viewBox="0 0 {BOX_WIDTH} {BOX_HEIGHT}" preserveAspectRatio="none"'
    return f'<svg class="plot" {frame} {attributes}>{content}</svg>'


def thin(x: Floats, y: Floats, limit: int) -> tuple[Floats, Floats]:
    """At most about `limit` points, keeping the highest and the lowest of each stretch so that no peak is lost."""
    if len(x) <= limit:
        return x, y
    kept: list[int] = []
    for part in np.array_split(np.arange(len(x)), max(limit // 2, 1)):
        kept.extend(sorted({int(part[np.argmin(y[part])]), int(part[np.argmax(y[part])])}))
    return x[kept], y[kept]
