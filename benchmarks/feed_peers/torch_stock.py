"""What torch and Pillow bring: DataLoader over files, threads, TensorDataset, a memory map behind a DataLoader."""

import numpy as np

from feed_peers.adapter import Adapter, BatchBuffer
from feed_peers.pipeline import PIL_IMPORTS, PilTransform, first_of, pil_reference, threaded


class Files:
    """A map-style dataset of JPEG files, as everyone writes it."""

    def __init__(self, work, transform):
        self.paths, self.labels, self.transform = work.images.paths, work.images.labels, transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, number):
        with open(self.paths[number], "rb") as file:
            data = file.read()
        return (self.transform(data), self.labels[number]) if self.transform else data


def pil_loader(num_workers):
    def start(work):
        from torch.utils.data import DataLoader

        loader = DataLoader(
            Files(work, PilTransform()), work.batch_size, shuffle=True, num_workers=num_workers,
            persistent_workers=num_workers > 0,
        )  # fmt: skip
        return first_of(loader)

    return start


def pil_threads(work):
    transform = PilTransform()

    def one(data, out, _):
        out[:] = transform(data).numpy()

    return threaded(work, one)


def plain_files(work):
    paths, buffer = work.images.paths, BatchBuffer(work.batch_size)

    def read(number):
        with open(paths[number], "rb") as file:
            return file.read()

    def epoch(number):
        for numbers in work.batches(number):
            yield buffer.fill(map(read, numbers.tolist()))

    return epoch


def blob_loader(num_workers):
    def start(work):
        from torch.utils.data import DataLoader

        buffer = BatchBuffer(work.batch_size)
        loader = DataLoader(
            Files(work, None), work.batch_size, shuffle=True, num_workers=num_workers, collate_fn=list,
            persistent_workers=num_workers > 0,
        )  # fmt: skip

        def epoch(_):
            for blobs in loader:
                yield buffer.fill(blobs)

        return epoch

    return start


def tensor_dataset(num_workers):
    def start(work):
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        x = torch.from_numpy(np.array(work.records.x))
        y = torch.from_numpy(work.records.y)
        loader = DataLoader(
            TensorDataset(x, y), work.batch_size, shuffle=True, num_workers=num_workers,
            persistent_workers=num_workers > 0,
        )  # fmt: skip
        return lambda _: iter(loader)

    return start


def memory_map_dataset(work):
    import torch
    from torch.utils.data import DataLoader, Dataset

    x, y = work.records.x, work.records.y

    class Rows(Dataset):
        def __len__(self):
            return len(x)

        def __getitem__(self, number):
            return torch.from_numpy(np.array(x[number])), y[number]

    loader = DataLoader(Rows(), work.batch_size, shuffle=True)
    return lambda _: iter(loader)


WRITERS = ()
ADAPTERS = (
    Adapter(
        name="DataLoader + PIL, 0 workers", case="jpeg", environment="peers", start=pil_loader(0),
        imports=PIL_IMPORTS,
    ),
    Adapter(
        name="DataLoader + PIL, 2 workers", case="jpeg", environment="peers", start=pil_loader(2),
        imports=PIL_IMPORTS,
    ),
    Adapter(
        name="PIL in 2 threads", case="jpeg", environment="peers", start=pil_threads, imports=PIL_IMPORTS,
        forced=pil_reference,
    ),
    Adapter(name="plain files", case="blobs", environment="peers", start=plain_files, imports=()),
    Adapter(name="DataLoader over files, 0 workers", case="blobs", environment="peers", start=blob_loader(0)),
    Adapter(name="DataLoader over files, 2 workers", case="blobs", environment="peers", start=blob_loader(2)),
    Adapter(name="TensorDataset, 0 workers", case="records", environment="peers", start=tensor_dataset(0)),
    Adapter(name="TensorDataset, 2 workers", case="records", environment="peers", start=tensor_dataset(2)),
    Adapter(name="memory map behind DataLoader", case="records", environment="peers", start=memory_map_dataset),
)  # fmt: skip
