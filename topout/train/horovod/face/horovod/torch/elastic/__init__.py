"""State for `elastic.run`, in a job of fixed size."""

from topout.train.horovod.elastic import ElasticSampler, TorchState, run

__all__ = ["ElasticSampler", "TorchState", "run"]
