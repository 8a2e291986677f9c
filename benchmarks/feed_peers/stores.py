"""Key-value and array stores with a sample at a number: LMDB, HDF5, ArrayRecord."""

import struct
from pathlib import Path

import numpy as np

from feed_peers.adapter import Adapter, BatchBuffer, Writer, tensors

LABEL = struct.Struct("<q")  # LMDB and ArrayRecord hold one value a sample: the label, then the bytes


def with_label(images):
    for path, label in zip(images.paths, images.labels, strict=True):
        yield LABEL.pack(label) + Path(path).read_bytes()


def rows_with_label(records):
    for row, label in records.rows():
        yield LABEL.pack(label) + row


def write_lmdb(values, destination):
    import lmdb

    with lmdb.open(str(destination), map_size=64 << 30) as environment:
        with environment.begin(write=True) as transaction:
            for number, value in enumerate(values):
                transaction.put(b"%08d" % number, value, append=True)


def open_lmdb(work):
    import lmdb

    environment = lmdb.open(str(work.store), readonly=True, lock=False, readahead=False)
    transaction = environment.begin(buffers=True)
    return lambda numbers: [transaction.get(b"%08d" % number) for number in numbers.tolist()]


def write_array_record(values, destination):
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(destination), "group_size:1")
    for value in values:
        writer.write(value)
    writer.close()


def open_array_record(work):
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    source = ArrayRecordDataSource([str(work.store)])
    return lambda numbers: source.__getitems__(numbers.tolist())


def blobs(open_values):
    def start(work):
        values, buffer = open_values(work), BatchBuffer(work.batch_size)

        def epoch(number):
            for numbers in work.batches(number):
                yield buffer.fill(memoryview(value)[LABEL.size :] for value in values(numbers))

        return epoch

    return start


def record_batches(open_values):
    def start(work):
        values = open_values(work)

        def epoch(number):
            for numbers in work.batches(number):
                rows = values(numbers)
                labels = [LABEL.unpack_from(row)[0] for row in rows]
                yield tensors([memoryview(row)[LABEL.size :] for row in rows], labels)

        return epoch

    return start


def write_hdf5_images(images, destination):
    import h5py

    paths = images.paths
    with h5py.File(destination, "w") as file:
        x = file.create_dataset("x", (len(paths),), dtype=h5py.vlen_dtype(np.uint8))
        file["y"] = np.array(images.labels)
        for number, path in enumerate(paths):
            x[number] = np.fromfile(path, np.uint8)


def write_hdf5_records(records, destination):
    import h5py

    with h5py.File(destination, "w") as file:
        file["x"], file["y"] = records.x, records.y


def hdf5_blobs(work):
    import h5py

    x, buffer = h5py.File(work.store, "r")["x"], BatchBuffer(work.batch_size)

    def epoch(number):
        for numbers in work.batches(number):
            yield buffer.fill(x[item] for item in numbers.tolist())

    return epoch


def hdf5_records(work):
    import h5py

    file = h5py.File(work.store, "r")
    x, y = file["x"], file["y"][:]

    def epoch(number):
        for numbers in work.batches(number):
            rows = [x[item] for item in numbers.tolist()]
            yield tensors([row.tobytes() for row in rows], y[numbers])

    return epoch


WRITERS = (
    Writer(
        name="lmdb", environment="peers", imports=("lmdb",),
        images=lambda images, destination: write_lmdb(with_label(images), destination),
        records=lambda records, destination: write_lmdb(rows_with_label(records), destination),
    ),
    Writer(
        name="array_record", environment="peers", imports=("array_record.python.array_record_module",),
        images=lambda images, destination: write_array_record(with_label(images), destination),
        records=lambda records, destination: write_array_record(rows_with_label(records), destination),
    ),
    Writer(
        name="hdf5", environment="peers", images=write_hdf5_images, records=write_hdf5_records, imports=("h5py",)
    ),
)  # fmt: skip
LMDB = {"environment": "peers", "writer": "lmdb", "imports": ("torch", "lmdb")}
ARRAY_RECORD = {
    "environment": "peers", "writer": "array_record", "note": "verifies checksums",
    "imports": ("torch", "array_record.python.array_record_data_source"),
}  # fmt: skip
HDF5 = {"environment": "peers", "writer": "hdf5", "imports": ("torch", "h5py")}
ADAPTERS = (
    Adapter(name="LMDB", case="blobs", start=blobs(open_lmdb), **LMDB),
    Adapter(name="LMDB", case="records", start=record_batches(open_lmdb), **LMDB),
    Adapter(name="ArrayRecord", case="blobs", start=blobs(open_array_record), **ARRAY_RECORD),
    Adapter(name="ArrayRecord", case="records", start=record_batches(open_array_record), **ARRAY_RECORD),
    Adapter(name="h5py", case="blobs", start=hdf5_blobs, **HDF5),
    Adapter(name="h5py", case="records", start=hdf5_records, **HDF5),
)
