"""A merge that is written elsewhere: one file and one registration, then real runs and virtual time know it."""

from __future__ import annotations

from typing import Any

import torch
from policy_runs import Run, everybodys, flat
from session_parts import X, net, tensors
from sign_mean import SignMean
from torch import Tensor, nn

from uneven import Merge
from uneven.balance import balancers
from uneven.cluster.spec import ClusterSpec, Node, Workload
from uneven.core.cost import Affine
from uneven.merge import merges
from uneven.simulate import Scenario, simulate
from uneven.sync import policies
from uneven.testing.merges import MergeContract
from uneven.testing.ranks import RankContext, ranks
from uneven.virtual.board import Board
from uneven.virtual.replicas import SampleOrder, Sgd
from uneven.virtual.run import prepared
from uneven.virtual.task import Classification
from uneven.virtual.training import Training

SYNC, SHARES, ITERATIONS = "blocks:every=2,merge=sign-mean:rate=0.05", "static:shares=7/5", 4


class TestSignMean(MergeContract):
    """The suite, inherited."""

    def make(self) -> Merge:
        return merges.resolve("sign-mean:rate=0.05")


class Double(nn.Module):
    """In double precision, so that no sign hangs on rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net().double()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x.double())
        return found


class Normed(Double):
    """With running statistics, of whose movement no sign makes sense."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.BatchNorm1d(5).double(), self.inner)


def virtual() -> Tensor:
    """The same training in virtual time: what each of two workers comes to."""
    x, y = tensors(torch.float64)
    task = Classification(net().double(), (x, y), (x, y), learning_rate=0.1)
    spec = ClusterSpec(
        name="two",
        nodes=(Node(name="a", cost=Affine(1.0, 0.0)), Node(name="b", cost=Affine(1.0, 0.0))),
        workload=Workload(global_batch=X, gradient_bytes=1000),
    )
    policy = policies.resolve(SYNC)
    scenario = prepared(
        Scenario(spec=spec, balancer=balancers.resolve(SHARES), policy=policy, iterations=ITERATIONS), task
    )
    board = Board(task, lambda record: None, X)
    training = Training(Sgd(task, SampleOrder(task.samples, 0), board.losses), evaluated=policy.evaluated, board=board)
    simulate(scenario, lambda record: None, arithmetic=training)
    return torch.stack([training.parameters(rank) for rank in (0, 1)])


def as_in_virtual_time(results: list[Any]) -> None:
    """Of the processes, seen from outside."""
    torch.testing.assert_close(torch.tensor(results, dtype=torch.float64), virtual(), rtol=1e-9, atol=1e-9)
    start = flat(net().double())
    moved = (virtual()[0] - start).abs()
    assert {round(float(one), 6) for one in moved} <= {0.0, 0.05, 0.1}, "two votes of two workers"
    assert len(set(moved.tolist())) > 1


@ranks(2, check=as_in_virtual_time)
def test_a_real_run_and_virtual_time_come_to_the_same_weights(me: RankContext) -> list[float]:
    assert isinstance(merges.resolve("sign-mean"), SignMean)
    straight = Run(SYNC, SHARES, model=Double)
    straight.epoch(ITERATIONS)
    shown, found = straight.shown(), flat(straight.model)  # who leaves a loop makes the last exchange up there
    assert torch.equal(shown, found), "the point that all start from is the model to evaluate"

    first = Run(SYNC, SHARES, model=Double)
    first.epoch(ITERATIONS // 2 + 1)  # in the middle of a block, which does not start where the model is
    state = first.session.state_dict()
    assert set(state["vectors"]) == {"start", "centre"}
    resumed = Run(SYNC, SHARES, model=Double)
    resumed.model.load_state_dict(first.model.state_dict())
    resumed.optimizer.load_state_dict(first.optimizer.state_dict())
    resumed.session.load_state_dict(state)
    resumed.epoch(ITERATIONS // 2 - 1)
    torch.testing.assert_close(resumed.shown(), found)

    normed = Run(SYNC, SHARES, model=Normed)
    normed.epoch(ITERATIONS)
    normed.shown()
    layer = normed.model.inner[0]  # type: ignore[union-attr,index]
    assert (everybodys(layer.running_var) == layer.running_var).all()
    assert (layer.running_var > 0.5).all(), "averaged as they are"
    return found.tolist()
