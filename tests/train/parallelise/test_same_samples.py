"""One number tells which samples a data set has, by what it keeps for each, and nothing else of it matters."""

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from topout.train.parallelise.same_samples import fingerprint


class Table(Dataset):
    def __init__(self, **held):
        self.held = object()
        vars(self).update(held)

    def __len__(self):
        return 1000


IMAGES = torch.arange(1000.0 * 3 * 8 * 8).view(1000, 3, 8, 8)
ORDER = np.random.RandomState(0).permutation(1000)
KINDS = {
    "tensor": lambda order: Table(data=IMAGES[order]),
    "array": lambda order: Table(data=IMAGES.numpy()[order]),
    "words": lambda order: Table(data=np.array([f"{number}.png" for number in order])),
    "pairs": lambda order: Table(data=[(f"{number}.png", number % 10) for number in order]),
    "parts": lambda order: Table(data=[IMAGES[number] for number in order.tolist()]),
    "inside": lambda order: Table(base=Subset(Table(), order.tolist())),
    "tensors": lambda order: ConcatDataset([TensorDataset(IMAGES[order])]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_another_order_is_another_number(kind) -> None:
    made = KINDS[kind]
    same = fingerprint(made(ORDER), has_begun=False)
    assert same == fingerprint(made(ORDER.copy()), has_begun=False)
    assert same != fingerprint(made(np.arange(1000)), has_begun=False)


def test_what_a_data_set_has_loaded_for_itself_says_nothing_once_training_has_begun() -> None:
    empty, full = Table(cache=[None] * 1000), Table(cache=[1] * 1000)
    assert fingerprint(empty, has_begun=True) == fingerprint(full, has_begun=True)


def test_what_is_no_table_is_passed_over() -> None:
    odd = Table(scalar=torch.tensor(1), none=np.array(2), objects=[object()] * 1000, empty=[], itself=None)
    other = Table(scalar=torch.tensor(2), none=np.array(3), objects=[object()] * 1000, empty=[1], itself=None)
    odd.itself, other.itself = odd, other
    assert fingerprint(odd, has_begun=False) == fingerprint(other, has_begun=False)
