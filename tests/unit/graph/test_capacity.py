"""What machines can do becomes shares, and memory limits them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threaded_graphs import features, some_graph

from uneven import graph
from uneven.errors import ConfigError
from uneven.graph.pure.capacity import MOST_BETA, GraphRates, StepWork, capped, shares_of


def test_a_step_counts_its_products_and_its_sums() -> None:
    two = StepWork.of((100, 16, 4))
    assert two.flops == 4 * 100 * 16 + 6 * 16 * 4  # no gradient for features
    assert two.numbers == 2 * 4  # the first layer's sums are made once, the second multiplies first
    assert StepWork.of((100, 16, 4), matrices=2).flops == 2 * two.flops
    with pytest.raises(ConfigError, match="features, hidden, classes"):
        StepWork.of((100,))


def test_shares_make_steps_equally_long() -> None:
    work = StepWork.of((100, 64, 16))
    rates = [GraphRates(1e-9, 1e-11), GraphRates(4e-9, 2e-11), GraphRates(1e-9, 8e-11)]
    shares, beta = shares_of(rates, work, 1000, 50)
    taken = [share * one.step_s(work, 1000, 50) for share, one in zip(shares, rates, strict=True)]
    assert sum(shares) == pytest.approx(1.0)
    assert taken == pytest.approx([taken[0]] * 3)
    assert min(one.beta(work) for one in rates) < beta < max(one.beta(work) for one in rates)
    assert GraphRates(1e-9, 1e-11).beta(StepWork.of((100, 4))) == MOST_BETA  # no sums in a step


@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 2.0)), min_size=1, max_size=6))
def test_no_share_is_above_its_most(pairs: list[tuple[float, float]]) -> None:
    total = sum(share for share, _ in pairs)
    shares, most = [share / total for share, _ in pairs], [one for _, one in pairs]
    if sum(most) < 1.0:
        with pytest.raises(ConfigError, match="of the memory that the graph needs"):
            capped(shares, most)
        return
    found = capped(shares, most)
    assert sum(found) == pytest.approx(1.0)
    assert all(one <= limit + 1e-12 for one, limit in zip(found, most, strict=True))
    free = [one / share for one, share, limit in zip(found, shares, most, strict=True) if one < limit - 1e-9]
    assert free == pytest.approx([min(free, default=0.0)] * len(free))  # those with room keep their proportions


def test_a_description_and_memory_say_who_gets_what(tmp_path: Path) -> None:
    index = some_graph()
    store = graph.partition(index, 60, path=tmp_path / "a", by="demo4")
    assert store.facts.shares == pytest.approx([0.6 / 1.3, 0.4 / 1.3, 0.2 / 1.3, 0.1 / 1.3])
    tensors = {"x": features(60, 9)}
    whole = StepWork.of((9, 64, 16)).whole_bytes(index.shape[1], 60)
    half = {"path": tmp_path / "b", "memory": (0.5 * whole, whole), "tensors": tensors}
    assert graph.partition(index, 60, shares=(9, 1), **half).facts.shares == pytest.approx([0.5, 0.5])
    with pytest.raises(ConfigError, match="of the memory that the graph needs"):
        graph.partition(index, 60, shares=(9, 1), **{**half, "memory": (0.4 * whole, 0.4 * whole)})
    with pytest.raises(ConfigError, match="give one for each"):
        graph.partition(index, 60, shares=(9, 1), **{**half, "memory": (whole,)})
    with pytest.raises(ConfigError, match="give one"):
        graph.partition(index, 60, path=tmp_path / "c", shares=(1, 1), by="demo4")
    assert torch.equal(graph.load(tmp_path / "b", rank=0, size=1).x.sort(0).values, tensors["x"].sort(0).values)
