"""The order of the samples and how it is cut into parts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uneven.errors import ConfigError
from uneven.policy.samples.order import Cursor, EpochPlan, Portion, epoch_order, last_shares


@st.composite
def moving_splits(draw: st.DrawFn) -> tuple[int, int, dict[int, tuple[int, ...]]]:
    """Number of workers, global batch, and a new random split for each of 40 iterations."""
    workers = draw(st.integers(1, 6))
    batch_size = draw(st.integers(workers, 40))
    splits = {}
    for iteration in range(40):
        cuts = sorted(draw(st.lists(st.integers(0, batch_size), min_size=workers - 1, max_size=workers - 1)))
        edges = [0, *cuts, batch_size]
        splits[iteration] = tuple(b - a for a, b in pairwise(edges))
    return workers, batch_size, splits


def plan_of(batch_size: int, splits: dict[int, tuple[int, ...]], **kwargs: object) -> EpochPlan:
    workers = len(next(iter(splits.values())))
    return EpochPlan(batch_size=batch_size, workers=workers, split_for=splits.__getitem__, **kwargs)  # type: ignore[arg-type]


@given(case=moving_splits(), length=st.integers(1, 40))
def test_every_position_once_whatever_the_splits(
    case: tuple[int, int, dict[int, tuple[int, ...]]], length: int
) -> None:
    workers, batch_size, splits = case
    parts = list(plan_of(batch_size, splits).walk(Cursor(), length))
    ranks = [(part, rank) for part in parts for rank in range(workers) if part.batch(rank)]
    counted = [position for part, rank in ranks for position in part.positions(rank)]
    assert counted == list(range(length))
    assert [part.iteration for part in parts] == list(range(len(parts)))
    assert all(part.size == batch_size and part.shares == splits[part.iteration] for part in parts[:-1])
    assert parts[-1].size == (length - 1) % batch_size + 1


@given(case=moving_splits(), size=st.integers(1, 39), lower=st.integers(1, 4))
def test_last_part_keeps_to_the_full_shares_and_to_the_lower_limit(
    case: tuple[int, int, dict[int, tuple[int, ...]]], size: int, lower: int
) -> None:
    _, batch_size, splits = case
    if size >= batch_size:
        return
    full = splits[0]
    last = last_shares(full, size, lower)
    assert sum(last) == size
    assert all(0 <= a <= b for a, b in zip(last, full, strict=True))
    below = [a for a, b in zip(last, full, strict=True) if 0 < a < min(lower, b)]
    fitting = sorted(full, reverse=True)[: size // lower]
    if sum(fitting) >= size:
        assert not below


@pytest.mark.parametrize(
    ("shares", "size", "lower", "last"),
    [
        ((60, 40, 20, 10), 65, 1, (30, 20, 10, 5)),
        ((60, 40, 20, 10), 3, 1, (1, 1, 1, 0)),  # fewer samples than workers: the fastest take them
        ((60, 40, 20, 10), 1, 1, (1, 0, 0, 0)),
        ((60, 40, 20, 10), 5, 2, (3, 2, 0, 0)),  # two each, as far as they go
        ((60, 40, 20, 10), 1, 2, (1, 0, 0, 0)),
        ((2, 2, 2), 5, 2, (2, 2, 1)),  # nobody beyond the full share, so somebody below the lower limit
        ((0, 4, 4), 3, 1, (0, 2, 1)),  # no share, no sample
    ],
)
def test_last_part_by_hand(shares: tuple[int, ...], size: int, lower: int, last: tuple[int, ...]) -> None:
    assert last_shares(shares, size, lower) == last


def test_order_depends_on_seed_and_epoch_alone() -> None:
    orders = {
        (seed, epoch): tuple(epoch_order(length=50, seed=seed, epoch=epoch)) for seed in range(3) for epoch in range(3)
    }
    assert len(set(orders.values())) == 9
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert tuple(epoch_order(length=50, seed=1, epoch=2)) == orders[1, 2]
    assert epoch_order(length=4, seed=1, epoch=2, shuffle=False).tolist() == [0, 1, 2, 3]


def test_order_is_the_same_on_every_machine() -> None:
    # If a new numpy draws differently, checkpoints of the old one would repeat and skip samples.
    assert epoch_order(length=10, seed=7, epoch=3).tolist() == [3, 5, 4, 7, 8, 0, 9, 2, 1, 6]


def test_part_offsets_and_padding() -> None:
    part = Portion(iteration=4, epoch=1, start=100, size=3, shares=(2, 0, 1))
    assert [part.offset(rank) for rank in range(3)] == [0, 2, 2]
    assert [part.positions(rank, padding=4) for rank in range(3)] == [[100, 101], [100, 101, 102, 100], [102]]
    assert [part.batch(rank) for rank in range(3)] == [2, 0, 1]
    assert Cursor(epoch=1).after(part) == Cursor(epoch=1, start=103, iteration=5)
    assert Cursor(epoch=1, start=103, iteration=5).next_epoch() == Cursor(epoch=2, start=0, iteration=5)


def test_walk_asks_for_a_split_once_and_only_when_a_part_is_drawn() -> None:
    asked: list[int] = []

    def split_for(iteration: int) -> tuple[int, ...]:
        asked.append(iteration)
        return (3, 1)

    walk = EpochPlan(batch_size=4, workers=2, split_for=split_for).walk(Cursor(iteration=7), 10)
    assert asked == []
    assert next(walk).iteration == 7
    assert asked == [7]
    assert [part.size for part in walk] == [4, 2]
    assert asked == [7, 8, 9]


@pytest.mark.parametrize("length", [3, 4, 67, 68, 69, 200])
@pytest.mark.parametrize("drop_last", [False, True])
def test_parts_that_are_cut_together_are_those_that_are_cut_one_by_one(length: int, drop_last: bool) -> None:
    changed_at = 30  # decided long ago, but in force from here on only
    plan = EpochPlan(
        batch_size=4, workers=2, split_for=lambda it: (3, 1) if it < changed_at else (1, 3), drop_last=drop_last
    )
    settled = replace(plan, settled=lambda: True)
    for cursor in (Cursor(), Cursor(epoch=2, start=5, iteration=17)):
        assert list(settled.walk(cursor, length)) == list(plan.walk(cursor, length))


def test_drop_last_leaves_the_rest_out() -> None:
    plan = plan_of(4, dict.fromkeys(range(9), (3, 1)), drop_last=True)
    assert [part.size for part in plan.walk(Cursor(), 11)] == [4, 4]
    assert list(plan.walk(Cursor(start=8), 11)) == []


@pytest.mark.parametrize("shares", [(3, 2), (3,), (2, 1, 1), (5, -1)])
def test_a_split_that_does_not_fit_is_refused(shares: tuple[int, ...]) -> None:
    plan = EpochPlan(batch_size=4, workers=2, split_for=lambda _: shares)
    with pytest.raises(ConfigError, match="split of iteration 6") as caught:
        plan.part(Cursor(iteration=6), 10)
    assert str(shares) in str(caught.value)


def test_the_pure_files_import_without_torch() -> None:
    code = "import sys; from uneven.policy.samples import loader_state, order; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
