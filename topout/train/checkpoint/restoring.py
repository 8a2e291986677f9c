"""The newest good checkpoint back into a training: found, verified by all ranks together, loaded by each.

One that is torn or was changed is passed over, and said; one that does not fit this training is an error, since an
older one would not fit either. One that a living training deletes or replaces meanwhile is neither: the newest is
looked for again. Until all ranks have read all of one nothing is filled but tensors of models, which the next fills
anew.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from topout.schema.errors import ExitCode, TopoutError
from topout.train.checkpoint import averaging, random_state
from topout.train.checkpoint import manifest as manifests
from topout.train.checkpoint.agreement import Agreement
from topout.train.checkpoint.captured import Source
from topout.train.checkpoint.entries import Entry
from topout.train.checkpoint.manifest import Damaged, Manifest
from topout.train.checkpoint.reader import load_into
from topout.train.checkpoint.store import Gone, Seen, Store, read_one
from topout.train.checkpoint.tree import decoded
from topout.train.dealing import DEALT
from topout.train.wrapped import MORE

RANDOM = "@random"
"""The entry of a rank's random numbers; no entry of a user begins like this."""
_OURS = (RANDOM, averaging.AVERAGING, DEALT)


@dataclass(frozen=True)
class Skipped:
    step: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Found:
    folder: Path
    manifest: Manifest
    skipped: tuple[Skipped, ...]
    seen: Seen
    damaged: tuple[Seen, ...]
    """Those that were skipped, as they were then."""


def restore(store: Store, held: Callable[[], Sequence[Entry]], agreement: Agreement) -> tuple[Found | None, list[str]]:
    """Into what is `held`: the newest good one, and what a person should know."""

    def read(gone: frozenset[str]) -> tuple[Found | None, list[str]]:
        found = find(store, agreement, gone)
        return found, [] if found is None else load(found, held(), agreement)

    return read_one(store.folder, read)


def find(store: Store, agreement: Agreement, gone: frozenset[str] = frozenset()) -> Found | None:
    """None when there is no checkpoint at all; an error when there are and none is good.

    One that had `gone`, is listed again and still not there is one that some rank does not see, and no good to it.
    """
    skipped: list[Skipped] = []
    damaged: list[Seen] = []
    for step in reversed(saved_steps(store, agreement)):
        folder = store.path(step)
        seen = Seen(folder)
        manifest, problem = _looked_at(folder, seen, agreement)
        if problem is None and manifest is not None:
            return Found(
                folder=folder, manifest=manifest, skipped=tuple(skipped), seen=seen, damaged=tuple(damaged)
            )  # fmt: skip
        _raise_if_gone(folder, seen, agreement, again=folder.name in gone)
        skipped.append(Skipped(step, str(problem)))
        damaged.append(seen)
    if not skipped and not gone:
        return None
    if not skipped:
        raise TopoutError(
            f"The last checkpoint went from {store.folder} while it was read.",
            why="Part of it may be in the model, which must not begin anew with that.",
            do="start again to begin anew, or restore the files from a backup first",
            exit_code=ExitCode.ENVIRONMENT,
        )
    raise TopoutError(
        f"None of the {len(skipped)} checkpoints in {store.folder} is good.",
        why="; ".join(f"step {one.step}: {one.why}" for one in skipped[:5]),
        do="restore the files from a backup, or begin anew with another folder",
        exit_code=ExitCode.ENVIRONMENT,
    )


def saved_steps(store: Store, agreement: Agreement) -> list[int]:
    """As rank 0 sees them: a thousand ranks need not list the folder, and what one cannot list all must hear of."""
    steps: list[int] = []
    error = None
    if agreement.place.is_first:
        try:
            store.bring_back()
            steps = store.steps()
        except OSError as raised:
            error = TopoutError(
                f"The checkpoints in {store.folder} cannot be listed.",
                why=f"{raised.strerror or raised}.",
                do="look at the file system, and start again when it answers",
                exit_code=ExitCode.ENVIRONMENT,
            )
    agreement.raise_if_any(error)
    return list(agreement.first(steps))


def _looked_at(folder: Path, seen: Seen, agreement: Agreement) -> tuple[Manifest | None, str | None]:
    """Each rank sums up its share of the files; what any of them finds is wrong for all."""
    place, manifest, wrong = agreement.place, None, []
    try:
        manifest = manifests.read(folder)
        wrong = manifests.verify(folder, manifest, slice(place.rank, None, place.world_size))
    except Damaged as error:
        wrong = [str(error)]
    given = agreement.shared([wrong, seen.marker])
    found = [problem for problems, _ in given for problem in problems]
    if any(marker != given[0][1] for _, marker in given):
        # one was replaced meanwhile, or a node keeps the one before in mind, as NFS does for a while
        found.append(f"{manifests.MARKER}: ranks do not see the same")
    return manifest, found[0] if found else None


def _raise_if_gone(folder: Path, seen: Seen, agreement: Agreement, *, again: bool = False) -> None:
    if any(agreement.shared(seen.has_gone(again=again))):
        raise Gone(folder.name)


def load(found: Found, entries: Sequence[Entry], agreement: Agreement) -> list[str]:
    """Returns what a person should know; raises on all ranks what is wrong on any."""
    place, manifest = agreement.place, found.manifest
    is_same_world = manifest.world_size == place.world_size
    trees: dict[str, Any] = {}
    begun: list[str] = []
    source = Source(manifest.sizes())
    error = None
    try:
        # at another number of ranks all go on from rank 0's
        name = manifests.tree_name(place.rank if is_same_world else 0)
        trees = json.loads((found.folder / name).read_bytes())
        found.seen.raise_if_other()
        begun = _check_entries(entries, trees)
        entries = [entry for entry in entries if entry.name not in begun]
        for entry in entries:
            entry.ask(trees[entry.name], source)
    except Exception as raised:  # whatever it is, the other ranks must not wait
        error = _as_error(raised, "The checkpoint does not fit this training.")
    _raise_if_any(error, found, agreement)
    try:
        load_into(source.targets, found.folder, manifest, found.seen)
    except Exception as raised:
        error = _as_error(raised, f"The checkpoint of step {manifest.step} cannot be loaded.")
    _raise_if_any(error, found, agreement)
    try:
        for entry in entries:
            entry.load()
    except Exception as raised:
        error = _as_error(raised, f"The checkpoint of step {manifest.step} cannot be loaded.")
    agreement.raise_if_any(error)
    unused = [name for name in trees if name not in {*_OURS, *(entry.name for entry in entries)}]
    notes = [f"the checkpoint's {name} is not used: state has none" for name in unused]
    notes += [f"the checkpoint knows no {name}, which begins anew" for name in begun if name not in _OURS]
    if is_same_world:
        averaging.restore(entries, trees.get(averaging.AVERAGING), agreement)
        random_state.restore(decoded(trees[RANDOM], torch.empty), place.device)
    else:
        random_state.reseeded(manifest.seed, manifest.step, place.rank)
        notes.append(
            f"it was saved by {manifest.world_size} ranks and goes on with {place.world_size}: random numbers are "
            "drawn anew from the seed, and what ranks had of their own is rank 0's"
        )
    return notes


def _raise_if_any(error: TopoutError | None, found: Found, agreement: Agreement) -> None:
    if any(agreement.shared(error is not None)):
        _raise_if_gone(found.folder, found.seen, agreement)
    agreement.raise_if_any(error)


def _check_entries(entries: Sequence[Entry], trees: dict[str, Any]) -> list[str]:
    """Those that the checkpoint does not have and that may begin anew: one more loader; one rank compresses nothing.

    Nor how many loaders there were, which older ones do not say.
    """
    missing = [entry.name for entry in entries if entry.name not in trees]
    known = {entry.name for entry in entries}
    unused = {name.partition(MORE)[0] for name in trees if MORE in name and name not in known}
    # one of several that has no place while another has no owner was numbered otherwise when it was saved
    begun = [name for name in missing if MORE in name and name.partition(MORE)[0] not in unused]
    begun += [name for name in missing if name.partition("-")[0] == "compression" or name == DEALT]
    missing = [name for name in missing if name not in begun]
    if missing:
        raise TopoutError(
            f"The checkpoint knows no {', '.join(missing)}.",
            why=f"It was saved with {', '.join(name for name in trees if name not in _OURS)}.",
            do="give state the names it was saved with, or leave these out until restore() has returned",
        )
    return begun


def _as_error(raised: Exception, problem: str) -> TopoutError:
    if isinstance(raised, TopoutError):
        return raised
    return TopoutError(
        problem, why=f"{type(raised).__name__}: {raised}", do="build every part of state as it was when it was saved"
    )
