"""DistGNN's exchanges: cd-0 is one process, 0c the graph without edges between parts, cd-r late by 2r epochs."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from threaded_graphs import features, on_threads, some_graph, weighted
from torch import nn

from uneven import graph
from uneven.errors import ConfigError
from uneven.graph.adjacency import part_of
from uneven.graph.exchange.clones import CloneExchange
from uneven.graph.parts_folder import GraphStore
from uneven.graph.pure.clone_plan import Holders
from uneven.graph.pure.edge_list import EdgeList

VERTICES, WIDTH, CLASSES = 60, 7, 3


def write(path: Path, symmetric: bool = True, method: str = "libra") -> GraphStore:
    tensors = {
        "x": features(VERTICES, WIDTH),
        "y": torch.randint(0, CLASSES, (VERTICES,), generator=torch.Generator().manual_seed(5)),
        "train_mask": torch.arange(VERTICES) % 3 != 0,
    }
    edges = some_graph(symmetric=symmetric)
    return graph.partition(edges, VERTICES, path=path, shares=(3, 2, 1), method=method, tensors=tensors)


def net() -> nn.ModuleList:
    torch.manual_seed(3)
    return nn.ModuleList([graph.SAGEConv(WIDTH, 5, aggr="gcn"), graph.SAGEConv(5, CLASSES)]).double()


def learnt(g: graph.PartedGraph, whole: nn.ModuleList) -> tuple[Any, ...]:
    model = deepcopy(whole)
    output = model[1](g.dropout(F.relu(model[0](g.tensor("x"), g)), 0.3), g)
    g.loss(F.cross_entropy, output, g.tensor("y"), g.tensor("train_mask")).backward()
    g.finish()
    return g.gather(output), [one.grad for one in model.parameters()], g.samples


def test_a_root_without_edges_is_a_copy() -> None:
    """As METIS makes them; a vertex's loss is shared among its copies."""
    edges = EdgeList(np.array([0], np.int32), np.array([1], np.int32), 2)
    holders, root = Holders.of(edges, (0, 1, 1)), np.array([1, 0])
    assert part_of(edges, holders, root, 0).copies.tolist() == [1, 2]  # of vertices 1 and 0
    assert part_of(EdgeList(edges.source[:0], edges.target[:0], 2), holders, root, 1).copies.tolist() == [2]


@pytest.mark.parametrize("symmetric", [True, False])
def test_cd_0_is_one_process(tmp_path: Path, symmetric: bool) -> None:
    write(tmp_path / "p", symmetric)
    work = partial(learnt, whole=net())
    ((output, gradients, _),) = on_threads(tmp_path / "p", 1, work)
    for size in (1, 2, 3):
        exact = on_threads(tmp_path / "p", size, work, exchange="cd-0", backward="exact")
        torch.testing.assert_close(exact[0][0], output, rtol=0, atol=1e-10)
        for mine, one in zip(weighted([e[1] for e in exact], [e[2] for e in exact]), gradients, strict=True):
            torch.testing.assert_close(mine, one, rtol=0, atol=1e-10)
    released = on_threads(tmp_path / "p", 3, work, exchange="cd-0")
    torch.testing.assert_close(released[0][0], output, rtol=0, atol=1e-10)
    mine = torch.cat([one.flatten() for one in weighted([e[1] for e in released], [e[2] for e in released])])
    theirs = torch.cat([one.flatten() for one in gradients])
    assert 0.5 < F.cosine_similarity(mine, theirs, dim=0) < 0.9999  # nothing comes back: near, and not the same


def test_0c_is_the_graph_without_edges_between_parts(tmp_path: Path) -> None:
    store = write(tmp_path / "p")
    source, target, order = (np.asarray(store.array(name)) for name in ("source", "target", "order"))
    x = features(VERTICES, WIDTH)[torch.from_numpy(order.astype(np.int64))]

    def sums(g: graph.PartedGraph) -> tuple[Any, ...]:
        return g.rank, g.part.ids, *g.sum_and_degree(g.tensor("x")), g.sent_bytes

    for rank, ids, found, degree, sent in on_threads(tmp_path / "p", 3, sums, exchange="0c"):
        mine = slice(store.facts.bounds[rank], store.facts.bounds[rank + 1])
        wanted = torch.zeros_like(x).index_add_(0, torch.tensor(target[mine]), x[torch.tensor(source[mine])])
        torch.testing.assert_close(found, wanted[torch.from_numpy(ids).long()])
        counts = np.bincount(target[mine], minlength=VERTICES)[ids]
        assert degree.tolist() == counts.tolist()
        assert sent == 2 * 8 * (1 + 3 + 1)  # fingerprint, ends and samples, which the workers have compared


def late(g: graph.PartedGraph, epochs: int) -> tuple[Any, ...]:
    """The first layer's totals of each epoch, and the bytes that its messages took."""
    exchange, before, x, found = g.exchange, g.sent_bytes, g.tensor("x"), []
    assert isinstance(exchange, CloneExchange)
    for _ in range(epochs):
        exchange.begin()
        found.append(g.sum_and_degree(x)[0])
    sent, waiting = g.sent_bytes - before, exchange.under_way
    g.finish()
    return found, g.part, sent, waiting, exchange.under_way


@pytest.mark.parametrize("r", [1, 2, 3])
def test_cd_r_is_cd_0_for_the_bin_of_the_epoch(tmp_path: Path, r: int) -> None:
    store = write(tmp_path / "p")
    epochs = 6 * r
    now = on_threads(tmp_path / "p", 3, partial(late, epochs=1), exchange="cd-0")
    each = on_threads(tmp_path / "p", 3, partial(late, epochs=epochs), exchange=f"cd-r:r={r}")
    for (found, part, _, waiting, after), (whole, *_) in zip(each, now, strict=True):
        split = torch.from_numpy(part.copies > 1)
        for epoch in range(2 * r, epochs):
            due = ~split | (torch.from_numpy(part.ids) % r == epoch % r)
            torch.testing.assert_close(found[epoch][due], whole[0][due])
        if r > 1:
            assert not torch.allclose(found[r - 1], whole[0])
        assert (waiting == 0) is (r == 1)
        assert after == 0
    copies = store.figures().clone_rows  # (RF − 1) · |V|
    sent = sum(one[2] for one in each)
    both_ways = 2 * copies * (WIDTH + 1) * 8  # in doubles; slot 0 is the degree
    assert sum(one[2] for one in now) == both_ways
    if r == 1:
        assert sent == both_ways * epochs
    else:  # 1/r of it in each epoch; in the first r nobody answers
        assert sent == both_ways // 2 * 6 + both_ways // 2 * 5


def test_messages_that_have_passed_keep_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "p")
    post, kept = CloneExchange.post, []

    def counted(self: CloneExchange, handle: Any, tensor: torch.Tensor) -> None:
        post(self, handle, tensor)
        kept.append(len(self._posted))

    monkeypatch.setattr(CloneExchange, "post", counted)
    on_threads(tmp_path / "p", 3, partial(late, epochs=80), exchange="cd-r:r=2")
    assert len(kept) > 3 * 80
    assert max(kept) <= 4 * 3 * 2 * 3, "of one layer, two bins and three workers"


def test_faithful_bins_are_each_worker_s_own(tmp_path: Path) -> None:
    store = write(tmp_path / "p")
    now = on_threads(tmp_path / "p", 3, partial(late, epochs=1), exchange="cd-0")
    each = on_threads(tmp_path / "p", 3, partial(late, epochs=12), exchange="cd-r:r=3", faithful=True)
    missed = 0
    held = store.holders([range(one, one + 1) for one in range(3)]).held
    for (found, part, *_, after), (whole, *_) in zip(each, now, strict=True):
        assert after == 0
        mine = part.ids[: part.roots]
        others = held[:, mine].sum(0)
        for vertex in np.flatnonzero(others == 3):
            rows = [whole[0][vertex].allclose(one[vertex]) for one in found[6:]]
            missed += not any(rows)
        for vertex in np.flatnonzero(others == 2):  # one copy elsewhere: complete in the epochs of its bin
            assert sum(whole[0][vertex].allclose(one[vertex]) for one in found[6:]) >= 2
    assert missed  # copies of one vertex lie in different bins
    copies = store.figures().clone_rows
    binned = 8 * copies  # each copy's bin, told once
    assert sum(one[2] for one in each) == binned + copies * (WIDTH + 1) * 8 * (4 + 3)


def test_only_the_slow_pair_is_late(tmp_path: Path) -> None:
    write(tmp_path / "p")
    (whole, *_), *_ = on_threads(tmp_path / "p", 3, partial(late, epochs=1), exchange="cd-0")
    each = on_threads(
        tmp_path / "p", 3, partial(late, epochs=1), exchange="cd-r:r=2", delays={(0, 1): 1, (2, 0): 1, (1, 2): 1}
    )
    torch.testing.assert_close(each[0][0], whole)
    mixed = on_threads(tmp_path / "p", 3, partial(late, epochs=8), exchange="cd-r:r=2", delays={(0, 1): 1})
    assert [one[3] > 0 for one in mixed] == [True, True, True]
    assert [one[4] for one in mixed] == [0, 0, 0]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"exchange": "cd-5"}, "give exact, cd-0, cd-r:r=5 or 0c"),
        ({"exchange": "cd-r:r=0"}, "cd-r:r=5"),
        ({"exchange": "cd-r", "backward": "exact"}, "no exact gradient"),
        ({"exchange": "0c", "backward": "exact"}, "no exact gradient"),
        ({"exchange": "cd-0", "faithful": True}, "applies to cd-r only"),
        ({"backward": "identity"}, "identity for DistGNN's"),
        ({"exchange": "cd-0", "delays": {(0, 1): 2}}, "with exchange='cd-r:r=5'"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        graph.load(tmp_path, **wrong)
    write(tmp_path / "p")
    with pytest.raises(ConfigError, match="DistGNN's exchanges merge sums"):
        graph.load(tmp_path / "p", rank=0, size=1, exchange="cd-0").max(torch.zeros(VERTICES, 2))
