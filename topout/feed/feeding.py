"""Makes the batches of one iteration: takes plans, lets a pipeline fill slabs, and hands tensors over.

Runs in the producer's thread. Knows nothing of the iterator that reads, so that one may vanish.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from topout.feed import device_decode
from topout.feed.decode import UnreadableImage
from topout.feed.delivery import Delivery, Ready
from topout.feed.kept import Kept
from topout.feed.pack_set import PackSet
from topout.feed.pipeline import BatchPlan, Buffers, Pipeline, read_or_replace
from topout.feed.prefetch import Channel
from topout.feed.slabs import Slab
from topout.feed.tuning import Choice, Chooser, ranked, thread_choices
from topout.packs.fields import Sample

NUM_AHEAD = 1
"""Batches begun before the one before them is finished."""
_Underway = Callable[[], Ready]


@dataclass(kw_only=True)
class Feeding:
    """One iteration's machinery."""

    packs: PackSet
    delivery: Delivery
    pipeline: Pipeline
    plans: Iterator[BatchPlan]
    channel: Channel
    """Where batches go: no more are begun than it has room for, which bounds the memory."""
    kept: Kept
    skips_damage: bool
    may_tune_threads: bool = False
    may_decode_on_device: bool = False
    must_decode_on_device: bool = False

    def batches(self) -> Iterator[Ready]:
        if self.delivery.device is not None:
            import torch

            torch.cuda.set_device(self.delivery.device)
        underway: deque[_Underway] = deque()
        choice = self._choice()
        for plan in self.plans:
            if plan.number == 1 and self.kept.chooser is None and (self.may_tune_threads or self.may_decode_on_device):
                yield from self._drained(underway)
                # the first batch was not kept waiting for this
                self.kept.chooser = Chooser(self._measured(plan))
            if self._choice() != choice:
                # threads can only change while none of them works
                yield from self._drained(underway)
                choice = self._choice()
            while underway and not self.channel.has_room(len(underway), waits=False):
                yield underway.popleft()()
            if not self.channel.has_room(len(underway), waits=True):
                return
            underway.append(self._begun(plan, choice))
            if len(underway) > NUM_AHEAD:
                yield underway.popleft()()
        yield from self._drained(underway)

    def finish(self) -> None:
        self.pipeline.close()

    def heard(self, wait_ns: int, between_ns: int) -> None:
        """Called by the reader after each batch."""
        if self.kept.chooser is not None:
            self.kept.chooser.heard(wait_ns, between_ns)

    def _choice(self) -> Choice:
        if self.kept.chooser is not None:
            return self.kept.chooser.current
        return Choice(self.pipeline.num_threads, on_device=self.must_decode_on_device)

    def _drained(self, underway: "deque[_Underway]") -> Iterator[Ready]:
        while underway:
            yield underway.popleft()()

    def _begun(self, plan: BatchPlan, choice: Choice) -> "_Underway":
        """Begins a batch; call the result to have it."""
        slab = self.kept.pool.take()
        self.pipeline.num_threads = choice.num_threads
        if choice.on_device and self.delivery.transform is not None:
            return lambda: self._delivered_from_device(plan, slab)
        finish = self.pipeline.start(plan, slab.buffers)

        def finished() -> Ready:
            finish()
            return self.delivery.deliver(plan, slab, self.kept.pool)

        return finished

    def _delivered_from_device(self, plan: BatchPlan, slab: Slab) -> Ready:
        try:
            decoded = self._decoded_there(plan, slab.buffers)
        except UnreadableImage:
            if not self.skips_damage:
                raise
            # the host's pipeline knows what to put in its place
            self.pipeline.run(plan, slab.buffers)
            decoded = None
        return self.delivery.deliver(plan, slab, self.kept.pool, decoded)

    def _decoded_there(self, plan: BatchPlan, buffers: Buffers) -> Any:
        import torch

        image, transform = self.delivery.image, self.delivery.transform
        assert image is not None and transform is not None
        read = [read_or_replace(plan, row, self._numbered, skips=self.skips_damage) for row in range(len(plan))]
        samples = [sample for (_, sample), _ in read]
        for name, array in buffers.arrays.items():
            if name != image:
                array[: len(plan)] = np.array([sample[name] for sample in samples])
        for name in buffers.lists:
            buffers.lists[name] = [sample[name] for sample in samples]
        buffers.num_skipped = sum(num_skipped for _, num_skipped in read)
        data = [sample[image] for sample in samples]
        buffers.num_bytes = sum(map(len, data))
        names = [(self.packs.name(number), self.packs.find(number)[0].path) for (number, _), _ in read]
        with torch.cuda.stream(self.delivery.stream):
            return device_decode.decode_batch(plan, data, transform, self.delivery.device, names)

    def _numbered(self, number: int) -> tuple[int, Sample]:
        return number, self.packs.sample(number)

    def _measured(self, plan: BatchPlan) -> list[Choice]:
        """What this batch takes to make, each way, the second time it is made."""
        choices = thread_choices(self.pipeline.num_threads) if self.may_tune_threads else [self._choice()]
        if self.may_decode_on_device:
            choices.append(Choice(1, on_device=True))
        batch_s: dict[Choice, float] = {}
        for choice in choices:
            for _ in range(2):
                if plan.is_cancelled():
                    return [self._choice()]
                start_s = perf_counter()
                ready = self._begun(plan, choice)()
                if ready.event is not None:
                    ready.event.synchronize()
                batch_s[choice] = perf_counter() - start_s
        return ranked(batch_s)
