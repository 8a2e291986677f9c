"""What a model holds on a rank, from a run that recorded it; for a mesh where it does not fit.

Activations are what the device's peak leaves beside parameters, gradients and optimizer state, so the library's own
memory counts among them: of one batch, however many add up to a step. Without a device's peak they are not known. Not
from runs that shard or split the model: their ranks hold parts. Nor how large the device is: the next system may have
another.
"""

from topout.schema.measures import Measures


def seen_memory(measures: Measures, notes: list[str], num_peers: float = 1.0) -> dict[str, float]:
    """`num_peers` ranks held one sample together, cut along its sequence."""
    memory = measures.memory
    if not memory.parameter_bytes:
        return {}
    if memory.is_sharded or measures.pipeline is not None or measures.tensor_parallel is not None:
        notes.append("Ranks held parts of the model, so what the whole takes is not known; set job.memory.")
        return {}
    found = {
        "parameter_bytes": float(memory.parameter_bytes),
        "gradient_bytes": float(memory.gradient_bytes or memory.parameter_bytes),
        "optimizer_bytes": float(memory.optimizer_bytes or 0),
    }
    batch = measures.input.batch_size
    if memory.peak_device_bytes and batch:
        found["activation_bytes"] = max(0.0, memory.peak_device_bytes - sum(found.values())) / batch * num_peers
    return found
