"""One measurement, in a process of its own: open, one warm-up epoch, timed epochs; prints a line of JSON.

Wall time is what a user sees. CPU time of the whole process tree is what a shared machine cannot spoil: samples per
CPU-second times the cores is the second rate of every row. Imports happen before the clock starts.
"""

import importlib
import json
import os
import random
import resource
import shutil
import sys
import time
from pathlib import Path

import numpy as np

from feed_peers.adapter import Images, Records, Work, all_adapters, all_writers
from feed_peers.pipeline import SIDE, forced_boxes, pil_reference

CORES = 2  # as the rows' names say
NUM_COMPARED = 128


def import_all(names):
    """`module`, or `module:function` to be called as well."""
    for name in names:
        module, _, function = name.partition(":")
        loaded = importlib.import_module(module)
        if function:
            getattr(loaded, function)()


def cpu_seconds():
    """Of this process and all below it, living or waited for."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    for process in descendants(os.getpid())[1:]:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def descendants(process):
    found = [process]
    try:
        for task in os.listdir(f"/proc/{process}/task"):
            for child in Path(f"/proc/{process}/task/{task}/children").read_text().split():
                found += descendants(int(child))
    except OSError:
        pass
    return found


def samples_and_bytes(case, batch, work):
    """What a batch holds; a batch of another shape or type than the case asks for is a fault of the adapter."""
    if isinstance(batch, tuple) and isinstance(batch[0], int):
        return batch
    if case == "jpeg":
        assert tuple(batch.shape[1:]) == (3, SIDE, SIDE), batch.shape
        assert str(batch.dtype) == "torch.float32", batch.dtype
        return len(batch), batch.numel() * 4
    x, y = batch
    assert x.shape[1] == work.records.record_bytes and len(x) == len(y), (x.shape, y.shape)
    return len(x), x.numel()


def measure(adapter, work, spec):
    """Rates of one adapter. `budget_s` cuts the slow ones short, within an epoch if need be."""
    import_all(adapter.imports)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    opened = time.perf_counter()
    epoch = adapter.start(work)
    open_s = time.perf_counter() - opened
    first_batch_s = None
    for batch in epoch(0):
        if first_batch_s is None:
            first_batch_s = time.perf_counter() - opened
            samples_and_bytes(adapter.case, batch, work)
        if spec["epochs"] == 0 or time.perf_counter() - opened > spec["budget_s"]:
            break
    result = {"open_s": open_s, "first_batch_s": first_batch_s}
    if spec["epochs"] == 0:
        return result
    return result | timed_epochs(adapter, work, spec, epoch)


def timed_epochs(adapter, work, spec, epoch):
    samples = total_bytes = epochs = 0
    is_cut = False
    cpu, start = cpu_seconds(), time.perf_counter()
    while not is_cut and (epochs < spec["epochs"] or time.perf_counter() - start < spec["least_s"]):
        epochs += 1
        for batch in epoch(epochs):
            num, num_bytes = samples_and_bytes(adapter.case, batch, work)
            samples += num
            total_bytes += num_bytes
            if time.perf_counter() - start > spec["budget_s"]:
                is_cut = True
                break
    wall_s, cpu_s = time.perf_counter() - start, cpu_seconds() - cpu
    return {"samples": samples, "bytes": total_bytes, "wall_s": wall_s, "cpu_s": cpu_s, "is_cut": is_cut}


def measure_packing(write, source, destination):
    """Source evicted from the page cache, and everything on the disk when the clock stops, for every writer alike."""
    total_bytes = evict(source)
    cpu, start = cpu_seconds(), time.perf_counter()
    write(Images(folder=source), destination)
    flush(destination)
    wall_s, cpu_s = time.perf_counter() - start, cpu_seconds() - cpu
    remove(destination)
    num = len(Images(folder=source).paths)
    return {"samples": num, "bytes": total_bytes, "wall_s": wall_s, "cpu_s": cpu_s, "is_cut": False}


def evict(folder):
    total_bytes = 0
    for path in folder.rglob("*.jpg"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            total_bytes += os.fstat(file.fileno()).st_size
    return total_bytes


def flush(destination):
    for path in [destination, *destination.rglob("*")] if destination.is_dir() else [destination]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def remove(destination):
    for path in destination.parent.glob(f"{destination.name}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def compared_images(work):
    jpegs = [Path(path).read_bytes() for path in work.images.paths[:NUM_COMPARED]]
    shapes = [(375, 500) if int(Path(path).stem) % 4 == 3 else (500, 375) for path in work.images.paths[:NUM_COMPARED]]
    return jpegs, forced_boxes(shapes)


def measure_quality(adapter, work):
    """Difference to PIL's crop and antialiased resize of the same box, in grey levels."""
    jpegs, boxes = compared_images(work)
    got = adapter.forced(jpegs, boxes)
    if isinstance(got, tuple):  # it chose the boxes itself, and says which
        got, boxes = got
    difference = np.abs(np.asarray(got, np.float32) - pil_reference(jpegs, boxes))
    return {"mean_levels": float(difference.mean()), "p999_levels": float(np.quantile(difference, 0.999))}


def run(spec):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    random.seed(0)
    optional = {key: Path(spec[key]) if spec.get(key) else None for key in ("images", "records", "store")}
    work = Work(
        images=Images(folder=optional["images"]) if optional["images"] else None,
        records=Records(folder=optional["records"], count=spec["count"], record_bytes=spec["record_bytes"])
        if optional["records"]
        else None,
        store=optional["store"],
        batch_size=spec["batch_size"],
        num_threads=CORES,
    )
    if spec["task"] in ("write", "packing"):
        writer = all_writers()[spec["name"]]
        import_all(writer.imports)
        if spec["task"] == "packing":
            return measure_packing(writer.images, work.images.folder, work.store)
        remove(work.store)
        (writer.records if work.records else writer.images)(work.records or work.images, work.store)
        return {}
    adapter = next(a for a in all_adapters() if a.case == spec["adapter_case"] and a.name == spec["name"])
    if spec["task"] == "quality":
        return measure_quality(adapter, work)
    return measure(adapter, work, spec)


def main(text):
    """Everything a library prints goes to stderr, so that the last line of stdout is the result."""
    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    result = run(json.loads(text))
    print(json.dumps(result), file=stdout, flush=True)
