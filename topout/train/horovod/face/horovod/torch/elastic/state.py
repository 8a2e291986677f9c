"""The state of `elastic`."""

from topout.train.horovod.elastic import TorchState

__all__ = ["TorchState"]
