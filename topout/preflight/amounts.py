"""Numbers as a reader of the doctor's table meets them: three digits that matter and a unit.

Not for the JSON, which keeps every digit.
"""


def seconds(value_s: float) -> str:
    """`35 µs`, `1.4 s`."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value_s) >= size:
            return f"{_digits(value_s / size)} {unit}"
    return f"{value_s * 1e9:.0f} ns"


def rate(value_bytes_per_s: float) -> str:
    """`119 MB/s`, `2.0 GB/s`."""
    return f"{_scaled(value_bytes_per_s)}B/s"


def flops(value_flops_per_s: float) -> str:
    """`243 GFLOP/s`."""
    return f"{_scaled(value_flops_per_s)}FLOP/s"


def count(value: float) -> str:
    return f"{value:,.0f}"


def size(value_bytes: float) -> str:
    """In powers of 1024: `64 MiB`, `23.5 GiB`."""
    value, unit = float(value_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{_digits(value)} {unit}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _scaled(value: float) -> str:
    for larger, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= larger:
            return f"{_digits(value / larger)} {prefix}"
    return f"{_digits(value)} "


def _digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    text = f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
