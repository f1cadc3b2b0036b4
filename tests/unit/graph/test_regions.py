"""Parts are dealt out by speed, and handed over when speeds change: gradients stay those of one process."""

from __future__ import annotations

import math
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from threaded_graphs import features, on_threads, some_graph, weighted
from torch import nn

from uneven import graph
from uneven.errors import ConfigError, TrainingError
from uneven.graph.elastic_parts import ElasticGraph
from uneven.graph.exchange.clones import ExchangeChoice
from uneven.graph.graph_source import GraphSource
from uneven.graph.pure.regions import Dealt, alone_s, done_in, fitted, grouped
from uneven.policy.core.actions import StepPlan
from uneven.run.lines import ThreadLines
from uneven.run.step.callback import CallbackContext, Step

PARTS = 12


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=3, max_size=8), st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_no_other_grouping_is_done_sooner(costs: list[int], speeds: list[int]) -> None:
    found = grouped(costs, speeds)
    assert [p for one in found for p in one] == list(range(len(costs)))
    assert all(found)
    cuts = combinations(range(1, len(costs)), len(speeds) - 1)
    every = [[range(*both) for both in pairwise((0, *inner, len(costs)))] for inner in cuts]
    best = min(done_in(costs, speeds, one) for one in every)
    assert done_in(costs, speeds, found) == pytest.approx(best, rel=1e-9)


def test_what_a_root_and_a_step_cost_is_learnt_from_hand_overs() -> None:
    edges, roots = [40.0, 10.0, 30.0, 20.0, 25.0, 35.0, 15.0, 25.0], [3.0, 9.0, 1.0, 6.0, 2.0, 8.0, 4.0, 7.0]
    speeds, price, fixed = (6.0, 3.0, 1.0), 10.0, 50.0

    def seen(groups: list[range]) -> Dealt:
        had = [[sum(each[p] for p in one) for one in groups] for each in (edges, roots)]
        own_s = [(fixed + e + price * r) / speed for e, r, speed in zip(*had, speeds, strict=True)]
        return Dealt(tuple(had[0]), tuple(had[1]), tuple(own_s))

    first = seen([range(3), range(3, 6), range(6, 8)])
    assert fitted([first], 2.0) == (2.0, 0.0)  # one dealing tells nothing
    several = [first, seen([range(5), range(5, 7), range(7, 8)]), seen([range(6), range(6, 7), range(7, 8)])]
    beta, found = fitted(several, 2.0)
    assert beta == pytest.approx(price, rel=0.3)
    assert found / beta == pytest.approx(fixed / price, rel=0.5)
    costs, three = [10.0] * 12, (6.0, 3.0, 2.0)
    assert [len(one) for one in grouped(costs, three)] == [7, 3, 2]
    assert [len(one) for one in grouped(costs, three, 20.0)] == [8, 3, 1]  # who is slow pays the fixed part longer


def test_what_cannot_be_dealt_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 workers, but 2 parts"):
        grouped([1.0, 1.0], [1.0, 1.0, 1.0])
    with pytest.raises(ConfigError, match="each must be a number above 0"):
        grouped([1.0, 1.0], [1.0, 0.0])
    graph.partition(some_graph(), 60, path=tmp_path / "p", parts=4)
    with pytest.raises(ConfigError, match="give one for each of 2 workers"):
        graph.load(tmp_path / "p", speeds=(1.0, 2.0, 3.0), rank=0, size=2)
    fast, slow = (graph.load(tmp_path / "p", speeds=(3.0, 1.0), rank=rank, size=2) for rank in (0, 1))
    assert fast.edges >= 2 * slow.edges


def test_exchanges_count_in_what_a_worker_needs_at_the_rate_at_which_it_gets_a_processor() -> None:
    assert alone_s(0.2, 0.02, 0.01) == pytest.approx(0.3)  # a tenth of a core: 0.01 s of it take 0.1 s
    assert alone_s(0.2, 0.0, 0.01) == 0.2
    assert alone_s(0.2, math.nan, math.nan) == 0.2
    assert math.isnan(alone_s(math.nan, math.nan, math.nan))


def learnt(g: graph.PartedGraph, handed_over: bool) -> tuple[Any, ...]:
    first, second = graph.SAGEConv(7, 5).double(), graph.SAGEConv(5, 3).double()
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for one in (*first.parameters(), *second.parameters()):
            one.copy_(torch.randn(one.shape, generator=draw, dtype=torch.float64))

    def step() -> torch.Tensor:
        output = second(g.dropout(F.relu(first(g.constant(g.tensor("x")), g)), 0.3), g)
        g.loss(F.cross_entropy, output, g.y, g.tensor("mask")).backward()
        return output

    step()  # what is kept of this one is not used for the next
    before, moved = g.edges, g.rebalance()
    assert moved is handed_over
    again = g.rebalance(0.9)
    nn.ModuleList([first, second]).zero_grad()
    output = step()
    gradients = [one.grad for one in (*first.parameters(), *second.parameters())]
    return g.gather(output), gradients, g.samples, before, g.edges, again


def write(path: Path) -> None:
    tensors = {"x": features(60, 7), "y": torch.arange(60) % 3, "mask": torch.arange(60) % 4 != 0}
    graph.partition(some_graph(), 60, path=path, parts=PARTS, tensors=tensors)


def test_parts_are_handed_over_to_who_is_fast(tmp_path: Path) -> None:
    write(tmp_path / "p")
    ((output, gradients, *_),) = on_threads(tmp_path / "p", 1, partial(learnt, handed_over=False))
    changed: list[int] = []
    found = on_threads(tmp_path / "p", 3, partial(learnt, handed_over=True), own_s=(0.1, 0.4, 0.2), changed=changed)
    assert sorted(changed) == [0, 1, 2]
    torch.testing.assert_close(found[0][0], output, rtol=0, atol=1e-10)
    for mine, whole in zip(weighted([e[1] for e in found], [e[2] for e in found]), gradients, strict=True):
        torch.testing.assert_close(mine, whole, rtol=0, atol=1e-10)
    assert found[0][4] > found[0][3]
    assert found[1][4] < found[1][3]
    assert sum(one[4] for one in found) == sum(one[3] for one in found)
    assert not any(one[5] for one in found)


def test_nothing_is_handed_over_where_all_are_alike_or_nobody_knows(tmp_path: Path) -> None:
    write(tmp_path / "p")
    for own_s in ((0.2, 0.2, 0.2), ()):
        found = on_threads(tmp_path / "p", 3, partial(learnt, handed_over=False), own_s=own_s)
        assert all(one[3] == one[4] for one in found)


def test_where_workers_come_and_go_parts_are_dealt_out_before_each_step(tmp_path: Path) -> None:
    write(tmp_path / "p")
    source, lines = GraphSource(graph.GraphStore(tmp_path / "p")), ThreadLines.of(1)[0]
    run = CallbackContext(rank=0, members=(0,), lines=lines, model=nn.Linear(1, 1), optimizers=(), log=lambda *_: None)
    late = ElasticGraph(source, 0, 1, how=ExchangeChoice.of("cd-0", None, {}))
    with pytest.raises(ConfigError, match="exchange='cd-0' in an elastic run"):
        late.attach(run)
    g = ElasticGraph(source, 1, 3, how=ExchangeChoice.of("exact", None, {}))
    assert not g.rebalance()  # nobody to ask yet
    g.attach(run)
    step = Step(0, 0, 0, 0, (0,), (g.samples,), StepPlan())
    with pytest.raises(TrainingError, match=r"g.rebalance\(\) was not called before this step"):
        g.before_step(step)
    assert g.rebalance()
    assert g.rows == 60
    g.before_step(step)
    run.model.weight.grad = torch.ones(1, 1)
    g.gradients_ready(step, torch.optim.SGD(run.model.parameters(), lr=1.0))
    assert run.model.weight.grad is not None
    g.members_changed((0,))
    g.gradients_ready(step, torch.optim.SGD(run.model.parameters(), lr=1.0))
    assert run.model.weight.grad is None  # the step is left out


def test_parts_without_edges_train_as_one_process(tmp_path: Path) -> None:
    tensors = {"x": features(6, 7), "y": torch.arange(6) % 3, "mask": torch.ones(6, dtype=torch.bool)}
    graph.partition(torch.tensor([[0, 1], [1, 0]]), 6, path=tmp_path / "p", parts=4, tensors=tensors)
    ((output, gradients, *_),) = on_threads(tmp_path / "p", 1, partial(learnt, handed_over=False))
    found = on_threads(tmp_path / "p", 4, partial(learnt, handed_over=False))
    assert sorted(one[4] for one in found) == [0, 0, 0, 2]
    torch.testing.assert_close(found[0][0], output, rtol=0, atol=1e-10)
    for mine, whole in zip(weighted([e[1] for e in found], [e[2] for e in found]), gradients, strict=True):
        torch.testing.assert_close(mine, whole, rtol=0, atol=1e-10)
