"""How fast samples reach a training loop: topout, its peers, and the machine's limits, in one interleaved run.

    python benchmarks/feed.py install                          # the peers' environments, once, some minutes
    python benchmarks/feed.py prepare                          # images and every peer's stores, about 20 minutes, 15 GB
    python benchmarks/feed.py run --out benchmarks/results     # all cases, three rounds: about an hour
    python benchmarks/feed.py run --smoke                      # does every peer still run? about 10 minutes

Cases: jpeg (to a float32 training batch), records (784 B, batches of 256), blobs (95 KB, raw), packing, open (1.3 M
samples), linear (10 K to 1 M samples). Peers are in feed_peers/, a file each.
For quiet machines only: the load average is reported.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import feed_images
from feed_peers import results as tables
from feed_peers.adapter import all_adapters, all_writers
from feed_peers.environments import install, interpreter
from feed_peers.measure import main as measure_one
from feed_peers.rounds import in_fresh_process, run_rounds

CASES = ("jpeg", "records", "blobs", "packing", "open", "linear")
LINEAR = {"limit: memory-map gather", "topout Pack.gather", "topout Loader", "LMDB", "HF datasets, batched", "litdata"}
NOT_OPENED = {  # their first batch does not depend on how many samples there are, or they are not stores of samples
    "WebDataset", "TensorDataset, 2 workers", "HF datasets, one by one", "limit: gather in C",
}  # fmt: skip
NOT_PACKED = {"concatenated"}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    decoded: int = 2048
    blobs: int = 4000
    packing_copies: int = 12
    records: int = 200_000
    opened: int = 1_300_000
    linear: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    least_s: float = 3.0
    budget_s: float = 12.0


SMOKE = Sizes(
    decoded=256, blobs=512, packing_copies=1, records=20_000, opened=50_000, linear=(1_000, 10_000), least_s=0.3,
    budget_s=2.0,
)  # fmt: skip


class Bench:
    """Data, environments and options of one run."""

    def __init__(self, options):
        self.data, self.environments, self.options = options.data, options.environments, options
        self.sizes = SMOKE if options.smoke else Sizes()
        self.failed_stores = {}

    def images(self, count):
        """A folder of the first `count` images; smaller sets are links into the largest one."""
        whole = self.data / f"images-{self.sizes.blobs}"
        maker = [interpreter(self.environments, "peers"), Path(feed_images.__file__), whole, str(self.sizes.blobs)]
        subprocess.run(maker, check=True)  # there, for Pillow is no part of topout's own environment
        part = self.data / f"images-{count}"
        for path in whole.rglob("*.jpg") if count < self.sizes.blobs else ():
            link = part / path.relative_to(whole)
            if int(path.stem) < count and not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, link)
        return part

    def packing_source(self):
        """Real copies, for links would be read from the page cache the second time."""
        whole, copies = (
            self.images(self.sizes.blobs),
            self.data / f"packing-{self.sizes.packing_copies}x{self.sizes.blobs}",
        )
        for number in range(self.sizes.packing_copies):
            if not (copies / f"copy{number}").exists():
                shutil.copytree(whole, copies / f"copy{number}.part")
                (copies / f"copy{number}.part").rename(copies / f"copy{number}")
                os.sync()
        return copies

    def records(self, count, record_bytes):
        folder = self.data / f"records-{count}x{record_bytes}"
        feed_images.make_records(folder, count, record_bytes)
        return {"records": str(folder), "count": count, "record_bytes": record_bytes}

    def dataset(self, case, size=None):
        """The part of a measurement's task that names its data."""
        sizes = self.sizes
        if case == "records":
            return self.records(sizes.records, 784)
        if case == "open":
            return self.records(sizes.opened, 64)
        if case == "linear":
            return self.records(size, 784)
        if case == "packing":
            return {"images": str(self.packing_source())}
        return {"images": str(self.images(sizes.decoded if case == "jpeg" else sizes.blobs))}

    def store(self, writer, dataset):
        """Where the writer's form of the dataset is, and why it could not be written; written once a run at most."""
        folder = self.data / "stores" / Path(dataset.get("images") or dataset["records"]).name
        store, done = folder / writer, folder / f"{writer}.done"
        if store not in self.failed_stores:
            self.failed_stores[store] = None
            if not done.exists() or writer in self.options.rewrite:
                folder.mkdir(parents=True, exist_ok=True)
                done.unlink(missing_ok=True)
                spec = self.spec("write", writer, dataset) | {"store": str(store)}
                result = in_fresh_process(self.environments, all_writers()[writer].environment, spec)
                self.failed_stores[store] = result.get("failed")
                if "failed" not in result:
                    done.touch()
                print(f"wrote {writer} {folder.name}: {result.get('failed', 'ok')}", file=sys.stderr, flush=True)
        return store, self.failed_stores[store]

    def spec(self, task, name, dataset):
        return {
            "task": task, "name": name, "batch_size": 64 if "images" in dataset else 256,
            "epochs": 2, "least_s": self.sizes.least_s, "budget_s": self.sizes.budget_s, **dataset,
        }  # fmt: skip

    def measure(self, adapter, case, dataset):
        spec = self.spec("measure", adapter.name, dataset) | {"adapter_case": adapter.case}
        spec |= {"jpeg": {"least_s": 0, "budget_s": 600}, "open": {"epochs": 0}}.get(case, {})
        if adapter.writer:
            store, failed = self.store(adapter.writer, dataset)
            if failed:
                return {"failed": f"its data could not be written: {failed}"}
            spec["store"] = str(store)
        return in_fresh_process(self.environments, adapter.environment, spec)

    def pack(self, writer, dataset):
        with tempfile.TemporaryDirectory(dir=self.data) as scratch:
            spec = self.spec("packing", writer.name, dataset) | {"store": str(Path(scratch) / "packed")}
            return in_fresh_process(self.environments, writer.environment, spec)

    def quality(self, adapters):
        """Mean difference to PIL for whoever can be told where to cut."""
        dataset = self.dataset("jpeg") | {"adapter_case": "jpeg"}
        compared = {}
        for adapter in adapters:
            if adapter.forced:
                spec = self.spec("quality", adapter.name, dataset)
                compared[adapter.name] = in_fresh_process(self.environments, adapter.environment, spec)
                print("quality", adapter.name, compared[adapter.name], file=sys.stderr, flush=True)
        return compared


def prepare(bench, cases):
    """All data before the first round: a store written between two measurements would disturb the second."""
    for case in cases:
        for size in bench.sizes.linear if case == "linear" else (None,):
            dataset = bench.dataset(case, size)
            for adapter in adapters_of(bench, case):
                if adapter.writer:
                    bench.store(adapter.writer, dataset)
    os.sync()


def adapters_of(bench, case):
    wanted = "records" if case in ("open", "linear") else case
    for adapter in all_adapters():
        left_out = adapter.name in NOT_OPENED if case == "open" else case == "linear" and adapter.name not in LINEAR
        if adapter.case == wanted and not left_out and bench.options.only.search(adapter.name):
            yield adapter


def rows_of(bench, case):
    """(case, name, size) -> what measures it."""
    rows = {}
    if case == "packing":
        dataset = bench.dataset(case)
        for writer in all_writers().values():
            if writer.images and writer.name not in NOT_PACKED and bench.options.only.search(writer.name):
                rows[case, writer.name, None] = lambda writer=writer: bench.pack(writer, dataset)
        return rows
    for size in bench.sizes.linear if case == "linear" else (None,):
        dataset = bench.dataset(case, size)
        for adapter in adapters_of(bench, case):
            rows[case, adapter.name, size] = lambda a=adapter, d=dataset: bench.measure(a, case, d)
    return rows


TITLES = {
    "jpeg": "JPEG to training batch: decode, RandomResizedCrop(224), flip, normalise, float32, batches of 64",
    "records": "Records of 784 B with a label, shuffled, batches of 256",
    "blobs": "Raw JPEG files of 95 KB, shuffled, copied into a batch buffer",
    "packing": "Packing a folder of JPEGs",
    "open": "Opening, and the first shuffled batch of 256",
    "linear": "Records of 784 B: the rate as the number of samples grows",
}


def section(bench, case, results):
    notes = {a.name: a.note for a in all_adapters() if case.startswith(a.case) or case in ("open", "linear")}
    if case == "packing":
        notes = {writer.name: writer.note for writer in all_writers().values()}
    by_name = {name: runs for (_, name, _), runs in results.items()}
    if case == "linear":
        by_size = {size: {} for size in bench.sizes.linear}
        for (_, name, size), runs in results.items():
            by_size[size][name] = runs
        return tables.linear_table(by_size)
    if case == "open":
        return f"{bench.sizes.opened:,} samples of 64 B.\n\n" + tables.open_table(by_name, notes)
    if case != "jpeg":
        return tables.rate_table(case, by_name, notes)
    adapters = list(adapters_of(bench, "jpeg"))
    quality = bench.quality(adapters)
    apart = {a.name for a in adapters if a.kind == "apart"}
    limit = tables.whole(by_name.get(tables.LIMITS["jpeg"], []))
    equal = {name: runs for name, runs in by_name.items() if name not in apart}
    lighter = {name: runs for name, runs in by_name.items() if name in apart}
    return (
        tables.rate_table(case, equal, notes, quality)
        + "\nNot antialiased, a lighter task:\n\n"
        + tables.rate_table(case, lighter, notes, quality, limit)
    )


def run(bench, options):
    parts, loads = [], []
    log = options.data / f"{date.today()}-runs.jsonl"
    for case in options.cases:
        rows = rows_of(bench, case)
        results = run_rounds(list(rows), options.rounds, options.seed, lambda row, rows=rows: rows[row]())
        with open(log, "a") as out:
            for row, runs in results.items():
                out.writelines(json.dumps({"row": row, **result}) + "\n" for result in runs)
        loads += [result["load"] for runs in results.values() for result in runs if "load" in result]
        parts.append(f"## {TITLES[case]}\n\n{section(bench, case, results)}")
    text = tables.heading(" ".join(sys.argv[1:2] + shown_arguments(options)), loads or [0.0]) + "\n" + "\n".join(parts)
    print(text)
    if options.out:
        name = options.machine or f"{os.cpu_count()}-cores"
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{date.today()}-feed-{name}.md").write_text(text)


def shown_arguments(options):
    """What changes the figures; paths of this machine do not."""
    shown = ["--cases", ",".join(options.cases), "--rounds", str(options.rounds), "--seed", str(options.seed)]
    shown += ["--only", f"'{options.only.pattern}'"] if options.only.pattern else []
    return shown + (["--smoke"] if options.smoke else [])


def options_of(arguments):
    import re

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    scratch = Path(tempfile.gettempdir())
    parser.add_argument("command", choices=["install", "prepare", "run"])
    parser.add_argument("--data", type=Path, default=scratch / "feed-bench-data", help="images and stores")
    parser.add_argument("--environments", type=Path, default=scratch / "feed-bench-venv")
    parser.add_argument("--cases", type=lambda text: text.split(","), default=list(CASES), help=",".join(CASES))
    parser.add_argument("--only", type=re.compile, default=re.compile(""), help="rows whose name matches this")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rewrite", type=lambda text: text.split(","), default=[], help="stale stores")
    parser.add_argument("--smoke", action="store_true", help="small data, one round: figures mean nothing")
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--machine", help="its name in the results' file name")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.smoke else 3)
    return options


def main():
    if sys.argv[1:2] == ["one"]:
        return measure_one(sys.argv[2])
    options = options_of(sys.argv[1:])
    options.data.mkdir(parents=True, exist_ok=True)
    options.environments.mkdir(parents=True, exist_ok=True)
    if options.command == "install":
        sys.exit(1 if install(options.environments) else 0)
    bench = Bench(options)
    prepare(bench, options.cases)
    return run(bench, options) if options.command == "run" else None


if __name__ == "__main__":
    main()
