"""Packs, slow places to read them from, and waiting, for the tests of staging."""

import http.server
import random
import re
import threading
import time
from pathlib import Path

import numpy as np

from topout.epoch.order import order
from topout.feed.staging.course import EpochCourse
from topout.packs.fields import Field
from topout.packs.packing.writer import PackWriter


def contents(number):
    """Of one sample: between 500 and 3,500 bytes that no other sample has."""
    draw = np.random.default_rng(number)
    return draw.integers(0, 256, int(draw.integers(500, 3500)), dtype=np.uint8).tobytes()


def make_pack(path, num_samples=60, shard_bytes=16_000):
    fields = [Field(name="data", kind="bytes"), Field(name="label", kind="int")]
    with PackWriter(path, fields=fields, shard_bytes=shard_bytes) as writer:
        for number in range(num_samples):
            writer.add(f"sample-{number}", {"data": contents(number), "label": number % 7})
    return path


def course_of(num_samples, *, batch_size=4, **options):
    return EpochCourse(
        name="seed 5",
        order_of=lambda epoch: order(5, epoch, num_samples),
        num_positions=num_samples,
        batch_size=batch_size,
        **options,
    )


def eventually(claim, within_s=20.0):
    """Waits until the claim holds; staging is another thread's or process's work."""
    deadline = time.monotonic() + within_s
    while not claim():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


class PackServer:
    """An HTTP server of a folder, with ranges and with faults.

    `pause_s` is waited before each answer. `cuts` and `flips` say which answers break off midway or have a flipped
    bit: "none", "first" (of each part of each file, so that asking again helps) or "all". `honours_ranges` may be off.
    """

    def __init__(self, folder, *, pause_s=0.0, cuts="none", flips="none", honours_ranges=True):
        self.folder = Path(folder)
        self.pause_s, self.cuts, self.flips = pause_s, cuts, flips
        self._asked = set()
        self.honours_ranges = honours_ranges
        self.num_answers, self.num_bytes = 0, 0
        self._lock = threading.Lock()
        self._draw = random.Random(3)
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                server.answer(self)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request):
        time.sleep(self.pause_s)
        path = self.folder / request.path.strip("/")
        if not path.is_file():
            request.send_error(404)
            return
        data = path.read_bytes()
        size_bytes = len(data)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if asked and self.honours_ranges:
            start, last = int(asked[1]), min(int(asked[2]), size_bytes - 1)
            data = data[start : last + 1]
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {start}-{last}/{size_bytes}")
        else:
            request.send_response(200)
        with self._lock:
            self.num_answers += 1
            self.num_bytes += len(data)
            question = (request.path, request.headers.get("Range"), self.cuts, self.flips)
            faulty = {"all"} if question in self._asked else {"all", "first"}
            self._asked.add(question)
            is_cut, is_flipped = self.cuts in faulty, self.flips in faulty
            place = self._draw.randrange(max(1, len(data)))
        if is_flipped:
            data = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        request.send_header("Content-Length", str(len(data)))
        request.send_header("Accept-Ranges", "bytes")
        request.end_headers()
        request.wfile.write(data[: len(data) // 2] if is_cut else data)
        if is_cut:
            request.close_connection = True
