"""Checkpoints that a crash at any moment leaves whole: written beside training, verified when read, kept by policy.

    checkpoints = Checkpoints("checkpoints", state={"model": model, "optimizer": optimizer}, place=place, every="10m")
    checkpoints.restore()
    for batch in loader: ...; optimizer.step(); checkpoints.step()
    checkpoints.close()

Not for exchanging weights with others: `to_safetensors` makes the file that everybody reads.
"""

from topout.train.checkpoint.checkpoints import Checkpoints, Restored
from topout.train.checkpoint.single_file import to_safetensors

__all__ = ["Checkpoints", "Restored", "to_safetensors"]
