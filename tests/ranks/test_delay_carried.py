"""Outcomes that enter some steps after their exchange was begun: real workers come to what virtual time says."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch
from policy_runs import Run, everybodys, flat
from session_parts import net, tensors
from torch import Tensor, nn

from uneven.balance import balancers
from uneven.cluster.spec import ClusterSpec, Node, Workload
from uneven.core.cost import Affine
from uneven.simulate import Scenario, simulate
from uneven.sync import DiLoCo, SyncPolicy, policies
from uneven.testing.ranks import RankContext, ranks
from uneven.virtual.board import Board
from uneven.virtual.replicas import SampleOrder, Sgd
from uneven.virtual.run import prepared
from uneven.virtual.task import Classification
from uneven.virtual.training import Training

SHARES, X, STEPS = "static:shares=2/1", 6, 8
PIECES = "diloco:every=4,fragments=2,delay=1,outer_lr=0.7,outer_momentum=0.9"
WHOLE = DiLoCo(every=4, delay=2, outer=partial(torch.optim.Adam, lr=0.01))
ENTRIES = "sparse-local:every=4,density=0.3,chunk=16,bits=32,delay=2"
PLANS = (PIECES, WHOLE, ENTRIES)


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


def virtual(sync: str | SyncPolicy) -> tuple[Tensor, Tensor]:
    """The same training in virtual time: what each of two workers comes to, and the model to evaluate."""
    x, y = tensors(torch.float64)
    task = Classification(net().double(), (x, y), (x, y), learning_rate=0.1)
    nodes = tuple(Node(name=name, site=name, cost=Affine(1.0, 0.0)) for name in ("east", "west"))
    spec = ClusterSpec(name="two", nodes=nodes, workload=Workload(global_batch=X, gradient_bytes=1000))
    policy = policies.resolve(sync)
    scenario = prepared(Scenario(spec=spec, balancer=balancers.resolve(SHARES), policy=policy, iterations=STEPS), task)
    board = Board(task, lambda record: None, X)
    training = Training(Sgd(task, SampleOrder(task.samples, 0), board.losses), evaluated=policy.evaluated, board=board)
    simulate(scenario, lambda record: None, arithmetic=training)
    return torch.stack([training.parameters(rank) for rank in (0, 1)]), training._model(0)


def resumed(sync: str, steps: int, saved: set[str], expected: list[float]) -> None:
    """A run that is saved with something under way, and goes on from that."""
    first = Run(sync, SHARES, model=Double, batch=X)
    first.epoch(steps)
    first.agreement.open()
    state = first.session.state_dict()
    assert set(state["vectors"]) == saved
    assert state["vectors"]["late-change"].abs().sum() > 0, "it has an outcome that is still to enter"
    again = Run(sync, SHARES, model=Double, batch=X)
    again.model.load_state_dict(first.model.state_dict())
    again.optimizer.load_state_dict(first.optimizer.state_dict())
    again.session.load_state_dict(state)
    again.epoch(STEPS - steps)
    again.agreement.open()
    assert flat(again.model).tolist() == expected, "bit by bit"
    with first.session.evaluated():
        shown = first.session.state_dict()
    assert not shown["vectors"]["late-change"].any(), "the model to evaluate has it"
    first.session.close()
    again.session.close()


def as_in_virtual_time(results: list[Any]) -> None:
    """Of the processes, seen from outside."""
    for number, sync in enumerate(PLANS):
        replicas, centre = virtual(sync)
        found = torch.tensor([one[2 * number] for one in results], dtype=torch.float64)
        torch.testing.assert_close(found, replicas, rtol=0, atol=1e-12)
        assert not torch.equal(found[0], found[1]), "what each learnt meanwhile is its own"
        shown = torch.tensor([one[2 * number + 1] for one in results], dtype=torch.float64)
        torch.testing.assert_close(shown, centre.expand(2, -1), rtol=0, atol=1e-12)


@ranks(2, check=as_in_virtual_time)
def test_real_workers_come_to_what_virtual_time_says(me: RankContext) -> list[list[float]]:
    os.environ["UNEVEN_SITE"] = ("east", "west")[me.rank]
    found = []
    for sync in PLANS:
        run = Run(sync, SHARES, model=Double, batch=X)
        run.epoch(STEPS)
        run.agreement.open()  # who leaves a loop begins the last exchange when the next step would
        found.append(flat(run.model).tolist())
        shown = run.shown()
        assert (everybodys(shown) == shown).all(), "also with what is under way"
        assert flat(run.model).tolist() == found[-1], "which enters when it is due, and not sooner"
        found.append(shown.tolist())
        run.session.close()
        assert {one.late for one in run.exchanges} <= {0, 1, 2}
        assert run.exchanges[0].late == (1 if sync is PIECES else 2), "steps that were taken meanwhile"

    resumed(PIECES, 2, {"copy", "delta", "start", "centre", "late-change"}, found[0])
    resumed(ENTRIES, 5, {"entries-held", "entries-base", "late-change"}, found[4])

    normed = Run(PIECES, SHARES, model=Normed, batch=X)
    normed.epoch(4)
    normed.agreement.open()
    layer = normed.model.inner[0]  # type: ignore[union-attr,index]
    with normed.session.evaluated():
        assert (everybodys(layer.running_var) == layer.running_var).all(), "statistics are averaged beside each piece"
    assert not (everybodys(layer.running_var) == layer.running_var).all()
    normed.session.close()
    return found
