"""What `topout data check PACK --source ROOT` prints: that both are equal, or which names are not."""

from topout.packs.source_comparison import DIFFERENT, ONLY_IN_PACK, ONLY_IN_SOURCE, Comparison

_MOST_SHOWN = 5


def render(pack: str, comparison: Comparison) -> str:
    if not comparison.differences:
        return f"{pack} is equal to {comparison.source}: {comparison.num_entries:,} entries compared."
    lines = [f"{pack} differs from {comparison.source}:"]
    headings = {
        ONLY_IN_SOURCE: f"only in {comparison.source}",
        ONLY_IN_PACK: f"only in {pack}",
        DIFFERENT: "different",
    }
    for what, heading in headings.items():
        found = [difference for difference in comparison.differences if difference.what == what]
        if found:
            lines.append(f"  {heading}: {len(found):,}")
        for difference in found[:_MOST_SHOWN]:
            why = "" if difference.why is None else f": {difference.why}"
            lines.append(f"    {difference.name!r}{why}")
        if len(found) > _MOST_SHOWN:
            lines.append(f"    … and {len(found) - _MOST_SHOWN:,} more")
    return "\n".join(lines)
