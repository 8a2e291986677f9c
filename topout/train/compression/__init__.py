"""Gradients that are fewer bytes on the wire: bf16, fp16, int8 with error feedback, PowerSGD, and sums host by host.

Right on every backend: whatever needs more than one collective a bucket runs on one thread with a group of its own, so
all ranks issue the same collectives in the same order. What a codec remembers it remembers by parameter, so buckets may
change at any step. Not for a fast link: there, rounding costs more time than the bytes it saves.
"""

from topout.train.compression.install import CODECS, install, make

__all__ = ["CODECS", "install", "make"]
