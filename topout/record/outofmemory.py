"""Recognises an allocation that failed, and keeps what it says: that is the verdict's evidence."""

import re

from topout.record.recorder import Recorder

_SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
_REQUESTED = re.compile(r"(?:allocate|allocating)\s+([\d.]+)\s*(bytes|[KMGT]iB)", re.IGNORECASE)
_ON_GPU = re.compile(r"CUDA|HIP out of memory", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def record_out_of_memory(error: BaseException, recorder: Recorder) -> None:
    text = str(error)
    if not isinstance(error, MemoryError) and not any(sign in text.lower() for sign in _SIGNS):
        return
    found = _REQUESTED.search(text)
    requested_bytes = round(float(found[1]) * _UNITS[found[2].lower()]) if found else None
    device = "cuda" if _ON_GPU.search(text) else "cpu"
    recorder.fact(out_of_memory={"text": text[:2000], "requested_bytes": requested_bytes, "device": device})
    # in the first step nobody has looked yet at how large the device is and how much of it was taken
    for look in recorder.at_pulse:
        recorder.guard(look)
    recorder.fact(**getattr(recorder.feeding, "_topout_facts", {}))
