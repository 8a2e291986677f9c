"""What is said when a pack is not what its writer left: which file, which sample, and how to mend it."""

from pathlib import Path

from topout.packs.given_path import begins_with, nothing_at
from topout.packs.layout import MAGIC
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
    """What lies at `path` instead, or that nothing does."""
    if not path.exists():
        return nothing_at(path)
    if (path / ".packing").is_dir():
        return TopoutError(
            f"{path} is not a pack yet.",
            why="packing it was begun and did not finish",
            do="give the command that began it again: topout pack and topout data convert go on where they were",
        )
    if is_unfinished(path):
        return TopoutError(
            f"{path} is not a whole pack.",
            why="it holds files of a pack, but no pack.json",
            do="copy the pack again, or remove the folder and pack the source again",
            exit_code=ExitCode.ENVIRONMENT,
        )
    return TopoutError(
        f"{path} is not a pack.", why="it holds no pack.json", do="make one: topout pack SRC DST, then read DST"
    )


def is_unfinished(path: Path) -> bool:
    """Whether a folder was to be a pack and is none: begun, or without its pack.json."""
    if (path / "pack.json").exists():
        return False
    files = (path / "index.bin", path / "shard-00000.bin")
    return (path / ".packing").is_dir() or any(begins_with(file, MAGIC) for file in files)
