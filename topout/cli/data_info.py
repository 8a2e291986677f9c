"""What `topout data info` prints: counts, fields, and how the sizes of samples are spread."""

from topout.cli.sizes import bytes_text
from topout.packs.fields import Field
from topout.packs.info import Info, SizeBin
from topout.schema.counted import counted

_BAR_WIDTH = 30
_MOST_CLASSES = 6
_WORDS = {
    "min": "smallest",
    "p01": "1 %",
    "p25": "25 %",
    "p50": "median",
    "p75": "75 %",
    "p99": "99 %",
    "max": "largest",
}


def render(info: Info) -> str:
    lines = [f"{info.path}  ({info.format})", "", *_counts(info), "", "Fields"]
    lines += [f"  {field.name:<12} {_field_text(field)}" for field in info.fields]
    if info.classes is not None:
        shown = ", ".join(info.classes[:_MOST_CLASSES]) + (", …" if len(info.classes) > _MOST_CLASSES else "")
        lines.append(f"  {len(info.classes):,} classes: {shown}")
    if info.sample_bytes:
        words = "   ".join(f"{_WORDS[key]} {bytes_text(value)}" for key, value in info.sample_bytes.items())
        lines += ["", f"Size of a sample   {words}", *_bars(info.size_bins)]
    return "\n".join([*lines, *(f"Note: {note}" for note in info.notes)])


def _counts(info: Info) -> list[str]:
    counts = [("samples", f"{info.num_samples:,}"), ("together", bytes_text(info.total_bytes))]
    if info.disk_bytes is not None:
        counts.append(("on disk", f"{bytes_text(info.disk_bytes)} in {counted(info.num_shards or 0, 'shard')}"))
    of_source = " (of the source)" if info.format == "pack" else ""
    if info.num_files is not None:
        counts.append(("files", f"{info.num_files:,} in {counted(info.num_folders or 0, 'folder')}{of_source}"))
    if info.source is not None:
        counts.append(("packed from", info.source))
    if info.options:
        counts.append(("changed by", ", ".join(f"{name} {value}" for name, value in info.options.items())))
    if info.num_skipped:
        counts.append(("left out", f"{info.num_skipped:,}, see skipped.txt"))
    return [f"{name:<14}{text}" for name, text in counts]


def _field_text(field: Field) -> str:
    shape = "" if field.kind != "array" else f" {field.dtype or 'of any type'} {field.shape or 'of any shape'}"
    codec = "" if field.codec == "raw" else f", {field.codec}"
    return f"{field.kind}{shape}{codec}"


def _bars(bins: tuple[SizeBin, ...]) -> list[str]:
    most = max(size_bin.num_samples for size_bin in bins)
    lines = []
    for size_bin in bins:
        bar = "█" * max(1, round(_BAR_WIDTH * size_bin.num_samples / most))
        size, total = bytes_text(size_bin.from_bytes), bytes_text(size_bin.total_bytes)
        lines.append(f"  from {size:>7}  {bar:<{_BAR_WIDTH}}  {size_bin.num_samples:>9,}  {total:>8}")
    return lines
