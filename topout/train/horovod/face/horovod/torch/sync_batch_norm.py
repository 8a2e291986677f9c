"""Batch normalisation over all ranks."""

from topout.train.horovod.sync_batch_norm import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
