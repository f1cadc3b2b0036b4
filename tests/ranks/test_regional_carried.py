"""Outer steps on two levels: real workers of two regions come to what virtual time says."""

from __future__ import annotations

import os
from typing import Any

import torch
from policy_runs import Run, everybodys, flat
from session_parts import X, net, tensors
from torch import Tensor, nn

from uneven.balance import balancers
from uneven.cluster.spec import ClusterSpec, Node, Workload
from uneven.core.cost import Affine
from uneven.simulate import Scenario, simulate
from uneven.sync import policies
from uneven.testing.ranks import RankContext, ranks
from uneven.virtual.board import Board
from uneven.virtual.replicas import SampleOrder, Sgd
from uneven.virtual.run import prepared
from uneven.virtual.task import Classification
from uneven.virtual.training import Training

SITES, SHARES, STEPS = ("east", "west", "east"), "static:shares=5/4/3", 4
BOTH = "regional:every=1,across=2,outer_lr=0.9,outer_momentum=0.5,global_lr=0.7,global_momentum=0.5"
NEAR = "regional:every=2,across=3,outer_lr=0.9,outer_momentum=0.5"


class Double(nn.Module):
    """In double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net().double()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x.double())
        return found


def virtual(sync: str) -> Tensor:
    """The same training in virtual time: what each of three workers comes to."""
    x, y = tensors(torch.float64)
    task = Classification(net().double(), (x, y), (x, y), learning_rate=0.1)
    nodes = tuple(Node(name=f"n{rank}", site=site, cost=Affine(1.0, 0.0)) for rank, site in enumerate(SITES))
    spec = ClusterSpec(name="three", nodes=nodes, workload=Workload(global_batch=X, gradient_bytes=1000))
    policy = policies.resolve(sync)
    scenario = prepared(Scenario(spec=spec, balancer=balancers.resolve(SHARES), policy=policy, iterations=STEPS), task)
    board = Board(task, lambda record: None, X)
    training = Training(Sgd(task, SampleOrder(task.samples, 0), board.losses), evaluated=policy.evaluated, board=board)
    simulate(scenario, lambda record: None, arithmetic=training)
    return torch.stack([training.parameters(rank) for rank in range(3)])


def as_in_virtual_time(results: list[Any]) -> None:
    """Of the processes, seen from outside."""
    for number, sync in enumerate((BOTH, NEAR)):
        found = torch.tensor([one[number] for one in results], dtype=torch.float64)
        torch.testing.assert_close(found, virtual(sync), rtol=0, atol=1e-12)
    assert torch.equal(found[0], found[2]), "of one region"
    assert not torch.equal(found[0], found[1])


@ranks(3, check=as_in_virtual_time)
def test_real_regions_come_to_what_virtual_time_says(me: RankContext) -> list[list[float]]:
    os.environ["UNEVEN_SITE"] = SITES[me.rank]
    found = []
    for sync in (BOTH, NEAR):
        run = Run(sync, SHARES, model=Double)
        run.epoch(STEPS)
        run.agreement.open()  # who leaves a loop makes the last exchange up for
        found.append(flat(run.model).tolist())
        mean = everybodys(flat(run.model)).mean(0)
        torch.testing.assert_close(run.shown(), mean, rtol=0, atol=1e-12)
        run.session.close()

    first = Run(NEAR, SHARES, model=Double)
    first.epoch(3)  # in the middle of a block
    state = first.session.state_dict()
    assert set(state["vectors"]) >= {"movements-base", "movements-velocity", "copy", "delta", "start"}
    resumed = Run(NEAR, SHARES, model=Double)
    resumed.model.load_state_dict(first.model.state_dict())
    resumed.optimizer.load_state_dict(first.optimizer.state_dict())
    resumed.session.load_state_dict(state)
    resumed.epoch(1)
    resumed.agreement.open()
    assert flat(resumed.model).tolist() == found[1], "bit by bit"
    first.session.close()
    resumed.session.close()
    return found
