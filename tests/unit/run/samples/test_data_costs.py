"""Who takes which samples of a batch where they cost unequally."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from crew import Numbers, NumberStream, crew
from hypothesis import given
from hypothesis import strategies as st

from uneven.errors import DataError
from uneven.policy.samples.order import epoch_order
from uneven.policy.samples.sample_costs import SampleCosts

COSTS = np.random.default_rng(1).lognormal(4.0, 1.0, 400)


@given(
    count=st.integers(1, 90), shares=st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any),
    padded=st.booleans(), lower=st.integers(1, 3), seed=st.integers(0, 99),
)  # fmt: skip
def test_a_batch_is_divided_into_its_samples(
    count: int, shares: list[int], padded: bool, lower: int, seed: int
) -> None:
    indices = np.random.default_rng(seed).permutation(400)[:count]
    packed = SampleCosts(COSTS, 400, padded=padded).divide(indices, shares, lower)
    assert sorted(packed.places) == [*range(count)]
    assert sum(packed.counts) == count
    for share, samples in zip(shares, packed.counts, strict=True):
        assert samples == 0 if share == 0 else samples >= min(lower, count // (lower * len(shares)))


def cost_of(group: list[int], costs: Any, padded: bool) -> float:
    return float(costs[group].max() * len(group) if padded else costs[group].sum())


@pytest.mark.parametrize("padded", [False, True])
def test_costs_are_as_the_shares_and_less_than_by_counts(padded: bool) -> None:
    shares, longest, by_counts, total = (60, 40, 20, 8), [], [], []
    for start in range(0, 384, 128):
        indices = np.arange(start, start + 128)
        packed = SampleCosts(COSTS, 400, padded=padded).divide(indices, shares, 1)
        edges = np.cumsum([0, *packed.counts])
        groups = [packed.places[a:b] for a, b in pairwise(edges)]
        costs = COSTS[indices]
        longest.append(max(cost_of(group, costs, padded) / share for group, share in zip(groups, shares, strict=True)))
        plain = np.split(np.arange(128), np.cumsum(shares)[:-1])
        by_counts.append(max(cost_of([*one], costs, padded) / share for one, share in zip(plain, shares, strict=True)))
        total.append(sum(costs) / 128)
        assert packed.works == tuple(round(cost_of(one, costs, padded) / COSTS.mean()) for one in groups)
    assert sum(longest) < (2.2 if padded else 1.1) * sum(total)
    assert sum(by_counts) > (2.0 if padded else 1.3) * sum(longest)


@pytest.mark.parametrize("padded", [False, True])
def test_a_loader_hands_out_each_sample_once_to_whom_it_fits(padded: bool) -> None:
    ranks = crew(Numbers(400), batch_size=100, split_for=lambda _: (60, 30, 10), cost=COSTS, padded=padded)
    order = epoch_order(length=400, seed=5, epoch=0)
    for number, (part, batches) in enumerate(ranks.iterations()):
        seen = [int(index) for batch in batches for index in batch]
        assert sorted(seen) == sorted(order[100 * number : 100 * number + 100].tolist())  # the batch is the order's
        assert part.works is not None
        of_all = [work / sum(part.works) for work in part.works]
        assert of_all == pytest.approx([0.6, 0.3, 0.1], abs=0.12 if padded else 0.05)
        assert [part.batch(rank) for rank in range(3)] == [len(batch) for batch in batches]
    assert part.work(0) == part.works[0] != part.batch(0)

    def price(index: int) -> float:
        return float(COSTS[index])

    same = crew(Numbers(400), batch_size=100, split_for=lambda _: (60, 30, 10), cost=price, padded=padded)
    assert same.loaders[0].alike == ranks.loaders[0].alike != ""


def test_workers_without_samples_take_part_and_the_rest_goes_on_after_a_resume() -> None:
    ranks = crew(Numbers(26), batch_size=12, split_for=lambda _: (9, 3, 0), cost=np.arange(1.0, 27.0))
    parts = [(part, [len(batch) for batch in batches]) for part, batches in ranks.iterations()]
    assert [sizes[2] for _, sizes in parts] == [1, 1, 1]
    assert [part.shares[2] for part, _ in parts] == [0, 0, 0]
    stopped = crew(Numbers(26), batch_size=12, cost=np.arange(1.0, 27.0))
    used = [index for batch in stopped.epoch(most=1) for index in batch]
    after = crew(Numbers(26), batch_size=12, cost=np.arange(1.0, 27.0), state=stopped.loaders[0].state_dict())
    assert sorted(used + [index for batch in after.epoch() for index in batch]) == [*range(26)]


@pytest.mark.parametrize(
    ("dataset", "keywords", "said"),
    [
        (Numbers(20), {"cost": np.ones(19)}, "give one number for each of the 20 samples"),
        (Numbers(20), {"cost": [1.0] * 19 + [0.0]}, "cost of sample 19 is 0.0"),
        (Numbers(20), {"cost": [np.nan] + [1.0] * 19}, "cost of sample 0 is nan"),
        (Numbers(20), {"padded": True}, "padded=True needs cost="),
        (NumberStream(20), {"cost": np.ones(20)}, "cost with a stream"),
    ],
)
def test_what_is_no_cost_is_refused(dataset: Any, keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        crew(dataset, **keywords)
