"""Horovod's torch interface on torch.distributed, for scripts that one may not edit (docs/horovod.md).

Served as `horovod.torch` inside a rank of `topout run` where no working Horovod is installed. Not for new scripts:
`topout.init()` needs three lines and has a C++ reducer under it.
"""
