"""A graph in one process: reductions against torch's own, and what layers refuse."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from threaded_graphs import features, some_graph

from uneven import Step, graph
from uneven.errors import ConfigError, DataError, TrainingError
from uneven.graph.native import LEAST, Workspaces
from uneven.policy.core.views import SyncView
from uneven.policy.sync import policies


def scattered(x: torch.Tensor, edges: torch.Tensor, how: str) -> torch.Tensor:
    """By torch's own scatter, in the graph's order."""
    index = edges[1][:, None].expand(-1, x.shape[1])
    return torch.zeros_like(x).scatter_reduce(0, index, x[edges[0]], how, include_self=False)


def loaded(edges: torch.Tensor, vertices: int = 60) -> graph.PartedGraph:
    return graph.load(SimpleNamespace(edge_index=edges, num_nodes=vertices))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 7, 16, 33, 70])
@pytest.mark.parametrize("symmetric", [True, False])
def test_reductions_are_those_of_torch(kind: torch.dtype, width: int, symmetric: bool) -> None:
    edges = some_graph(symmetric=symmetric)
    g = loaded(edges)
    x = features(60, width).to(kind).requires_grad_()
    mine = x[g.ids]
    for how, found in (("sum", g.sum(mine)), ("mean", g.mean(mine)), ("amax", g.max(mine)), ("amin", g.min(mine))):
        wanted = scattered(x, edges, how)
        torch.testing.assert_close(g.gather(found), wanted)
        factor = features(60, width, 2).to(kind)
        (back,) = torch.autograd.grad((found * factor[g.ids]).sum(), x, retain_graph=True)
        # of equal values, which two edges of one source give, torch divides among them: the same sum
        (theirs,) = torch.autograd.grad((wanted * factor).sum(), x)
        torch.testing.assert_close(back, theirs)


def test_no_edges_and_one_vertex() -> None:
    g = loaded(torch.zeros(2, 0, dtype=torch.int64), 1)
    x = torch.ones(1, 3, requires_grad=True)
    for found in (g.sum(x), g.mean(x), g.max(x), g.min(x)):
        assert found.tolist() == [[0.0] * 3]
        (back,) = torch.autograd.grad(found.sum(), x)
        assert back.tolist() == [[0.0] * 3]


def test_layers_refuse_what_does_not_fit() -> None:
    g = loaded(some_graph())
    conv = graph.SAGEConv(4, 2)
    with pytest.raises(ConfigError, match="has 60 rows; give x of this part"):
        conv(torch.zeros(59, 4), g)
    with pytest.raises(ConfigError, match=r"x\.float\(\)"):
        g.sum(torch.zeros(60, 4, dtype=torch.int64))
    with pytest.raises(ConfigError, match="aggr='median'"):
        graph.SAGEConv(4, 2, aggr="median")
    with pytest.raises(ConfigError, match="x requires a gradient"):
        g.constant(torch.zeros(60, 4, requires_grad=True))
    with pytest.raises(ConfigError, match="this part has 60 rows"):
        g.constant(torch.zeros(59, 4))
    y = torch.zeros(60, dtype=torch.int64)
    with pytest.raises(DataError, match="empty on all workers"):
        g.loss(F.cross_entropy, torch.zeros(60, 2), y, torch.zeros(60, dtype=torch.bool))
    with pytest.raises(DataError, match=r"give bool \[60\]"):
        g.loss(F.cross_entropy, torch.zeros(60, 2), y, torch.zeros(60))
    smooth = partial(F.cross_entropy, label_smoothing=0.1)
    assert g.loss(smooth, torch.zeros(60, 2), y).item() == pytest.approx(0.6931, abs=1e-4)


def test_constants_are_made_once_and_stay() -> None:
    g = loaded(some_graph())
    x = g.constant(features(60, 4).float())
    conv = graph.SAGEConv(4, 8)
    calls = []
    whole = g.exchange.sum
    g.exchange.sum = lambda *given: (calls.append(1), whole(*given))[1]  # type: ignore[method-assign]
    first, plain = conv(x, g), conv(x.clone(), g)
    torch.testing.assert_close(first, plain)
    conv(x, g)
    assert len(calls) == 2  # one for the constant, one for its copy
    conv(F.dropout(x, 0.5), g)
    assert len(calls) == 3
    x.add_(1.0)
    with pytest.raises(TrainingError, match="changed in place"):
        conv(x, g)


def test_masks_change_in_place() -> None:
    g = loaded(some_graph())
    output, y = torch.zeros(60, 2), torch.zeros(60, dtype=torch.int64)
    mask = torch.ones(60, dtype=torch.bool)
    for _ in range(2):
        assert g.loss(F.cross_entropy, output, y, mask).item() == pytest.approx(0.6931, abs=1e-4)
        mask[:30] = False


def test_dropout_drops_its_share_and_goes_on() -> None:
    g = loaded(some_graph())
    x = torch.ones(60, 200)
    first, second = g.dropout(x, 0.3), g.dropout(x, 0.3)
    for one in (first, second):
        assert (one == 0).float().mean().item() == pytest.approx(0.3, abs=0.02)
        assert one.mean().item() == pytest.approx(1.0, abs=0.03)
    assert ((first == 0) == (second == 0)).float().mean().item() == pytest.approx(0.58, abs=0.02)
    assert g.dropout(x, 0.3, training=False) is x
    resumed = loaded(some_graph())
    resumed.load_state_dict(g.state_dict())
    assert torch.equal(resumed.dropout(x, 0.3), g.dropout(x, 0.3))
    assert not torch.equal(loaded(some_graph()).dropout(x, 0.3), g.dropout(x, 0.3))


def test_workers_that_leave_or_join_are_refused() -> None:
    with pytest.raises(ConfigError, match="each holds a part of the graph; leave --elastic out"):
        loaded(some_graph()).members_changed((0, 2))


def test_factors_are_those_of_a_dense_product() -> None:
    edges = some_graph(symmetric=False)
    g = loaded(edges)
    x, back = features(60, 5).float().requires_grad_(), features(60, 5, 2).float()
    scale, weight = torch.rand(60), torch.rand(60)
    dense = torch.zeros(60, 60).index_put_((edges[1], edges[0]), torch.ones(()), True)
    dense = (scale[:, None] * dense * weight)[g.ids][:, g.ids]
    found = g.scaled_sum(x, scale[g.ids], weight[g.ids])
    torch.testing.assert_close(found, dense @ x, rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad((found * back).sum(), x)
    torch.testing.assert_close(gradient, dense.T @ back, rtol=1e-5, atol=1e-5)


def test_memory_of_sums_is_used_again_when_nobody_has_it() -> None:
    rooms = Workspaces()
    first = rooms.tensor(LEAST, 1)
    view, where = first[1:], first.data_ptr()
    del first
    second = rooms.tensor(LEAST, 1)  # the view still has the first one's
    assert second.data_ptr() != where
    view.fill_(7.0)
    del view
    assert rooms.tensor(LEAST, 1).data_ptr() == where
    assert len(rooms.free[LEAST]) == 1
    assert rooms.tensor(LEAST - 1, 1).shape == (LEAST - 1, 1)
    assert list(rooms.free) == [LEAST]


@pytest.mark.parametrize("aggr", ["mean", "max", "min"])
def test_features_in_bfloat16_learn_as_in_float32(aggr: str) -> None:
    g = loaded(some_graph())
    x, y = features(60, 16).float(), torch.arange(60) % 3
    outputs, gradients = [], []
    for dtype in (None, torch.bfloat16):
        torch.manual_seed(0)
        conv = graph.SAGEConv(16, 3, aggr)
        outputs.append(conv(g.constant(x.clone(), dtype), g))
        g.loss(F.cross_entropy, outputs[-1], y).backward()
        gradients.append(torch.cat([one.grad.flatten() for one in conv.parameters() if one.grad is not None]))
    assert outputs[1].dtype is torch.float32
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0.03, atol=0.03)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0.05, atol=0.01)


def test_rows_of_models_that_differ_are_refused() -> None:
    def step(sync: str) -> Step:
        plan = policies.resolve(sync).plan(SyncView(rank=0, clock=0, members=(0, 1), sites={0: "a", 1: "a"}))
        return Step(clock=0, iteration=0, epoch=0, rank=0, members=(0, 1), shares=(5, 0), plan=plan)

    edges = SimpleNamespace(edge_index=some_graph(), num_nodes=60)
    for sync in ("local:every=4", "diloco"):
        with pytest.raises(ConfigError, match=r"averaged over all workers in every step, .* at step 0: use sync='bsp'"):
            graph.load(edges).before_step(step(sync))
    graph.load(edges).before_step(step("bsp"))
    graph.load(edges).before_step(step("hierarchical"))  # one site: the mean over all
