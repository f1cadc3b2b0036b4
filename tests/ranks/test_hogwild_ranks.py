"""Several threads on each of several workers: exchanges in the foreground and beside, all samples used once."""

from __future__ import annotations

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
from uneven.testing.inside import inside
from uneven.testing.ranks import RankContext, ranks

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
        with self.session.evaluated():
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
