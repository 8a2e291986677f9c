"""The sampler of `elastic`."""

from topout.train.horovod.elastic import ElasticSampler

__all__ = ["ElasticSampler"]
