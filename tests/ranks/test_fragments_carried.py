"""Parameters that are exchanged in pieces, one after the other: real workers come to what virtual time says."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch
from policy_runs import Run, everybodys, flat
from session_parts import X, net, tensors
from torch import Tensor, nn

from uneven.balance import balancers
from uneven.cluster.spec import ClusterSpec, Node, Workload
from uneven.core.actions import span
from uneven.core.cost import Affine
from uneven.simulate import Scenario, simulate
from uneven.sync import DiLoCo, SyncPolicy, policies
from uneven.testing.ranks import RankContext, ranks
from uneven.virtual.board import Board
from uneven.virtual.replicas import SampleOrder, Sgd
from uneven.virtual.run import prepared
from uneven.virtual.task import Classification
from uneven.virtual.training import Training

SHARES, STEPS = "static:shares=7/5", 4
PIECES = "diloco:every=3,fragments=3,outer_lr=0.7,outer_momentum=0.9"
ADAM = DiLoCo(every=4, fragments=2, outer=partial(torch.optim.Adam, lr=0.01))


class Double(nn.Module):
    """In double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net().double()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x.double())
        return found


class Normed(Double):
    """With running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.BatchNorm1d(5).double(), self.inner)


def virtual(sync: str | SyncPolicy) -> Tensor:
    """The same training in virtual time: what each of two workers comes to."""
    x, y = tensors(torch.float64)
    task = Classification(net().double(), (x, y), (x, y), learning_rate=0.1)
    nodes = tuple(Node(name=name, site=name, cost=Affine(1.0, 0.0)) for name in ("east", "west"))
    spec = ClusterSpec(name="two", nodes=nodes, workload=Workload(global_batch=X, gradient_bytes=1000))
    policy = policies.resolve(sync)
    scenario = prepared(Scenario(spec=spec, balancer=balancers.resolve(SHARES), policy=policy, iterations=STEPS), task)
    board = Board(task, lambda record: None, X)
    training = Training(Sgd(task, SampleOrder(task.samples, 0), board.losses), evaluated=policy.evaluated, board=board)
    simulate(scenario, lambda record: None, arithmetic=training)
    return torch.stack([training.parameters(rank) for rank in (0, 1)])


def as_in_virtual_time(results: list[Any]) -> None:
    """Of the processes, seen from outside."""
    for number, sync in enumerate((PIECES, ADAM)):
        found = torch.tensor([one[number] for one in results], dtype=torch.float64)
        torch.testing.assert_close(found, virtual(sync), rtol=0, atol=1e-12)
        assert not torch.equal(found[0], found[1]), "two pieces have gone on since they were exchanged"


@ranks(2, check=as_in_virtual_time)
def test_real_workers_come_to_what_virtual_time_says(me: RankContext) -> list[list[float]]:
    os.environ["UNEVEN_SITE"] = ("east", "west")[me.rank]
    found = []
    for sync in (PIECES, ADAM):
        run = Run(sync, SHARES, model=Double)
        run.epoch(STEPS)
        run.agreement.open()  # who leaves a loop makes the last exchange up for
        found.append(flat(run.model).tolist())
        with run.session.evaluated():
            assert (everybodys(flat(run.model)) == flat(run.model)).all(), "of each piece the outcome of its exchange"
        run.session.close()

    first = Run(PIECES, SHARES, model=Double)
    first.epoch(2)
    state, size = first.session.state_dict(), flat(first.model).numel()
    assert set(state["vectors"]) == {"copy", "delta", "start", "centre"}
    resumed = Run(PIECES, SHARES, model=Double)
    resumed.model.load_state_dict(first.model.state_dict())
    resumed.optimizer.load_state_dict(first.optimizer.state_dict())
    resumed.session.load_state_dict(state)
    resumed.epoch(STEPS - 2)
    resumed.agreement.open()
    assert flat(resumed.model).tolist() == found[0], "bit by bit"
    both = everybodys(flat(resumed.model))
    equal = [torch.equal(both[0, cut], both[1, cut]) for cut in (span((number, 3), size) for number in range(3))]
    assert equal == [True, False, False], "after step 4 the first piece, again"
    sent = [one.sent_bytes for one in resumed.exchanges]
    assert all(one < 8 * (size / 3 + 4) for one in sent), "a third of the vector each time"
    first.session.close()
    resumed.session.close()

    normed = Run(PIECES, SHARES, model=Normed)
    normed.epoch(STEPS)
    normed.agreement.open()
    layer = normed.model.inner[0]  # type: ignore[union-attr,index]
    assert (everybodys(layer.running_var) == layer.running_var).all(), "statistics are averaged beside each piece"
    normed.session.close()
    return found
