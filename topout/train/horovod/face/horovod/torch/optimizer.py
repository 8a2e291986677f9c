"""The optimizer whose gradients are reduced over ranks."""

from topout.train.horovod.optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
