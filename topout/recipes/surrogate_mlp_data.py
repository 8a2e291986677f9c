"""Rows of numbers for a surrogate: of a known function, or of a table of one's own.

    python surrogate_mlp_data.py make --rows 1000000 rows              # rows/train.npz and test.npz: borehole function
    python surrogate_mlp_data.py table runs.csv rows --output energy   # a CSV with a head; other columns are inputs
    topout pack rows/train.npz packs/train && topout pack rows/test.npz packs/test

Not for tables with text or gaps: all columns are numbers.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import topout
from topout.packs.pack import open_pack
from topout.schema.errors import TopoutError

TEST_SHARE = 0.1
# radius of the borehole, of its influence; transmissivity above; head above; transmissivity below; head below; length;
# conductivity
RANGES = np.array([
    (0.05, 0.15), (100, 50_000), (63_070, 115_600), (990, 1_110), (63.1, 116), (700, 820), (1_120, 1_680),
    (9_855, 12_045),
])  # fmt: skip
ROWS_TO_MEASURE = 100_000


def borehole(inputs):
    """Cubic metres of water a year through a borehole between two aquifers: closed form, standing for a costly code.

    Harper and Gupta (1983); https://www.sfu.ca/~ssurjano/borehole.html
    """
    radius, influence, above, head_above, below, head_below, length, conductivity = inputs.T
    logarithm = np.log(influence / radius)
    resistance = 1 + 2 * length * above / (logarithm * radius**2 * conductivity) + above / below
    return 2 * np.pi * above * (head_above - head_below) / (logarithm * resistance)


def make_rows(num_rows, seed=0):
    """Inputs uniform over their ranges, float32, and what the function makes of them."""
    low, high = RANGES.T
    inputs = np.random.default_rng(seed).uniform(low, high, (num_rows, len(RANGES)))
    return inputs.astype(np.float32), borehole(inputs).astype(np.float32)


def read_table(path, output):
    """A CSV whose first line names the columns: all but one are inputs."""
    with Path(path).open() as lines:
        names = [name.strip() for name in lines.readline().split(",")]
    if output not in names:
        raise TopoutError(f"{path} has no column {output!r}.", why=f"It has {', '.join(names)}.", do="--output NAME")
    try:
        values = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.float64, ndmin=2)
    except ValueError as error:
        raise TopoutError(f"{path} cannot be read.", why=str(error), do="numbers only, equally many a line") from error
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise TopoutError(
            f"{path} has {values[row, column]} in line {row + 2}, column {names[column]}.",
            why="A network learns nothing from it but more of them.",
            do="leave such rows out",
        )
    is_output = np.array([name == output for name in names])
    return values[:, ~is_output].astype(np.float32), values[:, is_output][:, 0].astype(np.float32)


def write_rows(folder, inputs, output, seed=0):
    """`train.npz` and `test.npz`, a tenth at random; not compressed, so that packing reads rows where they lie."""
    order = np.random.default_rng(seed).permutation(len(output))
    num_test = max(1, round(TEST_SHARE * len(output)))
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, rows in (("test", order[:num_test]), ("train", order[num_test:])):
        np.savez(Path(folder, f"{name}.npz"), inputs=inputs[rows], output=output[rows])


class Rows(Dataset):
    """Arrays in memory; a batch is one indexing of each, which is what tiny steps need."""

    def __init__(self, inputs, output):
        self.inputs, self.output = torch.as_tensor(inputs), torch.as_tensor(output)

    def __len__(self):
        return len(self.output)

    def __getitem__(self, number):
        return {"inputs": self.inputs[number], "output": self.output[number]}

    def __getitems__(self, numbers):
        return self[torch.as_tensor(numbers)]


def read_rows(path):
    """What `write_rows` wrote, or a file like it; nothing is unpickled."""
    try:
        with np.load(path, allow_pickle=False) as file:
            inputs, output = file["inputs"], file["output"]
        if inputs.ndim != 2 or output.shape != inputs.shape[:1]:
            raise ValueError(f"inputs have the shape {inputs.shape} and output {output.shape}")
    except (OSError, KeyError, ValueError) as error:
        raise TopoutError(
            f"{path} holds no rows to learn from.",
            why=f"It needs the arrays inputs (rows, columns) and output (rows). {error}",
            do="surrogate_mlp_data.py make or table writes such files",
        ) from error
    return Rows(inputs.astype(np.float32), output.astype(np.float32))


def make_input(options, ctx):
    """Batches to train on and to test on, and some rows of training to take means and spreads of."""
    if options.data and (options.data / "train" / "pack.json").exists():
        shared = {"rank": ctx.rank, "world_size": ctx.world_size}
        shared["device"] = ctx.device if ctx.device.type == "cuda" else None
        with open_pack(options.data / "train") as pack:
            some = pack.gather(range(min(len(pack), ROWS_TO_MEASURE)))
        batches = topout.Loader(options.data / "train", options.batch_size, seed=options.seed, **shared)
        test = topout.Loader(options.data / "test", options.batch_size, shuffle=False, last="exact", **shared)
        return batches, test, Rows(some["inputs"], some["output"])
    if options.data:
        sets = [read_rows(options.data / f"{name}.npz") for name in ("train", "test")]
    else:
        inputs, output = make_rows(options.rows, options.seed)
        cut = len(output) - round(TEST_SHARE * len(output))
        sets = [Rows(inputs[:cut], output[:cut]), Rows(inputs[cut:], output[cut:])]
    # a batch arrives whole from the data set, so there is nothing to put together
    shared = {"batch_size": options.batch_size, "collate_fn": as_it_is, "pin_memory": ctx.device.type == "cuda"}
    return DataLoader(sets[0], shuffle=True, drop_last=True, **shared), DataLoader(sets[1], **shared), sets[0]


def as_it_is(batch):
    return batch


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    make = verbs.add_parser("make", help="rows of the borehole function")
    make.add_argument("folder", type=Path)
    make.add_argument("--rows", type=int, default=1_000_000)
    make.add_argument("--seed", type=int, default=0)
    table = verbs.add_parser("table", help="rows of a CSV file")
    table.add_argument("table", type=Path)
    table.add_argument("folder", type=Path)
    table.add_argument("--output", required=True, help="the column to learn")
    options = parser.parse_args()
    if options.verb == "make":
        write_rows(options.folder, *make_rows(options.rows, options.seed))
    else:
        write_rows(options.folder, *read_table(options.table, options.output))


if __name__ == "__main__":
    main()
