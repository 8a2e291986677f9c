"""What is said when a pack is not what its writer left: which file, which sample, and how to mend it."""

from pathlib import Path

from topout.schema.errors import ExitCode, TopoutError

POLICIES = ("stop", "skip", "repair")
"""Of a reader that meets a damaged sample: raise, leave it out, or read it again from the source."""


class DamagedPack(TopoutError):  # noqa: N818 (named for the state it reports)
    """A file of a pack is missing, cut short, of another pack, or altered."""

    def __init__(self, pack: Path, problem: str, why: str, do: str | None = None) -> None:
        super().__init__(
            problem, why=why, do=do or f"topout data check {pack} --repair", exit_code=ExitCode.ENVIRONMENT
        )
        self.pack = pack


class DamagedSample(DamagedPack):
    """One sample's bytes do not match their checksum."""

    def __init__(self, pack: Path, *, shard: str, number: int, name: str | None, why: str) -> None:
        called = "" if name is None else f" ({name!r})"
        super().__init__(pack, f"Sample {number}{called} of {pack} is damaged, in {shard}.", why)
        self.shard = shard
        self.number = number
        self.name = name


def not_a_pack(path: Path) -> TopoutError:
    if (path / ".packing").is_dir():
        return TopoutError(
            f"{path} is not a pack yet.",
            why="packing it was begun and did not finish",
            do=f"give the same topout pack command again; it goes on where it was: topout pack SRC {path}",
        )
    return TopoutError(
        f"{path} is not a pack.", why="it holds no pack.json", do="make one: topout pack SRC DST, then read DST"
    )
