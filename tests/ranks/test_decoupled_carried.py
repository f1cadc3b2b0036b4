"""Learners that never wait: real ones, led through their steps in virtual time's order, come to its weights."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from policy_runs import Double, Run, everybodys, flat
from session_parts import net, tensors
from torch.utils.data import TensorDataset

from uneven.cluster.pure.describe.spec import ClusterSpec, Node, SiteLink, Workload, steady
from uneven.cluster.pure.simulate import Scenario, simulate
from uneven.cluster.virtual.server_copies_board import Board
from uneven.cluster.virtual.task import Classification
from uneven.cluster.virtual.virtual_replicas import SampleOrder, Sgd
from uneven.cluster.virtual.virtual_run import prepared
from uneven.cluster.virtual.virtual_training import Training
from uneven.errors import ConfigError, PeerError
from uneven.policy.balance import balancers
from uneven.policy.core.actions import Exchange
from uneven.policy.core.cost import Affine
from uneven.policy.sync import policies
from uneven.runtime.messages.keys import SERVER, publish
from uneven.runtime.parameter_server import make_keys
from uneven.runtime.parameter_server.pure.wire import Kind
from uneven.runtime.world import RUN_VARIABLE
from uneven.testing.ranks import RankContext, ranks
from uneven_bench.inside import inside

SPEEDS, X, EVENTS = (1.0, 1.13, 2.6), 12, 24
OWN = X // len(SPEEDS)
SYNC = "decoupled:every=2,quorum=2,grace=0.0,outer_lr=0.7,outer_momentum=0.5"


class Many(TensorDataset):
    """What is handed out, which nobody looks at: who is handed what depends on real time."""

    def __init__(self) -> None:
        super().__init__(*(torch.zeros(600) for _ in range(3)))


class Own(SampleOrder):
    """Each worker has samples of its own for each of its steps."""

    def __init__(self) -> None:
        super().__init__(len(tensors()[0]), 0)
        self._taken = [itertools.count() for _ in SPEEDS]

    def drawn(self, rank: int, positions: range) -> range:
        first = OWN * (len(SPEEDS) * next(self._taken[rank]) + rank)
        return range(first, first + OWN)


class Noted(Training):
    """Notes who steps when, what is merged, and what all are just before one of the steps."""

    def __init__(self, *rest: Any, **named: Any) -> None:
        super().__init__(*rest, **named)
        self.order: list[int] = []
        self.merged: list[tuple[int, ...]] = []
        self.replicas, self.copy = torch.zeros(0), torch.zeros(0)

    def merges(self, exchange: Exchange, ranks: tuple[int, ...]) -> None:
        super().merges(exchange, ranks)
        self.merged += [ranks] if len(self.order) <= EVENTS else []

    def steps(self, rank: int, iteration: int, at_s: float) -> None:
        if len(self.order) == EVENTS:
            self.replicas, self.copy = torch.stack([self.parameters(one) for one in range(3)]), self._centre
        super().steps(rank, iteration, at_s)
        self.order.append(rank)


def virtual() -> Noted:
    """The same training in virtual time, of three workers, the last of which is slow."""
    x, y = tensors(torch.float64)
    task = Classification(net().double(), (x, y), (x, y), learning_rate=0.1)
    nodes = tuple(Node(name=f"n{rank}", site=f"s{rank}", cost=Affine(s, 0.0)) for rank, s in enumerate(SPEEDS))
    pairs = itertools.combinations(("s0", "s1", "s2"), 2)
    links = tuple(SiteLink(between=pair, bit_per_s=steady(1e12), latency_s=0.001) for pair in pairs)
    load = Workload(global_batch=X, gradient_bytes=1000)
    spec = ClusterSpec(name="three", nodes=nodes, links=links, workload=load)
    even, policy = balancers.resolve("even"), policies.resolve(SYNC)
    scenario = prepared(Scenario(spec=spec, balancer=even, policy=policy, iterations=EVENTS), task)
    board = Board(task, lambda record: None, X)
    training = Noted(Sgd(task, Own(), board.losses), evaluation_model=policy.evaluation_model, board=board)
    simulate(scenario, lambda record: None, arithmetic=training)
    return training


class Learner:
    """A worker that steps when it is told to, and takes an answer over after the passes of the step it is in."""

    def __init__(self, rank: int) -> None:
        self.run = Run(SYNC, model=Double, data=Many, batch=X)
        self.served: Any = self.run.agreement
        self._rank, self._samples = rank, Own()
        self._x, self._y = tensors(torch.float64)
        self._go, self._posted = threading.Event(), threading.Event()
        self._go.set()
        merge = self.served.aggregator.copy.merge

        def gated(*given: Any) -> Any:
            outcome = merge(*given)
            self._go.wait()
            return outcome

        self.served.aggregator.copy.merge = gated
        self._batches = iter(self.run.loader)
        next(self._batches)
        movement = self.served.aggregator.copy.client.movement

        def posted(*given: Any, **how: Any) -> Any:
            reply = movement(*given, **how)
            self._posted.set()
            return reply

        self.served.aggregator.copy.client.movement = posted
        self._passes()

    def _passes(self) -> None:
        here = self._samples.samples(self._samples.drawn(self._rank, range(0)))
        F.cross_entropy(self.run.model(self._x[here]), self._y[here]).backward()

    def step(self) -> None:
        """The end of a step, and the passes of the next; until the shard has what it has sent."""
        self.run.optimizer.step()
        self.run.optimizer.zero_grad()
        self._go.clear()
        self._posted.clear()
        before = self.served._thread._job
        next(self._batches)
        self._passes()
        if self.served._thread._job not in (None, before):
            self._posted.wait()
            self.served.aggregator.copy.client.pull().result()
        self._go.set()

    def hear(self) -> None:
        """Until an answer that is under way is in the replica."""
        client = self.served.aggregator.copy.client
        client.pull().result()  # which comes after it
        with client._changed:
            waits = any(one.kind is Kind.MOVEMENT for link in client._links.values() for one in link.waiting.values())
        while not (waits or self.served._thread.free()):
            time.sleep(0.001)


def as_in_virtual_time(results: list[Any]) -> None:
    """Of the processes, seen from outside."""
    found = virtual()
    assert any(2 in ranks for ranks in found.merged), found.merged
    assert (0, 1) in found.merged
    assert len(found.merged) >= 5
    replicas = torch.tensor([one[0] for one in results], dtype=torch.float64)
    torch.testing.assert_close(replicas, found.replicas, rtol=0, atol=1e-12)
    copies = torch.tensor([one[1] for one in results], dtype=torch.float64)
    torch.testing.assert_close(copies, found.copy.expand(3, -1), rtol=0, atol=1e-12)


@ranks(3, check=as_in_virtual_time)
def test_real_learners_come_to_what_virtual_time_says(me: RankContext) -> list[list[float]]:
    os.environ["UNEVEN_SITE"] = f"s{me.rank}"
    learner, order = Learner(me.rank), virtual().order[:EVENTS]
    dist.barrier()
    for rank in order:
        if rank == me.rank:
            learner.step()
        dist.barrier()
        learner.hear()
        dist.barrier()
    replica = flat(learner.run.model).tolist()
    copy = learner.served.aggregator.copy.pulled().tolist()
    dist.barrier()
    learner.served.after(inside(learner.run.session).part, leaving=True)
    shown = learner.run.shown()
    assert (everybodys(shown) == shown).all(), "also with a movement that no quorum had come for"
    learner.run.session.close()
    return [replica, copy]


@ranks(3)
def test_epochs_evaluations_checkpoints_and_ends_wait_for_no_quorum_that_cannot_come(me: RankContext) -> None:
    """Under a quorum of all, with blocks that are longer for nobody than an epoch."""
    run = Run("decoupled:every=2,quorum=3,grace=0.5", model=Double)
    losses = []
    for _ in range(4):
        run.epoch()
        with run.session.evaluation_model():
            state = run.session.state_dict()
            shown, (x, y) = flat(run.model), tensors(torch.float64)
            losses.append(float(F.cross_entropy(run.model(x), y)))
            assert (everybodys(shown) == shown).all()
            assert torch.equal(state["vectors"]["centre"], shown)
            assert state["vectors"]["velocity"].abs().sum() > 0
    assert losses[-1] < losses[0]
    assert run.session.state_dict()["vectors"]["centre"].numel() == len(shown), "also beside what is under way"
    assert {one.moment for one in run.exchanges} == {"background"}
    assert all(one.members == 3 for one in run.exchanges)
    if me.rank == 1:
        run.epoch(most=2)  # a movement, and no more of it
    else:
        run.epoch()
    run.session.close()

    resumed = Run("decoupled:every=2,quorum=3,grace=0.5", model=Double)
    resumed.session.load_state_dict(state)
    with resumed.session.evaluation_model():
        assert torch.equal(flat(resumed.model), shown), "it begins where the checkpoint ends"
        found = resumed.session.state_dict()["vectors"]
        assert all(torch.equal(found[name], one) for name, one in state["vectors"].items()), "with its momentum"
    resumed.session.close()


@ranks(2, timeout_s=60)
def test_an_evaluation_waits_for_a_quorum_no_longer_than_for_who_does_not_come(me: RankContext) -> None:
    run = Run("decoupled:every=2,quorum=2", model=Double)
    run.agreement.aggregator.copy._timeout_s = 4.0  # type: ignore[union-attr]
    if me.rank == 1:
        batches = iter(run.loader)
        next(batches)  # it gives signs of life, and does not come
        dist.barrier()
        dist.barrier()
        batches.close()  # type: ignore[attr-defined]
        run.session.close()
        dist.barrier()
        return
    run.epoch(most=2)
    dist.barrier()
    with pytest.raises(PeerError, match="has waited 4 s for a quorum at shard 0"), run.session.evaluation_model():
        pass
    dist.barrier()
    dist.barrier()
    run.session.close()


@ranks(3)
def test_a_session_refuses_shards_at_which_learners_could_wait_for_each_other(me: RankContext, tmp_path: str) -> None:
    folder = Path(tmp_path) / SERVER
    if me.rank == 0:
        make_keys(folder)
        for shard in range(3):
            publish(folder, shard, "tcp://127.0.0.1:1")  # nobody gets so far as to greet it
    dist.barrier()
    os.environ[RUN_VARIABLE] = tmp_path
    with pytest.raises(ConfigError, match=r"through 3 shards.* use --servers 1, or quorum=3"):
        Run(SYNC, model=Double)
    dist.barrier()
