"""Chunks and batches of the stream, and how many make it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uneven.errors import ConfigError
from uneven.fleet.pure.sections import Section, Stream, batches
from uneven.fleet.pure.size import preprocessors_needed


@settings(max_examples=100)
@given(train=st.integers(1, 60), validate=st.integers(0, 30), chunk=st.integers(1, 20), size=st.integers(1, 70))
def test_every_sample_is_in_one_chunk_and_in_one_batch(train: int, validate: int, chunk: int, size: int) -> None:
    stream = Stream(train, validate, chunk, seed=1)
    for epoch in (0, 3):
        first = stream.begins(epoch)
        chunks = [stream.describe(first + i) for i in range(stream.per_pass)]
        assert {one.epoch for one in chunks} == {epoch}
        for section, total, validates in zip(stream.sections(epoch), (train, validate), (False, True), strict=True):
            mine = [one for one in chunks if one.validates is validates]
            assert [i for one in mine for i in range(one.start, one.start + one.size)] == list(range(total))
            assert (section.chunks, section.samples) == (len(mine), total)
            cut = batches(section, size, chunk)
            assert [i for one in cut for i in range(one.start, one.stop)] == list(range(total))
            for one in cut:
                assert section.first + (one.stop - 1) // chunk < one.needs <= section.first + section.chunks
                assert one.frees <= one.needs
            assert not cut or cut[-1].frees == section.first + section.chunks


def test_the_order_changes_with_the_pass_and_the_seed_alone() -> None:
    stream = Stream(50, 0, 8, seed=3)
    assert sorted(stream.order(2)) == list(range(50))
    assert stream.order(2).tolist() == Stream(50, 9, 4, seed=3).order(2).tolist()
    assert stream.order(2).tolist() != stream.order(1).tolist()
    assert stream.order(2).tolist() != Stream(50, 0, 8, seed=4).order(2).tolist()
    assert len({stream.draws(number) for number in range(500)}) == 500


def test_a_batch_and_a_stream_of_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch of 0 samples"):
        batches(Section(0, 1, 5), 0, 4)
    for sizes in ((0, 1, 1), (1, -1, 1), (1, 1, 0)):
        with pytest.raises(ConfigError, match="at least one sample"):
            Stream(*sizes, seed=0)


@pytest.mark.parametrize(
    ("need", "each", "wanted"),
    [(1000, 1000, 2), (800, 1000, 1), (834, 1000, 2), (5000, 1000, 6), (math.inf, 1000, 8), (100, 0.0, 1),
     (100, math.nan, 1), (math.inf, math.nan, 8), (1e9, 1.0, 8), (1.0, 1000, 1)],
)  # fmt: skip
def test_preprocessors_follow_the_need(need: float, each: float, wanted: int) -> None:
    assert preprocessors_needed(need, each, most=8) == wanted


def test_no_preprocessors_are_refused() -> None:
    with pytest.raises(ConfigError, match="give at least one"):
        preprocessors_needed(1.0, 1.0, most=0)
