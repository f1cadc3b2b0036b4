"""Which entries travel, and that nothing of the others is lost: Gaia's specification, 2.10 and 6."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uneven.errors import ConfigError
from uneven.policy.select import (
    Accumulator,
    Index,
    Picked,
    Selection,
    Significant,
    TopK,
    estimated_bytes,
    pack,
    packed_bytes,
)
from uneven.policy.select.pack import HEADER_BYTES, shortest

GAIA = (Index.LONG,)
"""What the released code of Gaia knows beside the whole vector."""


def picked(select: Selection, held: list[float], values: list[float], rate: float = 1.0) -> list[int]:
    found = select.pick(np.array(held, np.float32), np.array(values, np.float32), rate).places
    assert found is not None
    return found.tolist()


def test_the_filter_is_strict_and_looks_at_each_number_by_itself() -> None:
    """Nothing held is nothing sent; a value of 0 sends all that is held; exactly the threshold does not."""
    assert picked(Significant(0.25), [0.0, 1e-30, 0.5, 0.51, -0.51], [0.0, 0.0, 2.0, 2.0, -2.0]) == [1, 3, 4]


def test_a_threshold_below_zero_sends_nothing_and_of_zero_all_that_is_held() -> None:
    assert picked(Significant(-1.0), [1.0, 0.0], [0.0, 1.0]) == []
    assert picked(Significant(0.0), [1e-30, 0.0, -2.0], [5.0, 1.0, 0.0]) == [0, 2]


def test_the_absolute_test_replaces_the_relative_one() -> None:
    assert picked(Significant(0.1, absolute=True), [0.2, 0.1, 0.05], [100.0, 0.0, 0.0]) == [0]


def test_the_threshold_follows_the_learning_rate_where_it_is_to() -> None:
    assert picked(Significant(0.1, by_rate=True), [0.05], [1.0], rate=0.1) == [0]
    assert picked(Significant(0.1), [0.05], [1.0], rate=0.1) == []


def test_what_is_no_number_travels_so_that_it_is_noticed() -> None:
    assert picked(Significant(0.5), [np.nan, np.inf, 0.0, 0.1], [1.0, 1.0, 1.0, np.nan]) == [0, 1, 3]


def test_as_many_of_each_chunk_and_the_largest_of_them() -> None:
    held = [1.0, -5.0, 2.0, 0.0, 0.5, 0.1, -0.7, 0.2, -3.0, 4.0]
    assert picked(TopK(0.5, chunk=4), held, held) == [1, 2, 4, 6, 9]
    assert picked(TopK(0.01, chunk=4), held, held) == [1, 6, 9]


@pytest.mark.parametrize("length", [1, 5, 4095, 4096, 4097, 70_000])
@pytest.mark.parametrize("density", [0.001, 0.1, 1.0])
def test_the_number_of_entries_follows_from_the_density(length: int, density: float) -> None:
    select, held = TopK(density), np.random.default_rng(length).normal(size=length)
    found = select.pick(held, held)
    assert found.places is not None
    assert len(found.places) == select.rows(length).count >= density * length
    assert (np.diff(found.places) > 0).all()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: TopK(0.0), "above 0"),
        (lambda: TopK(1.1), "at most 1"),
        (lambda: TopK(0.1, chunk=5000), "use 1 to 4096"),
        (lambda: TopK(0.1, bits=3), "32, 16 or 2"),
        (lambda: Significant(0.1, bits=2), "32 or 16"),
    ],
)
def test_a_selection_that_makes_no_sense_is_refused(make: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()  # type: ignore[operator]


SELECTIONS = (
    Significant(0.0), Significant(0.3), Significant(0.3, bits=16), TopK(0.1, chunk=16), TopK(0.1, chunk=16, bits=16),
    TopK(0.3, chunk=8, bits=2),
)  # fmt: skip


@given(seed=st.integers(0, 2**31), select=st.sampled_from(SELECTIONS), length=st.integers(1, 200))
def test_what_was_sent_and_what_is_held_are_what_was_moved(seed: int, select: Selection, length: int) -> None:
    """At every step of a random training, on two workers that hear each other: sent + held = own movements, and nobody
    sends on what it has heard."""
    random = np.random.default_rng(seed)
    start = random.normal(size=length)
    values = [start.copy(), start.copy()]
    keepers = [Accumulator(np.zeros(length)), Accumulator(np.zeros(length))]
    moved, sent = np.zeros((2, length)), np.zeros((2, length))
    for _ in range(8):
        messages: list[Picked] = []
        for worker, keeper in enumerate(keepers):
            move = random.normal(size=length) * random.integers(0, 2, size=length)
            values[worker] += move
            moved[worker] += move
            keeper.add(move)
            messages.append(keeper.take(select, values[worker]))
            sent[worker] += messages[-1].dense()
        for worker, message in enumerate(reversed(messages)):
            message.add_to(values[worker])
        for worker, keeper in enumerate(keepers):
            np.testing.assert_allclose(sent[worker] + keeper.held, moved[worker], rtol=0, atol=1e-12)
    np.testing.assert_allclose(values[0] - keepers[0].held, values[1] - keepers[1].held, rtol=0, atol=1e-12)
    flushed = [keeper.take(Significant(0.0), value) for keeper, value in zip(keepers, values, strict=True)]
    for worker, message in enumerate(reversed(flushed)):
        message.add_to(values[worker])
    np.testing.assert_allclose(values[0], values[1], rtol=0, atol=1e-12)


def test_each_residue_is_bounded_by_the_threshold() -> None:
    random, values = np.random.default_rng(1), np.random.default_rng(2).normal(size=5000)
    keeper = Accumulator(random.normal(size=5000))
    keeper.take(Significant(0.1), values)
    assert (np.abs(keeper.held) <= 0.1 * np.abs(values)).all()


def test_gaias_packets_turn_dense_at_exactly_a_third() -> None:
    """12 bytes an entry against 4 of each, as in the released code; below a third they stay sparse."""
    whole = np.ones(300, np.float32)
    for count, dense in ((99, False), (100, True), (101, True)):
        some = Picked(300, np.arange(count), whole[:count])
        assert packed_bytes(some, GAIA) == HEADER_BYTES + 12 * count
        assert (shortest(some, whole, GAIA).places is None) == dense


def test_where_all_travel_nothing_is_held() -> None:
    keeper = Accumulator(np.ones(1000, np.float32))
    message = keeper.take(Significant(0.5), np.full(1000, 1.9, np.float32))
    assert message.places is None
    assert not keeper.held.any()
    assert (message.values == 1).all()  # a copy: it is on its way while more is accumulated


def test_bytes_an_entry() -> None:
    """12, 8, 4 and 1.75, and 2 more bytes for each of a float32's other half; above a twelfth, a bit for each."""
    places = np.arange(0, 4_096_000, 100)
    values = np.ones(len(places), np.float32)
    whole = Picked(4_096_000, places, values)
    for form, each in ((Index.LONG, 12), (Index.PLAIN, 8), (Index.GAPS, 6)):
        assert packed_bytes(whole, (form,)) == HEADER_BYTES + each * len(places)
    assert packed_bytes(Picked(4_096_000, places, values, bits=16)) == HEADER_BYTES + 4 * len(places)
    held = np.random.default_rng(0).normal(size=4_096_000).astype(np.float32)
    tenth = TopK(0.05, bits=2).pick(held, held)
    assert packed_bytes(tenth) == HEADER_BYTES + 1.75 * len(tenth.values) + 8 * 1000
    more = TopK(0.1, bits=2).pick(held, held)
    assert packed_bytes(more) == HEADER_BYTES + 4_096_000 / 8 + 0.25 * len(more.values) + 8 * 1000


@pytest.mark.parametrize("part", [0.001, 0.05, 0.3, 0.9])
@pytest.mark.parametrize(
    "select", [Significant(0.1), Significant(0.1, bits=16), TopK(0.1, bits=2), TopK(0.02, bits=2), TopK(0.02, bits=16)]
)
def test_the_estimate_is_near_what_a_message_takes(select: Selection, part: float) -> None:
    size, random = 400_000, np.random.default_rng(3)
    if isinstance(select, TopK):
        message = select.pick(random.normal(size=size).astype(np.float32), np.zeros(0))
    else:
        places = np.flatnonzero(random.random(size) < part)
        message = shortest(
            Picked(size, places, np.ones(len(places), np.float32), select.bits), np.ones(size, np.float32)
        )
    assert len(pack(message, 0)) == packed_bytes(message)
    assert estimated_bytes(select, size, part) == pytest.approx(packed_bytes(message), rel=0.05)
