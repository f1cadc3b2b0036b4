"""Partitioners: every edge once, shares met, the worked example of Libra, and what the store says of it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threaded_graphs import some_graph

from uneven import graph
from uneven.errors import ConfigError, DataError, UnknownNameError
from uneven.graph.cutting import METHODS, cut
from uneven.graph.edges import edges_of
from uneven.graph.pure.clone_plan import Holders, roots
from uneven.graph.pure.cut.greedy import libra, placed
from uneven.graph.pure.cut.partitioner import EdgeCut, figures, normal
from uneven.graph.pure.edge_list import EdgeList


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_libra_places_the_worked_example() -> None:
    a, b, c, d, e = range(5)
    edges = EdgeList(ids(a, c, a, a, a), ids(b, d, e, c, d), 5)
    part = placed(edges, (0.5, 0.5), np.arange(5), libra)
    assert part.tolist() == [0, 1, 0, 1, 1]
    found = EdgeCut.of(part, 2)
    held = Holders.of(edges.ordered(found.order), found.bounds).held
    assert held.T.tolist() == [[True, True], [True, False], [False, True], [False, True], [True, False]]
    shown = figures(held, found.bounds, (0.5, 0.5))
    assert (shown.replication, shown.balance, shown.clone_rows) == (1.2, 1.2, 1)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"metis"}))
@settings(max_examples=25, deadline=None)
@given(
    vertices=st.integers(1, 30),
    ends=st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=60),
    shares=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_every_edge_is_in_one_part(method: str, vertices: int, ends: list[tuple[int, int]], shares: list[int]) -> None:
    index = np.array([(u % vertices, v % vertices) for u, v in ends], np.int64).reshape(-1, 2).T
    edges = edges_of(index, vertices)
    each = normal(shares, len(shares))
    found, again = (cut(edges, method, each, 0, 1.0) for _ in range(2))
    assert np.array_equal(found.order, again.order)
    assert sorted(found.order.tolist()) == list(range(len(edges)))
    assert (found.bounds[0], found.bounds[-1]) == (0, len(edges))
    if found.rank is not None:
        assert sorted(found.rank.tolist()) == list(range(vertices))
    held = Holders.of(edges.ordered(found.order), found.bounds).held
    where = roots(held, each, np.diff(found.bounds).tolist(), 1.0)
    assert all(held[part, vertex] for vertex, part in enumerate(where) if held[:, vertex].any())


def test_metis_has_in_edges_where_their_vertex_is(tmp_path: Path) -> None:
    pytest.importorskip("pymetis")
    index = some_graph(600, 6000, symmetric=False)
    store = graph.partition(index, 600, path=tmp_path / "p", shares=(0.5, 0.3, 0.2), method="metis")
    owner = np.asarray(store.array("roots"))
    for part in range(3):
        mine = slice(store.facts.bounds[part], store.facts.bounds[part + 1])
        assert set(owner[store.array("target")[mine]].tolist()) == {part}
    assert store.figures().balance < 1.1
    parts = [graph.load(tmp_path / "p", rank=rank, size=3) for rank in range(3)]
    up = [one for each in parts for one in each.part.up.copies]
    assert all(one.start == one.stop for one in up)  # sums are whole where they are made


def test_metis_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[graph\]'"):
        cut(edges_of(some_graph(), 60), "metis", (0.5, 0.5), 0, 1.0)


def test_a_sorted_stream_is_shuffled() -> None:
    draw = np.random.default_rng(0)
    chain = np.sort(draw.integers(0, 300, (2, 3000)))
    path = np.stack([np.arange(299), np.arange(1, 300)])
    edges = edges_of(np.concatenate([path, chain], axis=1), 300)
    each = (0.25,) * 4
    shuffled = cut(edges, "libra", each, 0, 0.0).bounds
    assert max(np.diff(shuffled)) <= 1.01 * len(edges) / 4
    along = placed(edges, each, np.arange(299), libra)[:299]
    assert set(along.tolist()) == {0}


@pytest.mark.parametrize("method", ["ne", "libra", "hdrf"])
def test_unequal_shares_are_met(tmp_path: Path, method: str) -> None:
    shares = (0.5, 0.25, 0.15, 0.1)
    store = graph.partition(some_graph(600, 6000), 600, path=tmp_path / "p", shares=shares, method=method, beta=0.0)
    assert store.figures().balance <= 1.03
    store = graph.partition(some_graph(600, 6000), 600, path=tmp_path / "p", shares=shares, method="ne", beta=10.0)
    rooted = np.bincount(store.array("roots"), minlength=4)
    cost = np.array(store.figures().edges) + 10.0 * rooted
    assert max(cost / cost.sum() / shares) <= 1.03


def test_vertices_without_edges_are_rooted_once() -> None:
    held = np.zeros((3, 90), np.bool_)
    held[0, :10] = True
    where = roots(held, (0.5, 0.3, 0.2), (20, 0, 0), 1.0)
    assert where[:10].tolist() == [0] * 10
    assert np.bincount(where).tolist() == pytest.approx([35, 33, 22], abs=1)


@pytest.mark.parametrize(
    ("index", "vertices", "told"),
    [
        (torch.tensor([[0, 5], [1, 2]]), 4, "names vertex 5 of 4: give ids from 0 to 3"),
        (torch.tensor([[0, -1], [1, 2]]), 4, "names vertex -1"),
        (torch.tensor([0, 1]), 4, r"shape \(2,\): give \[2, edges\]"),
        (torch.tensor([[0.0], [1.0]]), 4, "dtype torch.float32: give integer ids"),
        (torch.zeros(1, dtype=torch.int64).expand(2, 2**31), 4, "32-bit counts"),
        (torch.zeros(2, 0, dtype=torch.int64), 2**31, "1 to 2,147,483,647"),
    ],
)
def test_bad_graphs_are_refused(index: torch.Tensor, vertices: int, told: str) -> None:
    with pytest.raises(DataError, match=told):
        edges_of(index, vertices)


def test_bad_wishes_are_refused(tmp_path: Path) -> None:
    edges = some_graph()
    with pytest.raises(UnknownNameError, match="librra"):
        graph.partition(edges, 60, path=tmp_path / "p", parts=2, method="librra")
    with pytest.raises(ConfigError, match="parts = 0: give 1 or more"):
        graph.partition(edges, 60, path=tmp_path / "p", parts=0)
    with pytest.raises(ConfigError, match="are 2 for 3 parts"):
        graph.partition(edges, 60, path=tmp_path / "p", parts=3, shares=(1, 2))
    with pytest.raises(ConfigError, match="each must be a number above 0"):
        graph.partition(edges, 60, path=tmp_path / "p", shares=(1, 0))
    with pytest.raises(ConfigError, match="cut into at most 64"):
        graph.partition(edges, 60, path=tmp_path / "p", parts=65, method="libra")
    with pytest.raises(ConfigError, match="give 60 rows"):
        graph.partition(edges, 60, path=tmp_path / "p", parts=2, tensors={"x": torch.zeros(59, 2)})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(ConfigError, match=r"is not a folder of graph\.partition: name a new folder"):
        graph.partition(edges, 60, path=tmp_path / "mine", parts=2)
    with pytest.raises(DataError, match="has no partitioned graph: write one"):
        graph.load(tmp_path / "none", rank=0, size=1)
    graph.partition(edges, 60, path=tmp_path / "p", parts=2)
    with pytest.raises(ConfigError, match="3 workers, but 2 parts"):
        graph.load(tmp_path / "p", rank=0, size=3)
    with pytest.raises(DataError, match="has no tensor 'x', only none"):
        graph.load(tmp_path / "p", rank=0, size=2).tensor("x")
    with pytest.raises(DataError, match="got a whole graph, but there are 2 workers"):
        graph.load(edges, rank=0, size=2)
    facts = tmp_path / "p" / "graph.json"
    facts.write_text(facts.read_text().replace('"schema": 1', '"schema": 9'))
    with pytest.raises(DataError, match="schema 9, but this version reads 1"):
        graph.load(tmp_path / "p", rank=0, size=2)
