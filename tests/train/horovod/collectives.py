"""Every collective of the face once, on 2 or more ranks; prints what came out as one line of JSON."""

import json
import os

import horovod
import horovod.torch as hvd
import numpy as np
import torch
from horovod.common.exceptions import HorovodInternalError

# all of them, as without the list
hvd.init(comm=list(range(int(os.environ["WORLD_SIZE"]))))
rank, size = hvd.rank(), hvd.size()
found = {"version": horovod.__version__, "place": [rank, size, hvd.local_rank(), hvd.local_size(), hvd.cross_size()]}


def problem(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


mine = torch.tensor([1.0, 2.0]) * (rank + 1)
found["average"] = hvd.allreduce(mine).tolist()
found["not changed"] = mine.tolist()
found["sum, old style"] = hvd.allreduce(mine, average=False).tolist()
found["max"] = hvd.allreduce(mine, op=hvd.Max).tolist()
found["product"] = hvd.allreduce(mine, op=hvd.Product).tolist()
found["scaled"] = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=10.0, postscale_factor=0.5).tolist()
found["fp16"] = hvd.allreduce(mine, compression=hvd.Compression.fp16).dtype == torch.float32
found["int average"] = hvd.allreduce(torch.tensor([5 * (rank + 1)])).tolist()
found["grouped"] = [t.tolist() for t in hvd.grouped_allreduce([mine, torch.tensor([rank])], op=hvd.Sum)]
in_place = mine.clone()
hvd.allreduce_(in_place, op=hvd.Sum)
found["in place"] = in_place.tolist()
handle = hvd.allreduce_async(mine, name="a", op=hvd.Sum)
found["async"] = hvd.synchronize(handle).tolist()
found["polled"] = hvd.poll(handle)
found["gathered"] = hvd.allgather(torch.full((rank + 1, 2), float(rank))).tolist()
found["broadcast"] = hvd.broadcast(torch.tensor([rank]), root_rank=1).tolist()
received, splits = hvd.alltoall(torch.arange(size + 1) + 10 * rank, splits=[2] + [1] * (size - 1))
found["alltoall"] = [received.tolist(), splits.tolist()]
found["even alltoall"] = hvd.alltoall(torch.arange(size) + 10 * rank).tolist()
found["reducescatter"] = hvd.reducescatter(torch.arange(size + 1.0), op=hvd.Sum).tolist()
try:
    hvd.allgather_object(object() if rank == 1 else 0)
except Exception as error:
    found["refused"] = str(error).splitlines()[0]
found["refused array"] = problem(hvd.broadcast_object, [np.array([{}], dtype=object)], 1)
given = {
    "lr": 0.1 * np.sqrt(size),
    np.int64(rank): (np.float32(1.5), [np.array([[1, 2], [3, rank]], dtype=np.int16).T]),
    "others": [np.array(["a", "bc"]), np.zeros((0, 3)), np.array(True), np.arange(3, dtype=">f8"), {np.uint8(7)}],
}
given["twice"] = given["others"][0]
for name, came in {"from 1": hvd.broadcast_object(given, 1), "gathered": hvd.allgather_object(given)[1]}.items():
    came["others"][0][0] = "z"
    found[f"numpy {name}"] = [f"{came!r}", came["twice"] is came["others"][0]]
found["objects"] = [hvd.broadcast_object({"of": rank}, root_rank=1), hvd.allgather_object("x" * rank)]
hvd.barrier()

short = torch.tensor([300, rank], dtype=torch.int16)
found["short"] = [
    [str(came.dtype), came.tolist()]
    for came in (
        hvd.allreduce(short, op=hvd.Sum),
        hvd.allgather(short[: rank + 1]),
        hvd.broadcast(short, root_rank=1),
        hvd.broadcast_(short.clone(), root_rank=1),
        hvd.alltoall(torch.full((2,), 300, dtype=torch.int16)),
        hvd.reducescatter(torch.full((2,), 300, dtype=torch.int16), op=hvd.Sum),
    )
]

leaf = torch.ones(2, requires_grad=True)
(hvd.allreduce(leaf, op=hvd.Sum) * (rank + 1)).sum().backward()
found["through allreduce"] = leaf.grad.tolist()
leaf = torch.ones(rank + 1, requires_grad=True)
(hvd.allgather(leaf) * (rank + 1)).sum().backward()
found["through allgather"] = leaf.grad.tolist()
leaf = torch.ones(1, requires_grad=True)
(hvd.broadcast(leaf, root_rank=0) * (rank + 1)).sum().backward()
found["through broadcast"] = leaf.grad.tolist()

odd = hvd.add_process_set([1])
found["set"] = [odd.included(), odd.size()]
if odd.included():
    found["in set"] = hvd.allreduce(mine, op=hvd.Sum, process_set=odd).tolist()
found["removed"] = hvd.remove_process_set(odd)

norm = hvd.SyncBatchNorm(1)
whole = torch.arange(4.0 * size).view(-1, 1)
part = whole[rank * 4 : rank * 4 + 4].clone().requires_grad_()
out = norm(part)
(out * part.detach().square()).sum().backward()
found["batch norm"] = [out.tolist(), part.grad.tolist(), norm.running_mean.tolist(), norm.running_var.tolist()]

half = hvd.SyncBatchNorm(1)
# sums of these are beyond float16
out = half((part.detach() + 100).half().repeat(400, 1))
found["half"] = [str(out.dtype), bool(out.isfinite().all()), half.running_mean.item()]

found["other shapes"] = problem(hvd.allreduce, torch.ones(rank + 1))
found["other types"] = problem(hvd.allreduce, torch.ones(1, dtype=torch.float64 if rank else torch.float32))
for name, call in {
    "broadcast": lambda: hvd.broadcast(mine, root_rank=rank),
    "broadcast_": lambda: hvd.broadcast_(mine, root_rank=rank),
    "broadcast_parameters": lambda: hvd.broadcast_parameters([mine], root_rank=rank),
    "broadcast_object": lambda: hvd.broadcast_object(rank, root_rank=rank),
}.items():
    found[f"other roots, {name}"] = problem(call)
found["no rows"] = problem(hvd.reducescatter, torch.tensor(1.0))
found["adasum"] = problem(hvd.allreduce, mine, op=hvd.Adasum)
found["both"] = problem(hvd.allreduce, mine, average=True, op=hvd.Sum)
found["models"] = problem(hvd.broadcast_parameters, {"a": torch.ones(rank + 1)}, 0)
layers = {"a": torch.ones(2), "b": torch.ones(2, 3) if rank == 0 else torch.ones(3, 2)}
found["models, same count"] = problem(hvd.broadcast_parameters, layers, 0)
more = [("a", torch.ones(2)), ("b", torch.ones(1))][: 2 - rank]
found["a layer less"] = problem(hvd.broadcast_parameters, more, 0)
found["dtypes"] = problem(hvd.broadcast_parameters, [torch.ones(2, dtype=torch.float16 if rank else None)], 0)
parameters = [("a", torch.full((2,), float(rank))), ("b", torch.tensor(rank))]
hvd.broadcast_parameters(iter(parameters), 1)
found["parameters"] = [value.tolist() for _, value in parameters]
found["error class"] = HorovodInternalError is hvd.HorovodInternalError
hvd.shutdown()
found["after shutdown"] = problem(hvd.rank)
found["some ranks"] = problem(hvd.init, comm=[0])
found["another order"] = problem(hvd.init, comm=[1, 0])
print(json.dumps(found))
