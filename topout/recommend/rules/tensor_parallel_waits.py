"""Tensor-parallel ranks wait for each other inside every layer.

Why it matters. A layer that is cut over ranks ends with a collective whose result is needed at
once. Unlike gradients of data parallelism it can hide behind nothing, and there are several in
every layer, forward and backward.

How it is measured. The time a rank stands in functional collectives of the tensor-parallel group,
inside forward and backward. It is divided into waiting for a late peer and transfer by the peers'
arrivals. The gain is all of it.

What to do. Keep the group on one host, where links are fast (NVLink): the last dimension of the
mesh

    init_device_mesh("cuda", (num_hosts, gpus_per_host), mesh_dim_names=("dp", "tp"))

Use fewer ranks in the group and more along `dp` or `fsdp`; cut only wide layers; turn on sequence
parallelism (`SequenceParallel`), which moves the same bytes but saves the repeated work beside
them. If most of it is waiting, a peer is late: look at that rank first.

Not a problem when the model fits in no other way; then only the share matters when you compare
sizes of the group.

Reference: M. Shoeybi et al., Megatron-LM, 2019.
"""

from topout.schema.finding import Rule
from topout.schema.measures import Measures, TensorParallel

RULE = Rule(
    code="TP01",
    title="Tensor-parallel peers wait for each other",
    measure="tensor_parallel.share",
    above=0.10,
    because="{value:.0%} of the time goes to {tensor_parallel.num_collectives_per_step:.0f} collectives a step among "
    "tensor-parallel peers[, {tensor_parallel.wait_share:.0%} to waiting for a late one].",
    advise="Keep the group on one host, use fewer ranks in it[ than {tensor_parallel.num_ranks}], cut only wide "
    "layers; look at a rank that is late in most steps.",
    gain=lambda m: m.tensor_parallel.share if m.tensor_parallel is not None else None,
    fires_on=Measures(
        tensor_parallel=TensorParallel(
            share=0.3, wait_share=0.2, transfer_share=0.1, num_collectives_per_step=48.0, num_ranks=4
        )
    ),
    quiet_on=Measures(tensor_parallel=TensorParallel(share=0.04, num_collectives_per_step=48.0)),
)
