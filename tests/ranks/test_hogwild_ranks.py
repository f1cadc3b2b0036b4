"""Several threads on each of several workers: exchanges in the foreground and beside, all samples used once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from policy_runs import everybodys, flat
from session_parts import N, Numbered, net, sgd
from session_parts import everybodys as all_of
from torch import nn
from torch.nn import functional as F

import uneven
from uneven.errors import ConfigError
from uneven.policy.core.records import ExchangeRecord
from uneven.testing.ranks import RankContext, ranks
from uneven_bench.inside import inside

X = 7
"""Seven full parts an epoch, and a last one of a single sample."""


class Run:
    """A session of so many threads, with a loop for each."""

    def __init__(self, sync: str, threads: int) -> None:
        self.session = uneven.Session(sync=sync, balance="even", threads=threads)
        self.model = net()
        self.optimizer = sgd(self.model)
        self.session.setup(self.model, self.optimizer)
        self.loader = self.session.loader(Numbered(), X)
        self.exchanges: list[ExchangeRecord] = []
        self.agreement = inside(self.session).sync
        assert self.agreement is not None
        inside(self.session).records(self.exchanges.append)

    def loop(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
        for x, y, index in batches:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            part = inside(self.session).part  # of one thread, which is handed batches that do not count too
            self.seen += index.tolist() if part is None or part.batch(self.session.rank) else []

    def epochs(self, count: int) -> list[int]:
        """Which samples this worker was given."""
        self.seen: list[int] = []
        for _ in range(count):
            self.session.train(self.loop)
        return self.seen

    def shown(self) -> torch.Tensor:
        """The parameters of the model to evaluate."""
        with self.session.evaluation_model():
            return flat(self.model)


@ranks(2)
def test_threads_of_several_workers_meet_as_planned(me: RankContext) -> None:
    for sync, every in (("ma:every=2", 2), ("bmuf:every=3,momentum=0.5", 3), ("easgd:together=true,every=2", 2)):
        run = Run(sync, threads=3 - 2 * me.rank)  # a machine with more cores takes more
        seen = all_of(run.epochs(2))
        assert sorted(seen) == sorted([*range(N)] * 2), sync
        assert run.agreement.clock == 16  # the last part of an epoch has nothing for one of them: a step all the same
        assert [one.gap for one in run.exchanges] == [every] * (16 // every)
        if me.rank == 0:
            assert {one.threads for one in run.exchanges} == {3}
        shown = run.shown()
        assert shown.isfinite().all()
        assert (everybodys(shown) == shown).all()
        run.session.close()

    beside = Run("shadow:ma", threads=2)
    assert sorted(all_of(beside.epochs(3))) == sorted([*range(N)] * 3)
    shown = beside.shown()
    assert (everybodys(shown) == shown).all()
    assert {one.moment for one in beside.exchanges} <= {"background"}  # at its own pace one may get no sample at all
    assert sum(all_of([one.gap for one in beside.exchanges])) >= 24
    assert sum(one.gap for one in beside.exchanges) == beside.agreement.clock, "every step is in one exchange"
    beside.session.close()

    central = Run("shadow:easgd", threads=2)  # through the parameter server, ShadowSync's own case
    assert sorted(all_of(central.epochs(3))) == sorted([*range(N)] * 3)
    shown = central.shown()
    assert (everybodys(shown) == shown).all()
    assert {one.threads for one in central.exchanges} <= {2}
    assert sum(one.gap for one in central.exchanges) <= central.agreement.clock, "no step is in two exchanges"
    central.session.close()

    with pytest.raises(ConfigError, match=r"^sync = 'bsp' with threads = 2: .* use sync = 'local:every=8' or"):
        uneven.Session(sync="bsp", threads=2)


# ---------------------------------------------------------------- steps that commute, so threads change nothing
LR = 2.0**-6


def linear() -> nn.Module:
    torch.manual_seed(5)
    return nn.Linear(4, 3).double()


class Whole(torch.utils.data.Dataset[Any]):
    """Samples of whole numbers: sums of their gradients are exact."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, 1, index % 5, -index], dtype=torch.float64)


def commuting(sync: str, threads: int, epochs: int) -> tuple[torch.Tensor, uneven.Session, list[ExchangeRecord]]:
    """Train on a loss that is linear in the parameters: a step does not depend on those before it."""
    balance = "static:shares=2/1" if "delay" in sync else "even"
    session = uneven.Session(sync=sync, balance=balance, threads=threads)
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    session.setup(model, optimizer)
    loader = session.loader(Whole(), X)
    records: list[ExchangeRecord] = []
    inside(session).records(records.append)
    replica, lock = inside(session).sync._replica.flat, threading.Lock()
    add = replica.add

    def added(*given: Any) -> None:
        with lock:
            add(*given)

    replica.add = added

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
        for x in batches:
            (model(x).sum() / 4).backward()
            with lock:  # two additions to the same numbers at the same time may lose one of them
                optimizer.step()
            optimizer.zero_grad()

    for _ in range(epochs):
        session.train(loop) if threads > 1 else loop(model, optimizer, loader)
    with session.evaluation_model():
        return flat(model), session, records


DELAYS = ["diloco:every=6,delay=3", "diloco:every=4,fragments=2,delay=1", "sparse-local:every=3,delay=2,by_site=false"]


@ranks(2)
def test_with_a_delay_threads_come_to_the_model_of_one_thread(me: RankContext) -> None:
    for sync in DELAYS:
        one, *_, before = commuting(sync, 1, 2)
        several, session, records = commuting(sync, 3, 2)
        assert (several - one).abs().max() < 1e-12, sync
        assert [(exchange.gap, exchange.samples) for exchange in records] == [
            (exchange.gap, exchange.samples) for exchange in before
        ]
        assert {exchange.threads for exchange in records} == {3}
        session.close()


@ranks(2)
def test_movements_of_threads_are_in_the_copy_once(me: RankContext) -> None:
    found, session, records = commuting("shadow:load=1:asp:scale=1", 2, 3)
    assert {exchange.moment for exchange in records} <= {"background", "step"}
    per_sample = torch.stack([Whole()[index] for index in range(N)]).sum(0) / 4
    start = flat(linear())
    expected = start - LR * 3 * torch.cat((per_sample.repeat(3), torch.full((3,), N / 4, dtype=torch.float64)))
    assert (found - expected).abs().max() < 1e-9
    session.close()


@ranks(1)
def test_outer_steps_take_the_movements_of_threads(me: RankContext) -> None:
    """Alone, with an outer learning rate of 1 and no momentum, the copy makes the movement of the replica."""
    found, session, records = commuting("decoupled:every=2,quorum=1,outer_lr=1.0,outer_momentum=0.0", 3, 4)
    sync = inside(session).sync
    assert sum(exchange.gap for exchange in records) + sync.ledger.state()["gap"] == sync.clock == 4 * -(-N // X)
    assert {(exchange.moment, exchange.threads) for exchange in records} == {("background", 3)}
    assert found.isfinite().all()
    unsent = torch.from_numpy(sync.aggregator.copy.moved(sync.aggregator.copy.read()))
    per_sample = torch.stack([Whole()[index] for index in range(N)]).sum(0) / 4
    expected = flat(linear()) - LR * 4 * torch.cat((per_sample.repeat(3), torch.full((3,), N / 4, dtype=torch.float64)))
    assert (found + unsent - expected).abs().max() < 1e-9
    session.close()
