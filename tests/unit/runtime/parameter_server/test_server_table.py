"""Every element lies on exactly one shard, and the shards are about as large as each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uneven.errors import ConfigError
from uneven.runtime.parameter_server.pure.partition import table_of
from uneven.runtime.parameter_server.pure.wire import DTYPES, piece_lengths

shapes = st.lists(st.lists(st.integers(0, 40), min_size=0, max_size=3).map(tuple), min_size=1, max_size=12).filter(
    lambda found: any(np.prod(shape) for shape in found)
)


@settings(max_examples=60)
@given(shapes=shapes, shards=st.integers(1, 9), dtype=st.sampled_from(["float32", "float64"]))
def test_every_element_lies_on_one_shard(shapes: list[tuple[int, ...]], shards: int, dtype: str) -> None:
    table = table_of(shapes, dtype, shards)
    assert table == table_of(shapes, dtype, shards)
    seen = [np.zeros(size, int) for size in table.sizes]
    for shard in range(shards):
        lengths = piece_lengths(table.elements(shard), DTYPES[table.dtype].itemsize)
        filled = [np.zeros(length, int) for length in lengths]
        for tensor, start, stop, number, offset in table.moves(shard):
            seen[tensor][start:stop] += 1
            filled[number][offset : offset + stop - start] += 1
        assert all((piece == 1).all() for piece in filled)
    assert all((each == 1).all() for each in seen)
    fair = -(-sum(table.sizes) // shards)
    loads = [table.elements(shard) for shard in range(shards)]
    assert max(loads) - min(loads) <= fair  # largest first: never two fair parts apart


def test_a_large_tensor_is_cut_and_pieces_of_messages_are_crossed() -> None:
    table = table_of([(10,), (4_000_000,)], "float32", 2)
    assert [table.elements(shard) for shard in range(2)] == [2_000_005, 2_000_005]
    numbers = [number for _, _, _, number, _ in table.moves(0)]
    assert sorted(set(numbers)) == [0, 1]


def test_the_fingerprint_tells_tables_apart() -> None:
    ones = [table_of([(4, 2)], "float32", 2), table_of([(2, 4)], "float32", 2), table_of([(4, 2)], "float32", 1)]
    assert len({one.fingerprint for one in ones}) == 3


@pytest.mark.parametrize(
    ("shapes", "dtype", "shards", "words"),
    [([(3,)], "int64", 1, "not of int64"), ([(0,)], "float32", 1, "0 elements"), ([(3,)], "float32", 0, "0 shards")],
)
def test_what_cannot_be_divided_is_refused(shapes: list[tuple[int, ...]], dtype: str, shards: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        table_of(shapes, dtype, shards)
