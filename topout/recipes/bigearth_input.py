"""Batches of patches: from packs or from folders, and what is done to them on the device.

Bands arrive as the 16-bit numbers they are stored as, at their own sizes less than a quarter of the network's input;
resizing, normalising, turning and mixing are the device's. Not for one-class images, whose transforms `topout.Loader`
has built in.
"""

from functools import cache

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import topout
from topout.recipes import bigearth_data as patches


class PatchFolder(Dataset):
    """Some patches of a folder, band by band as they lie there."""

    def __init__(self, folder, names):
        self.folder, self.names = folder, names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return patches.read_patch(self.folder / self.names[index])


def make_input(options, ctx):
    """Batches to train on, equally many on every rank, and those of val and test, each patch once."""
    if (options.data / "train" / "pack.json").exists():
        device = ctx.device if ctx.device.type == "cuda" else None
        shared = {"device": device, "rank": ctx.rank, "world_size": ctx.world_size}
        return (
            topout.Loader(options.data / "train", options.batch_size, seed=options.seed, **shared),
            *(
                topout.Loader(options.data / split, options.batch_size, shuffle=False, last="exact", **shared)
                for split in ("val", "test")
            ),
        )
    names = patches.split_names(options.data, options.lists)
    sets = {split: PatchFolder(options.data, names[split]) for split in names}
    shared = {"num_workers": options.workers, "pin_memory": ctx.device.type == "cuda"}
    kept = options.workers > 0
    return (
        DataLoader(
            sets["train"], options.batch_size, shuffle=True, drop_last=True, persistent_workers=kept, **shared
        ),  # ctx.wrap gives each rank its share of it
        *(DataLoader(sets[split], options.batch_size, **shared) for split in ("val", "test")),
    )


def prepared(batch, device, size):
    """Normalised bands of one size and a row of 0 and 1 a patch, on the device; bands come stacked or each its own."""
    given = [batch["bands"]] if "bands" in batch else [batch[band].unsqueeze(1) for band in patches.BANDS]
    bands = torch.cat([resized(part.to(device, non_blocking=True).float(), size) for part in given], dim=1)
    mean, std, places = constants(device)
    bands = ((bands - mean) / std).contiguous(memory_format=torch.channels_last)
    return bands, (batch["labels"].to(device, non_blocking=True)[:, None] >> places & 1).float()


@cache
def constants(device):
    """Brought there once: a copy from ordinary memory makes the host wait for the device."""
    of_bands = torch.tensor([patches.MEAN, patches.STD], device=device)[..., None, None]
    return of_bands[0], of_bands[1], torch.arange(len(patches.LABELS), device=device)


def resized(bands, size):
    if bands.shape[-1] == size:
        return bands
    return functional.interpolate(bands, (size, size), mode="bilinear", antialias=bands.shape[-1] > size)


def turned(bands, labels):
    """Each patch flipped, turned by quarters, or both: there is no up on a map, so all eight are as good."""
    for change in (lambda x: x.flip(-1), lambda x: x.flip(-2), lambda x: x.transpose(-1, -2)):
        is_changed = torch.rand(len(bands), 1, 1, 1, device=bands.device) < 0.5
        bands = torch.where(is_changed, change(bands), bands)
    return bands.contiguous(memory_format=torch.channels_last), labels


def mixed_up(bands, labels, alpha):
    """Each patch blended with its neighbour in the batch, labels in the same shares (https://arxiv.org/abs/1710.09412)."""
    if not alpha:
        return bands, labels
    share = torch.distributions.Beta(alpha, alpha).sample().item()
    return torch.lerp(bands.roll(1, 0), bands, share), torch.lerp(labels.roll(1, 0), labels, share)
