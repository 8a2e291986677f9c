"""Codecs by name, and how one is put into a DDP model.

    compressor = make("int8", place)
    install(ddp, compressor)                   # before the first backward

Not for FSDP, which has no communication hook of this kind; its own mixed precision does what `bf16` does here.
"""

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from topout.schema.errors import TopoutError
from topout.train.compression.bf16 import Bf16
from topout.train.compression.compressor import Compressor
from topout.train.compression.fp16 import Fp16
from topout.train.compression.hierarchical import Hierarchical
from topout.train.compression.int8 import Int8
from topout.train.compression.powersgd import PowerSgd
from topout.train.place import Place

CODECS: dict[str, type[Compressor]] = {
    "bf16": Bf16,
    "fp16": Fp16,
    "int8": Int8,
    "powersgd": PowerSgd,
    "hierarchical": Hierarchical,
}


def make(name: str, place: Place, model: nn.Module | None = None, **options: Any) -> Compressor:
    """All ranks call it together; options are those of the codec's class.

    Who registers the hook without `install` gives the model here, not wrapped: parameters are remembered by name.
    """
    if name not in CODECS:
        raise TopoutError(
            f"There is no compression called {name!r}.",
            why="Gradients would travel as they are, and the step would not be what was asked for.",
            do=f"one of {', '.join(CODECS)}",
        )
    try:
        compressor = CODECS[name](place, **options)
    except TypeError as error:
        if not options:
            raise
        raise TopoutError(
            f"{name} does not take these options: {error}.",
            why=f"Given were {', '.join(options)}.",
            do="int8 takes chunk=; powersgd rank=, start= and seed=; hierarchical host=; bf16 and fp16 none",
        ) from error
    if model is not None:
        compressor.learn(model)
    return compressor


def install(ddp: DistributedDataParallel, compressor: Compressor) -> None:
    """Registers the hook with the model's reducer. On a new reducer of the same model: again."""
    compressor.learn(ddp.module)
    ddp.register_comm_hook(None, compressor.hook)
