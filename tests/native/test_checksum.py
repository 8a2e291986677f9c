"""The compiled checksum is CRC-32C, whatever the length, the place in memory and the processor."""

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topout.native.bindings import Library
from topout.native.build import compile_library, usable_variants


@pytest.fixture(scope="module", params=usable_variants())
def variant(request, tmp_path_factory):
    return Library(compile_library(request.param, tmp_path_factory.mktemp("lib")))


def test_the_check_value_of_the_standard(variant):
    assert variant.crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize(
    "length", [0, 1, 7, 8, 9, 255, 256, 257, 319, 320, 447, 512, 767, 768, 769, 784, 12287, 12288, 12289, 100_001]
)
@pytest.mark.parametrize("offset", [0, 1, 5])
def test_any_length_at_any_address(variant, length, offset):
    data = np.random.default_rng(length).integers(0, 256, length + offset, np.uint8)
    assert variant.crc32c(memoryview(data)[offset:], 77) == google_crc32c.extend(77, data[offset:].tobytes())


@given(first=st.binary(max_size=3000), second=st.binary(max_size=3000))
def test_a_checksum_goes_on_where_another_ended(variant, first, second):
    assert variant.crc32c(second, variant.crc32c(first)) == variant.crc32c(first + second)
