"""Memory is never overwritten under a script, damage is named or skipped, and no thread outlives its iteration."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.conftest import REPOSITORY
from tests.feed.image_packs import damage, write_images, write_records
from topout import Loader
from topout.feed.augment import (
    RandomHorizontalFlip,
    RandomResizedCrop,
    train_images,
)
from topout.feed.decode import UnreadableImage
from topout.feed.prefetch import Channel, Producer
from topout.packs.damage import DamagedPack, DamagedSample
from topout.packs.fields import Field
from topout.packs.pack import open_pack
from topout.packs.packing.writer import PackWriter
from topout.schema.errors import TopoutError


def num_tasks() -> int:
    """Threads as the kernel counts them, those of compiled code included."""
    return len(os.listdir("/proc/self/task"))


def falls_to(wanted: int) -> bool:
    """A thread that was joined is still listed for a moment."""
    for _ in range(500):
        if num_tasks() <= wanted:
            return True
        time.sleep(0.01)
    return False


def grows_to(channel: Channel, wanted: int) -> bool:
    for _ in range(2_000):
        if len(channel) >= wanted:
            return True
        time.sleep(0.01)
    return False


@pytest.fixture(params=["native", "python"])
def either_pipeline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TOPOUT_FEED_PIPELINE", request.param)
    return request.param


@pytest.mark.usefixtures("either_pipeline")
def test_a_batch_that_is_kept_is_never_overwritten(images: Path) -> None:
    with Loader(images, 4, transform=train_images(16), dtype="uint8", prefetch=1) as loader:
        kept = []
        copies = []
        for pixels, labels in loader:
            kept.append((pixels[1:3], labels))  # a view of a part is enough
            copies.append((pixels[1:3].clone(), labels.clone()))
    assert len(kept) == 10
    assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(kept, copies, strict=True))


@pytest.mark.usefixtures("either_pipeline")
def test_memory_is_used_again_once_a_batch_is_dropped(images: Path) -> None:
    with Loader(images, 4, transform=train_images(16), dtype="uint8", prefetch=1) as loader:
        iterator = iter(loader)
        places = []
        for pixels, labels in iterator:
            places.append(pixels.data_ptr())
            del pixels, labels
            time.sleep(0.01)
        assert len(places) == 10
        # one ready or being made, one in the script's hands, and one that was let go as the next was begun
        assert len(set(places)) <= 3
        assert iterator._pool.num_made <= 3


def test_what_autograd_saved_is_not_overwritten(images: Path) -> None:
    weight = torch.ones(1, requires_grad=True)
    with Loader(images, 4, transform=train_images(16), prefetch=1) as loader:
        losses, sums = [], []
        for pixels, _ in loader:
            losses.append((pixels * weight).sum())
            sums.append(pixels.sum().item())
            del pixels
        for loss, total in zip(losses, sums, strict=True):
            weight.grad = None
            loss.backward()
            assert weight.grad.item() == pytest.approx(total, rel=1e-3, abs=0.5)


@pytest.mark.usefixtures("either_pipeline")
def test_an_abandoned_iterator_leaves_no_thread(images: Path) -> None:
    loader = Loader(images, 4, transform=train_images(16))
    before = num_tasks()
    iterator = iter(loader)
    next(iterator)
    assert num_tasks() > before
    del iterator
    gc.collect()
    assert falls_to(before)
    for _ in loader:
        break
    gc.collect()
    assert falls_to(before)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert falls_to(before)
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_finished_iterator_leaves_no_thread(images: Path) -> None:
    before = num_tasks()
    with Loader(images, 4, transform=train_images(16)) as loader:
        iterator = iter(loader)
        for _ in range(10):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)
        assert falls_to(before)
        with pytest.raises(StopIteration):
            next(iterator)


@pytest.mark.parametrize("how", [signal.SIGINT, None])
def test_a_process_that_ends_in_the_middle_ends_cleanly(images: Path, how: signal.Signals | None) -> None:
    script = f"""
import signal, topout
from topout.feed.augment import train_images
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
loader = topout.Loader({str(images)!r}, 4, transform=train_images(160))
iterator = iter(loader)
next(iterator)
print("begun", flush=True)
if {how is not None}:
    while True:
        for batch in loader:
            pass
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    if how is not None:
        time.sleep(0.3)
        process.send_signal(how)
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    if how is None:
        assert (process.returncode, errors) == (0, "")
    else:
        assert process.returncode == -signal.SIGINT
        assert errors.count("Traceback") == 1 and errors.rstrip().endswith("KeyboardInterrupt")


def test_a_closed_loader_says_so(records: Path) -> None:
    loader = Loader(records, 10)
    loader.close()
    with pytest.raises(TopoutError, match="was closed"):
        iter(loader)


def test_no_more_is_made_ahead_than_was_asked_for(images: Path) -> None:
    for prefetch in (1, 2, 4):
        with Loader(images, 4, transform=train_images(16), prefetch=prefetch) as loader:
            iterator = iter(loader)
            next(iterator)
            assert grows_to(iterator._channel, prefetch)
            time.sleep(0.1)
            assert len(iterator._channel) == prefetch
            assert iterator._pool.num_made <= prefetch + 1


@pytest.mark.usefixtures("either_pipeline")
def test_a_failure_in_a_thread_is_raised_where_the_batch_is_asked_for(tmp_path: Path) -> None:
    path = write_images(tmp_path / "pack", 12)
    damage(path, 7)
    before = num_tasks()
    with Loader(path, 4, transform=train_images(16), shuffle=False) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(DamagedSample, match=r"Sample 7 .*class-3/0007.jpg.* is damaged"):
            next(iterator)
        assert falls_to(before)
        with pytest.raises(StopIteration):
            next(iterator)


def test_no_interrupt_is_lost_whenever_it_comes(images: Path) -> None:
    """Epochs of a few milliseconds, so that iterators are begun, read, ended and dropped all the time."""
    script = f"""
import os, random, signal, time, topout
from topout.feed.augment import train_images
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
loader = topout.Loader({str(images)!r}, 4, transform=train_images(16))
for batch in loader:
    pass
asked, ask = os.pipe()
if os.fork() == 0:
    os.close(ask)
    while os.read(asked, 1):
        time.sleep(random.uniform(0.001, 0.02))
        os.kill(os.getppid(), signal.SIGINT)
    os._exit(0)
for _ in range(300):
    begin = time.monotonic()
    try:
        os.write(ask, b"!")
        while time.monotonic() - begin < 10:
            for batch in loader:
                pass
        raise SystemExit("an interrupt was lost")
    except KeyboardInterrupt:
        pass
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_iterator_is_not_for_a_forked_child(records: Path) -> None:
    with Loader(records, 10) as loader:
        iterator = iter(loader)
        next(iterator)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                next(iterator)
            except TopoutError as error:
                os.write(write, error.problem.encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert b"another process" in os.read(read, 1_000)


@pytest.mark.usefixtures("either_pipeline")
def test_a_forked_child_ends_while_an_epoch_is_under_way(images: Path) -> None:
    script = f"""
import os, signal, sys, topout
from topout.feed.augment import train_images
loader = topout.Loader({str(images)!r}, 4, transform=train_images(16))
iterator = iter(loader)
batch = next(iterator)
for way in ("sys.exit()", "del iterator, batch", "loader.close()"):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        exec(way)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0, way
assert sum(1 for _ in iterator) == len(loader) - 1
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_producer_hands_its_error_over_after_what_came_before() -> None:
    def batches():
        yield 1
        yield 2
        raise ValueError("third")

    finished = []
    channel = Channel(depth=2)
    producer = Producer(channel, batches, lambda: finished.append(True))
    assert [channel.get(), channel.get()] == [1, 2]
    with pytest.raises(ValueError, match="third"):
        channel.get()
    with pytest.raises(StopIteration):
        channel.get()
    producer.close()
    assert finished == [True]


@pytest.mark.usefixtures("either_pipeline")
def test_skipping_puts_the_next_positions_sample_in_place_and_counts_it(tmp_path: Path) -> None:
    path = write_images(tmp_path / "pack", 12)
    damage(path, 3, 7, 8)
    transform = [RandomResizedCrop(16), RandomHorizontalFlip()]
    with Loader(path, 4, transform=transform, shuffle=False, on_damage="skip", dtype="uint8") as loader:
        batches = list(loader)
        assert loader.counters()["skipped"] == 1 + 2 + 1
    labels = torch.cat([labels for _, labels in batches]).tolist()
    # 3 -> 4; 7 -> 9 past 8; 8 -> 9: labels modulo 4
    assert labels == [0, 1, 2, 0, 0, 1, 2, 1, 1, 1, 2, 3]


def test_skipping_works_in_gathered_batches_too(tmp_path: Path) -> None:
    path = write_records(tmp_path / "pack", 12)
    damage(path, 3, 11)
    with Loader(path, 6, shuffle=False, on_damage="skip") as loader:
        batches = list(loader)
        assert loader.counters()["skipped"] == 2
    assert torch.cat([batch["label"] for batch in batches]).tolist() == [0, 1, 2, 4, 4, 5, 6, 7, 8, 9, 10, 0]
    with Loader(path, 6, shuffle=False) as loader:
        with pytest.raises(DamagedSample, match="Sample 3 "):
            list(loader)


@pytest.mark.usefixtures("either_pipeline")
def test_an_image_that_cannot_be_decoded_stops_or_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "pack"
    whole = write_images(tmp_path / "whole", 4)
    fields = [Field(name="image", kind="bytes"), Field(name="label", kind="int")]
    with open_pack(whole) as pack, PackWriter(path, fields=fields) as writer:
        for number in range(4):
            data = b"not an image" if number == 2 else pack.sample(number)["image"]
            writer.add(f"sample {number}", {"image": data, "label": number})
    with Loader(path, 4, transform=train_images(16), shuffle=False) as loader:
        with pytest.raises(UnreadableImage, match="'sample 2'"):
            list(loader)
    with Loader(path, 4, transform=train_images(16), shuffle=False, on_damage="skip") as loader:
        ((_, labels),) = list(loader)
        assert labels.tolist() == [0, 1, 3, 3]


@pytest.mark.parametrize("policy", ["stop", "skip", "repair"])
def test_a_shard_cut_short_stops_whatever_the_policy(tmp_path: Path, policy: str) -> None:
    path = write_records(tmp_path / "pack", 20, shard_bytes=400)
    os.truncate(path / "shard-00001.bin", 300)
    with Loader(path, 5, on_damage=policy) as loader:
        with pytest.raises(DamagedPack, match=r"shard-00001\.bin is damaged") as told:
            list(loader)
    assert "cut short: 300 bytes" in told.value.why


def test_a_pack_that_is_damaged_throughout_stops_even_when_skipping(tmp_path: Path) -> None:
    path = write_records(tmp_path / "pack", 5)
    damage(path, *range(5))
    with Loader(path, 5, on_damage="skip") as loader:
        with pytest.raises(TopoutError, match="No sample could be read in place"):
            list(loader)
