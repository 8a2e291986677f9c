"""Broadcasts of parameters, optimizer state and objects."""

from topout.train.horovod.broadcasts import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]
