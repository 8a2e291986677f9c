"""What one rank of the compression tests does; prints one JSON object of facts for the tests to judge."""

import hashlib
import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from topout.train.buckets.regroup import group_sizes, regroup
from topout.train.compression import install, make
from topout.train.place import joined

SMALL_MB = 0.02
REMEMBERING = ("int8", "powersgd")


class Deep(nn.Module):
    """13 matrices and 13 biases in many small buckets, and a convolution in channels_last."""

    def __init__(self, with_bf16=False):
        super().__init__()
        self.convolution = nn.Conv2d(3, 16, 3, padding=1).to(memory_format=torch.channels_last)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(11))
        self.into = nn.Linear(64, 64, dtype=torch.bfloat16) if with_bf16 else nn.Linear(64, 64)
        self.spare = nn.Linear(64, 64)
        self.use_spare = True

    def forward(self, x):
        image = self.convolution(x[:, :48].reshape(-1, 3, 4, 4)).mean((1, 2, 3), keepdim=False)
        x = x + image.unsqueeze(1)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        x = x + self.into(x.to(self.into.weight.dtype)).to(x.dtype)
        return self.spare(x) if self.use_spare else x


def model_and_compressor(codec, place, *, bucket_mb=SMALL_MB, unused=False, with_bf16=False, **options):
    torch.manual_seed(1)
    ddp = DistributedDataParallel(Deep(with_bf16), bucket_cap_mb=bucket_mb, find_unused_parameters=unused)
    compressor = None
    if codec != "plain":
        compressor = make(codec, place, **options)
        install(ddp, compressor)
    return ddp, compressor


def batch(place, step):
    generator = torch.Generator().manual_seed(100 * step + place.rank)
    return torch.randn(8, 64, generator=generator)


def backward(ddp, place, step):
    ddp.zero_grad(set_to_none=True)
    ddp(batch(place, step)).square().mean().backward()


def gradients(ddp):
    return torch.cat([p.grad.float().flatten() for p in ddp.parameters() if p.grad is not None])


def digest(tensor):
    return hashlib.sha256(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def error_of(codec, place, *, changing=False, **options):
    """Relative error of one average, and of the sum of averages of the same gradients over 1, 4 and 21 steps."""
    plain, _ = model_and_compressor("plain", place)
    ddp, compressor = model_and_compressor(codec, place, **options)
    errors = {}
    layouts = set()
    exact_sum = sent_sum = 0
    for step in range(21):
        if changing:
            change_buckets(ddp, compressor, 50_000 if step % 2 else 20_000)
        for model in (plain, ddp):
            backward(model, place, 0)
        exact_sum, sent_sum = exact_sum + gradients(plain), sent_sum + gradients(ddp)
        layouts.add(group_sizes(ddp))
        if step in (0, 3, 20):
            errors[step + 1] = ((sent_sum - exact_sum).norm() / exact_sum.norm()).item()
    return {
        "errors": errors,
        "layouts": len(layouts),
        "ratio": compressor.traffic.bytes_sent / compressor.traffic.bytes_plain,
    }


def trained(codec, place, *, steps=8, change_at=None, resume_at=None, no_sync=False, **options):
    """Digest of parameters after some steps of SGD; the buckets change, or all is saved and loaded, on the way."""
    ddp, compressor = model_and_compressor(codec, place, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        if step == change_at:
            change_buckets(ddp, compressor, 50_000)
        if step == resume_at:
            saved = compressor.state_dict(), ddp.module.state_dict(), optimizer.state_dict()
            ddp, compressor = model_and_compressor(codec, place, **options)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
            for taker, state in zip((compressor, ddp.module, optimizer), saved, strict=True):
                taker.load_state_dict(state)
        optimizer.zero_grad(set_to_none=True)
        if no_sync:
            with ddp.no_sync():
                ddp(batch(place, 1000 + step)).square().mean().backward()
        ddp(batch(place, step)).square().mean().backward()
        optimizer.step()
    return digest(torch.cat([p.detach().float().flatten() for p in ddp.parameters()]))


def in_float64(*args, **options):
    torch.set_default_dtype(torch.float64)
    try:
        return trained(*args, **options)
    finally:
        torch.set_default_dtype(torch.float32)


def change_buckets(ddp, compressor, num_bytes):
    """A new reducer with other buckets in the same model, as tuning makes one between two steps."""
    regroup(ddp, (num_bytes,), (None, compressor.hook))


def broken(codec, place, value, **options):
    """A non-finite gradient on the last rank at step 1: what comes out there, and whether step 2 is finite again."""
    ddp, _ = model_and_compressor(codec, place, **options)
    backward(ddp, place, 0)
    handle = None
    if place.rank == place.world_size - 1:

        def spoil(gradient):
            spoilt = gradient.clone()
            spoilt[3, 5] = value
            return spoilt

        handle = ddp.module.layers[4].weight.register_hook(spoil)
    backward(ddp, place, 1)
    if handle is not None:
        handle.remove()
    is_seen = not ddp.module.layers[4].weight.grad[3, 5].isfinite().item()
    others_fine = ddp.module.layers[0].weight.grad.isfinite().all().item()
    backward(ddp, place, 2)
    return {"is_seen": is_seen, "others_fine": others_fine, "next_fine": gradients(ddp).isfinite().all().item()}


def unused(codec, place, **options):
    """The spare layer is used by nobody, then by rank 0 alone."""
    ddp, _ = model_and_compressor(codec, place, unused=True, **options)
    ddp.module.use_spare = False
    backward(ddp, place, 0)
    nobody = ddp.module.spare.weight.grad is None
    ddp.module.use_spare = place.rank == 0
    backward(ddp, place, 1)
    return {"nobody_none": nobody, "one_digest": digest(ddp.module.spare.weight.grad)}


def facts_of(codec, place, given):
    # a reducer with find_unused_parameters keeps its first buckets; without, the first step after a resume has others
    fixed = {**given, "unused": True}
    facts = {
        "error": error_of(codec, place, **given),
        "digests": {
            "once": trained(codec, place, **fixed),
            "again": trained(codec, place, **fixed),
            "mixed": trained(codec, place, with_bf16=True, **given),
        },
        "nan": broken(codec, place, float("nan"), **given),
    }
    if codec in REMEMBERING:
        facts["error_changing"] = error_of(codec, place, changing=True, **given)
        facts["digests"]["resumed"] = trained(codec, place, resume_at=4, **fixed)
        facts["digests"]["changed"] = trained(codec, place, change_at=4, **given)
        facts["digests"]["float64"] = in_float64(codec, place, **fixed)
        facts["digests"]["float64_resumed"] = in_float64(codec, place, resume_at=4, **fixed)
    if place.world_size == 2:
        facts["70_000"] = broken(codec, place, 70_000.0, **given)["is_seen"]
        facts["200_000"] = broken(codec, place, 200_000.0, **given)["is_seen"]
        facts["inf"] = broken(codec, place, float("inf"), **given)
        facts["unused"] = unused(codec, place, **given)
        facts["digests"]["accumulated"] = trained(codec, place, no_sync=True, **given)
    if place.world_size == 2 and codec in REMEMBERING:
        facts["digests"]["long"] = trained(codec, place, steps=60, **given)
    return facts


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    place = joined(torch.device("cpu"), local_rank=0, local_world_size=1)
    # of three ranks the first two share a host
    options = {"powersgd": {"start": 0}, "hierarchical": {"host": "b" if place.rank == 2 else "a"}}
    print(json.dumps({codec: facts_of(codec, place, options.get(codec, {})) for codec in sys.argv[1:]}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
