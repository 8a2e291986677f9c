"""Hybrid parallelism: one declarative mesh of replicas, shards, split layers and stages (docs/hybrid.md).

Not for what data parallelism alone can do: `ctx.wrap`.
"""

from topout.train.mesh.hybrid import hybrid
from topout.train.mesh.spec import MeshSpec, read_spec
from topout.train.mesh.trainer import Trainer

__all__ = ["MeshSpec", "Trainer", "hybrid", "read_spec"]
