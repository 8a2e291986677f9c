"""Members of tar archives put together to samples by their keys, in the order they stand.

As WebDataset does: only neighbours belong together, a key that comes again later is another sample.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from topout.packs.foreign.data_files import DataFile, prefixes
from topout.packs.foreign.tar_members import Member, find_members
from topout.packs.foreign.webdataset import split_key
from topout.schema.errors import TopoutError


@dataclass(slots=True)
class Group:
    archive: int
    key: str
    path: str
    """Of the first member."""
    name: str | None
    """What the archive says the sample is called."""
    members: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Offset and size by extension."""
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class ArchiveGroups:
    groups: list[Group]
    fields: str | None


def archive_groups(file: DataFile, number: int) -> ArchiveGroups:
    """The samples of one archive; one more at the end stands for what could not be followed."""
    found = find_members(file.path)
    if found.fault is not None and not found.members:
        raise TopoutError(
            f"{file.path} is not a tar archive.",
            why=found.fault,
            do="check the file, or name its kind with --from",
        )
    groups: list[Group] = []
    for member in found.members:
        key, extension = split_key(member.path)
        if not groups or groups[-1].key != key:
            groups.append(Group(number, key, member.path, member.name))
        _add(groups[-1], extension, member)
    if found.fault is not None:
        rest = f"{file.name}: the rest"
        groups.append(Group(number, rest, rest, None, problem=f"the rest of {file.name} cannot be read: {found.fault}"))
    return ArchiveGroups(groups=groups, fields=found.fields)


def told_fields(archives: Sequence[ArchiveGroups]) -> str | None:
    """The table of fields, if topout wrote all the archives, and with the same fields."""
    tables = {archive.fields for archive in archives}
    return tables.pop() if len(tables) == 1 else None


def unique_names(files: Sequence[DataFile], groups: Sequence[Group], *, is_plain: bool) -> list[str]:
    """Keys, or paths of plain files; with the archive before them where archives number their samples alike."""
    names = [group.name or (group.path if is_plain else group.key) for group in groups]
    if len(set(names)) == len(names) or _repeats_within_an_archive(groups, names):
        return names
    before = prefixes(files)
    return [f"{before[group.archive]}/{name}" for group, name in zip(groups, names, strict=True)]


def _repeats_within_an_archive(groups: Iterable[Group], names: Sequence[str]) -> bool:
    places = [(group.archive, name) for group, name in zip(groups, names, strict=True)]
    return len(set(places)) != len(places)


def _add(group: Group, extension: str, member: Member) -> None:
    if member.problem is not None:
        group.problem = f"{member.path}: {member.problem}"
    if extension in group.members:
        group.problem = f"it has two members .{extension}"
    group.members[extension] = (member.offset, member.size_bytes)
