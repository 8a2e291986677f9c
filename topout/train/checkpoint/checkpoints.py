"""`Checkpoints`: a training's state saved beside it and found again after any crash."""

import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from topout.schema.errors import ExitCode, TopoutError
from topout.train.checkpoint import averaging, random_state, restoring
from topout.train.checkpoint.agreement import Agreement
from topout.train.checkpoint.captured import Captured
from topout.train.checkpoint.entries import Entry, bare, entries_of
from topout.train.checkpoint.files import is_seen
from topout.train.checkpoint.not_a_number import model_is_lost
from topout.train.checkpoint.pace import Never, Pace, pace
from topout.train.checkpoint.plan import Layout, make_layout
from topout.train.checkpoint.policy import check_policy
from topout.train.checkpoint.restoring import RANDOM, Skipped
from topout.train.checkpoint.staging import Staging
from topout.train.checkpoint.store import Seen, Store
from topout.train.checkpoint.tree import encoded
from topout.train.checkpoint.writing import Snapshot, Writing
from topout.train.leaving import finish_at_exit, forget
from topout.train.place import Place
from topout.train.wrapped import weak

_UNSEEN_LIMIT_S = 40.0
"""NFS may take a name for absent for 30 s after it has come."""
_UNSEEN_PAUSE_S = 0.5
_unclosed: "set[Checkpoints]" = set()
"""Those that have saved: waited for at the end, also where the script has dropped them."""


@dataclass(frozen=True, kw_only=True)
class Restored:
    """Where training goes on: `step` optimizer steps have been taken."""

    step: int
    epoch: int | None
    """Of the first part of the state whose state_dict has an `epoch` (loaders have), else None."""
    folder: Path
    saved_by_ranks: int
    skipped: tuple[Skipped, ...]
    """Newer checkpoints that were damaged, newest first, and why."""


class Checkpoints:
    """Saves `state` every so many steps or minutes; all ranks make one alike and call its methods alike.

    `state` names objects with state_dict and load_state_dict; modules may be wrapped in DDP or sharded by
    `fully_shard`. `every` is a number of steps, a time ("10m"), or None. The newest `keep` are kept, and those at
    multiples of `keep_every` steps for good. `folder` is one that all ranks see. A part that has `settle` is asked
    first, on all ranks: a stepper that has seen a loss of NaN raises there, and such a model is not saved.

    Not for a signal handler: ask `topout.should_stop()` at the end of a step and call `save()` and `close()` there.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        state: Mapping[str, Any],
        place: Place,
        every: int | str | None = None,
        keep: int = 3,
        keep_every: int | None = None,
    ) -> None:
        self.num_steps = 0
        self.restored: Restored | None = None
        """What `restore` has returned: where training went on, and how many ranks had saved it."""
        self._store = Store(Path(folder))
        # two groups: the thread that writes must not meet what is agreed on between steps
        self._agreement, self._writers = Agreement(place), Agreement(place)
        self._pace: Pace = Never()
        self._keep, self._keep_every = keep, keep_every
        self._token = self._agreement.first(secrets.token_hex(4))
        error = None
        try:
            check_policy(state, keep, keep_every)
            self._pace = pace(every, self._agreement)
            self._entries = entries_of(state)
            if place.is_first:
                self._prepare_folder()
        except TopoutError as raised:
            error = raised
        self._agreement.raise_if_any(error)
        self._check_folder_is_shared(place)
        self._parts = {name: _reference(part) for name, part in state.items()}
        self._doubts = _doubts(state)
        self._staging = Staging(place.device)
        # by the script's step(), and by an optimizer's hook, which not every way of stepping calls
        self._counts_steps, self._has_counted, self._num_uncounted = False, False, 0
        optimizers = [part for part in state.values() if isinstance(part, torch.optim.Optimizer)]
        for first in optimizers[:1]:
            # weakly: it may outlive this object, and steps count after `close` as well
            first.register_step_post_hook(_weakly(self._count))
        self._place = place
        self._plan: tuple[tuple[Any, ...], Layout] | None = None
        self._writing: Writing | None = None
        self._settling = threading.Lock()
        self._failure: str | None = None
        self._lost: tuple[str, int] | None = None
        """A parameter that holds NaN, and since which checkpoint."""
        self._damaged: tuple[Seen, ...] = ()
        self._is_begun = False
        self._last_taken: int | None = None
        # weakly: one that only restores must not keep a model that the script has dropped
        self._at_exit = _weakly(self._finish)
        finish_at_exit(self._at_exit)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def restore(self) -> Restored | None:
        """Loads the newest good checkpoint and says so; None where there is none yet."""
        found, notes = restoring.restore(self._store, self._held, self._agreement)
        # not where it raised: what lies there is then another training's still
        self._is_begun = True
        if found is None:
            return None
        manifest = found.manifest
        self.num_steps = self._last_taken = manifest.step
        self._damaged = found.damaged
        self._pace.begin(self.num_steps)
        for one in found.skipped:
            self._say(f"the checkpoint of step {one.step} is damaged and not used: {one.why}")
        self._say(f"going on from step {manifest.step} ({found.folder})", *notes)
        self.restored = Restored(
            step=manifest.step, epoch=manifest.epoch, folder=found.folder, saved_by_ranks=manifest.world_size,
            skipped=found.skipped,
        )  # fmt: skip
        return self.restored

    def step(self) -> None:
        """Once after each optimizer step."""
        self.num_steps += 1
        self._counts_steps = True
        if self._writing is not None and self._writing.is_done:
            self._settle()
        if self._pace.is_due(self.num_steps):
            self._take()

    def save(self) -> None:
        """Now, whether due or not; it is written when `close` returns or the next one begins.

        Where the script calls no `step()`, steps of its optimizer are counted. Without one, the checkpoint before is
        replaced. Does nothing when no step was taken since the last one.
        """
        if self._last_taken in (None, self.num_steps) and not self._counts_steps:
            self.num_steps += self._num_uncounted
        is_counted = self._counts_steps or self._has_counted
        if self._last_taken != self.num_steps or not is_counted:
            self._take()

    def close(self) -> None:
        """Waits until what is being written is safe; an error if the last one could not be."""
        self._finish()
        forget(self._at_exit)
        _unclosed.discard(self)
        self._staging.close()
        # a closed one may stay with the script, which has gone on to other loaders
        self._entries, self._doubts = [], []
        self._refuse_lost()
        if self._failure is not None:
            raise TopoutError(
                f"The last checkpoint, of step {self._last_taken}, was not written.",
                why=self._failure,
                do=f"make room in {self._store.folder}; the one before is still there",
                exit_code=ExitCode.ENVIRONMENT,
            )

    def _held(self) -> list[Entry]:
        """After `close`: of what the script still has, which must be all of it."""
        if not self._entries:
            living = {name: reference() for name, reference in self._parts.items()}
            gone = [name for name, part in living.items() if part is None]
            if gone:
                raise TopoutError(
                    f"These checkpoints were closed, and {', '.join(gone)} is no longer there.",
                    why="A checkpoint without it could not be gone on with.",
                    do="save before close(), or make new checkpoints of what there is now",
                )
            self._entries, self._doubts = entries_of(living), _doubts(living)
        return self._entries

    def _take(self) -> None:
        entries = self._held()
        for settle in self._doubts:
            settle()
        self._settle()
        # here all ranks are at the same step, and know the same
        self._refuse_lost()
        self._begin()
        captured = Captured(self._place.rank)
        error = None
        try:
            trees = captured.trees
            trees[RANDOM] = encoded(random_state.captured(self._place.device), RANDOM, _no_tensor)
            trees[averaging.AVERAGING] = averaging.captured(entries)
            for entry in entries:
                entry.capture(captured)
        except Exception as raised:  # state_dict is the user's; the other ranks must not wait
            error = _as_error(raised)
        layout = self._layout(captured, error)
        self._staging.fill(layout, captured)
        snapshot = Snapshot(
            step=self.num_steps, epoch=_epoch(captured.trees), seed=captured.trees[RANDOM]["seed"], trees=trees,
            layout=layout, trained=captured.trained, image=self._staging.image,
            folder=self._store.writing(self.num_steps, self._token),
        )  # fmt: skip
        self._writing = Writing(snapshot, self._store, self._writers, self._retire)
        # once more after `close`
        finish_at_exit(self._at_exit, anew=False)
        _unclosed.add(self)
        self._last_taken, self._num_uncounted = self.num_steps, 0
        self._pace.begin(self.num_steps)

    def _count(self, *_: Any) -> None:
        self._num_uncounted += 1
        self._has_counted = True

    def _layout(self, captured: Captured, error: TopoutError | None) -> Layout:
        """The plan in use, or a new one where a tensor has changed on any rank; checks that all are at one step."""
        signature = captured.signature()
        is_new = self._plan is None or self._plan[0] != signature
        failed, replan, latest, earliest = self._agreement.most(
            error is not None, is_new, self.num_steps, -self.num_steps
        )
        if failed:
            self._agreement.raise_if_any(error)
        if latest != -earliest:
            raise TopoutError(
                f"Ranks save at different steps, from {-earliest:.0f} to {latest:.0f}.",
                why="A checkpoint holds one step of all ranks; some called step() more often than others.",
                do="call step() once after each optimizer step, on all ranks",
            )
        if replan or self._plan is None:
            self._plan = (signature, make_layout(captured, self._agreement))
        return self._plan[1]

    def _begin(self) -> None:
        """Before each checkpoint of this run; what a crash has left goes before the first."""
        if not self._is_begun:
            self._refuse_foreign()
            self._is_begun = True
        if self._place.is_first:
            try:
                self._store.begin()
            except OSError as error:
                self._say(f"what a crash may have left in {self._store.folder} stays: {error.strerror or error}")
            for one in self._damaged:
                self._store.set_damaged_aside(one)
        self._damaged = ()

    def _refuse_foreign(self) -> None:
        steps = restoring.saved_steps(self._store, self._agreement)
        if steps:
            raise TopoutError(
                f"{self._store.folder} holds checkpoints of another training, up to step {steps[-1]}.",
                why="Saved among them, this training's would be taken for old ones and deleted.",
                do="call restore() first to go on with it, or use another folder",
            )

    def _settle(self) -> None:
        """Waits for the checkpoint in flight, if any, and says once what went wrong with it."""
        writing = self._writing
        if writing is None or not writing.is_of_this_process:
            return
        failure, step = writing.wait(), writing.step
        # a rank that failed leaves while one thread still waits, and waits again in another
        with self._settling:
            if self._writing is not writing:
                return
            self._writing = None
            if failure is not None and self._failure is None:
                self._say(
                    f"the checkpoint of step {step} was not written: {failure}; training goes on, older ones stay"
                )
            self._failure = failure
            self._lost = None if writing.lost is None else (writing.lost, step)

    def _refuse_lost(self) -> None:
        if self._lost is not None:
            raise model_is_lost(*self._lost, self._store.folder, self._store.steps())

    def _finish(self) -> None:
        self._settle()
        with self._settling:
            self._store.end()

    def _retire(self, newest: int) -> None:
        self._store.retire(newest, keep=self._keep, keep_every=self._keep_every)

    def _prepare_folder(self) -> None:
        """Rank 0: makes the folder and shows that it can be written to."""
        try:
            self._store.folder.mkdir(parents=True, exist_ok=True)
            self._probe().write_bytes(b"")
        except OSError as error:
            raise TopoutError(
                f"Checkpoints cannot be written to {self._store.folder}.",
                why=f"{error.strerror or error}.",
                do="name a folder that this user may write to",
                exit_code=ExitCode.ENVIRONMENT,
            ) from error

    def _check_folder_is_shared(self, place: Place) -> None:
        error, give_up_s = None, time.monotonic() + _UNSEEN_LIMIT_S
        while True:
            is_unseen = not is_seen(self._probe())
            # in turns: ranks that waited for one that still looks would seem to hang
            is_any_unseen, is_over = self._agreement.most(is_unseen, time.monotonic() > give_up_s)
            if is_over or not is_any_unseen:
                break
            time.sleep(_UNSEEN_PAUSE_S)
        if is_unseen:
            error = TopoutError(
                f"Rank {place.rank} does not see the folder {self._store.folder} of rank 0.",
                why="A checkpoint is one folder that all ranks write to; this one is local to a node.",
                do="name a folder on a file system that all nodes share",
                exit_code=ExitCode.ENVIRONMENT,
            )
        self._agreement.raise_if_any(error)
        if place.is_first:
            with suppress(OSError):  # the others are past the point where they would hear of it
                self._probe().unlink()

    def _probe(self) -> Path:
        return self._store.folder / f".probe-{self._token}"

    def _say(self, *sentences: str) -> None:
        if self._agreement.place.is_first:
            for sentence in sentences:
                print(f"topout: {sentence}", file=sys.stderr, flush=True)  # noqa: T201  (to whoever runs the training)


def _doubts(state: Mapping[str, Any]) -> list[Callable[[], None]]:
    return [settle for part in state.values() if callable(settle := getattr(part, "settle", None))]


def _reference(part: Any) -> Callable[[], Any]:
    """Weak for what takes memory; what a script may have made for the checkpoint alone is kept."""
    if isinstance(part, torch.nn.Module):
        whole, inner = weak(part), weak(bare(part))
        return lambda: inner() if (found := whole()) is None else found
    return weak(part) if isinstance(part, torch.optim.Optimizer) or hasattr(part, "__iter__") else lambda: part


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        found = reference()
        if found is not None:
            found(*args)

    return call


def _no_tensor(path: str, _: Any) -> str:
    raise AssertionError(path)


def _epoch(trees: Mapping[str, Any]) -> int | None:
    epochs = (tree.get("epoch") for name, tree in trees.items() if name != RANDOM and isinstance(tree, dict))
    return next((epoch for epoch in epochs if isinstance(epoch, int)), None)


def _as_error(raised: Exception) -> TopoutError:
    if isinstance(raised, TopoutError):
        return raised
    return TopoutError(
        "The state cannot be captured.",
        why=f"{type(raised).__name__}: {raised}",
        do="see the state_dict() of the parts of state",
    )
