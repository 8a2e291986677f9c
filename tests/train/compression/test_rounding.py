"""Rounding to 8 bits and back, by literals."""

import torch

from topout.train.compression.int8 import Room, restore, round_off


def rounded(values: list[float], chunk: int = 4) -> tuple[Room, torch.Tensor]:
    held_back = torch.tensor(values).view(1, -1, chunk)
    room = Room(1, held_back.size(1), chunk, torch.device("cpu"))
    round_off(held_back, room.sent, room)
    return room, held_back


def test_values_are_rounded_to_127ths_of_their_chunks_largest():
    room, held_back = rounded([127.0, -1.0, 0.25, 0.75, 0.0, 0.0, 0.0, 0.0])
    assert room.sent.codes.tolist() == [[[127, -1, 0, 1], [0, 0, 0, 0]]]
    assert held_back.tolist() == [[[0.0, 0.0, 0.25, -0.25], [0.0, 0.0, 0.0, 0.0]]]


def test_what_is_restored_and_what_was_held_back_make_the_values():
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0)).mul_(1e-3)
    room, held_back = rounded([*values.tolist()], chunk=100)
    buffer = torch.empty(997)
    restore(room.sent, buffer, room)
    torch.testing.assert_close(buffer + held_back.flatten()[:997], values[:997])
    assert held_back.abs().max() <= values.abs().max() / 127 / 2 * 1.001


def test_the_tiniest_values_neither_divide_by_zero_nor_grow():
    room, held_back = rounded([1e-44, 0.0, 0.0, 0.0])
    buffer = torch.empty(4)
    restore(room.sent, buffer, room)
    assert buffer.abs().max() <= 1e-37
    assert held_back.isfinite().all()


def test_a_chunk_with_a_nan_or_an_infinity_has_no_finite_value_and_leaves_nothing_behind():
    room, held_back = rounded([1.0, float("nan"), 2.0, 3.0, 4.0, float("-inf"), 0.0, 1.0, 127.0, 1.25, 0.0, 0.0])
    buffer = torch.empty(12)
    restore(room.sent, buffer, room)
    assert not buffer[:8].isfinite().any()
    assert buffer[8:].tolist() == [127.0, 1.0, 0.0, 0.0]
    assert held_back.flatten().tolist() == [0.0] * 9 + [0.25, 0.0, 0.0]
