"""Sites that exchange picked entries, while workers come and go: as one process that plays all replicas."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from pathlib import Path

import elastic_script
import numpy as np
import pytest
import torch
from test_elastic_groups import EPOCHS, Exchanged, Holder, Log, played

from tiers import rest
from uneven.policy.core.actions import Combined, Exchange, Payload
from uneven.policy.core.views import SyncView
from uneven.policy.select.pack import shortest
from uneven.policy.sync import SyncPolicy, policies

pytestmark = pytest.mark.timeout(200)


class Site(Holder):
    """One worker, with what its site has not sent.

    Attributes:
        base: its replica after the last exchange.
        waits: entries that wait.
        fresh: its steps since the last exchange.
    """

    def __init__(self) -> None:
        super().__init__()
        self.base = self.read().numpy().copy()
        self.waits = np.zeros_like(self.base)
        self.fresh: set[tuple[int, int]] = set()
        self.factor = 1.0  # of its gradients
        self.optimizer.register_step_pre_hook(lambda *_: self._weigh())

    def _weigh(self) -> None:
        for one in self.model.parameters():
            assert one.grad is not None
            one.grad.mul_(self.factor)


class Replay:
    """All replicas of a run, played in one process."""

    def __init__(self, log: Log, policy: SyncPolicy, sites: dict[int, str], leaves: dict[int, int]) -> None:
        self.log, self.policy, self.sites, self.leaves = log, policy, sites, leaves
        self.workers = {one: Site() for one in range(4)}
        self.used: set[tuple[int, int]] = set()
        self.whole = 0  # messages with all that a leaving worker held
        self.parts = 1
        for number, exchange in log.exchanges.items():
            for one, (at, donor) in log.joins.items():
                if at == number:
                    self.join(one, donor, next(iter(log.exchanges[number - 1].groups)))
            if exchange.kind == "gradients":
                self.average(exchange)
            elif exchange.settles >= 0:
                self.meet(number, exchange)

    def planned(self, members: tuple[int, ...]) -> Exchange:
        views = (SyncView(members[0], clock, members, 0, self.sites, True) for clock in range(8))
        exchanges = (one for view in views for one in self.policy.plan(view).exchanges)
        return next(one for one in exchanges if one.payload is Payload.DELTA)

    def join(self, one: int, first: int, there: tuple[int, ...]) -> None:
        near = [other for other in there if other != one and self.sites[other] == self.sites[one]]
        donor = near[0] if near else first
        new, old = Site(), self.workers[donor]
        new.model.load_state_dict(old.model.state_dict())
        new.optimizer.load_state_dict(deepcopy(old.optimizer.state_dict()))
        new.base, new.waits, new.last = old.base.copy(), old.waits.copy(), old.last
        self.workers[one] = new
        exchange = self.planned(tuple(sorted({*there, one})))
        assert exchange.select is not None
        if not any({one, donor} <= set(party) for party in exchange.parties):
            new.base -= 0 if exchange.select.beside else new.waits
            new.waits[:] = 0
            new.write(torch.from_numpy(new.base.copy()))

    def average(self, exchange: Exchanged) -> None:
        self.parts = len(exchange.groups)
        steps = [sorted((one, exchange.settles) for one in group) for group in exchange.groups]
        ids = [[it for step in those if step in self.log.steps for it in self.log.steps[step][1]] for those in steps]
        for group, those, mine in zip(exchange.groups, steps, ids, strict=True):
            for one in group:
                worker = self.workers[one]
                if self.planned(exchange.groups[0]).merge.combined is Combined.SUM:
                    worker.factor = self.parts * len(mine) / sum(map(len, ids))
                worker.step_on(mine, set())
                worker.fresh |= {step for step in those if step in self.log.steps}
                worker.last = exchange.settles

    def meet(self, number: int, exchange: Exchanged) -> None:
        (members,) = exchange.groups
        planned = self.planned(members)
        select, merge = planned.select, planned.merge
        assert select is not None
        adds = merge.combined is Combined.SUM
        messages, weights = [], []
        for party in planned.parties:
            for one in party:
                worker = self.workers[one]
                for iteration in range(worker.last + 1, exchange.settles + 1):  # that it took by itself
                    if (step := (one, iteration)) in self.log.steps:
                        worker.step_on(self.log.steps[step][1], set())
                        worker.fresh.add(step)
                worker.last = exchange.settles
            first = self.workers[party[0]]
            movement = (first.read().numpy() - first.base) * (1 / self.parts if adds else 1.0)
            own, total = first.base + movement, first.waits + movement
            picked = shortest(select.pick(total, own), total).dense()
            if len(planned.parties) == 1 or (len(party) == 1 and self.leaves.get(party[0], number) < number):
                picked = total
                self.whole += len(planned.parties) > 1
            messages.append(picked)
            weights.append(merge.weight(sum(len(self.log.steps[step][1]) for step in first.fresh)))
            for one in party:
                self.workers[one].waits = total - picked
        for place, party in enumerate(planned.parties):
            for one in party:
                worker = self.workers[one]
                if adds:
                    movement = (worker.read().numpy() - worker.base) / self.parts
                    after = worker.base + movement + sum(it for at, it in enumerate(messages) if at != place)
                else:
                    shares = [weight / sum(weights) for weight in weights]
                    after = worker.base + sum(share * it for share, it in zip(shares, messages, strict=True))
                worker.base = after
                worker.write(torch.from_numpy(after.copy()))
                self.used |= worker.fresh
                worker.fresh = set()


def check(folder: Path, replay: Replay, log: Log) -> None:
    for epoch in range(EPOCHS):
        steps = [log.steps[step] for step in replay.used]
        used = Counter(one for of, ids in steps if of == epoch for one in ids)
        assert sorted(used) == list(range(elastic_script.N)), "samples were lost"
        assert set(used.values()) == {1}, "samples were used twice"
    models = {int(path.stem): torch.load(path) for path in folder.glob("*.pt")}
    shown = {one: torch.cat([it.reshape(-1) for it in model.values()]) for one, model in models.items()}
    first, *others = shown.values()
    assert all(torch.equal(first, other) for other in others)
    mean = sum(replay.workers[one].read() for one in models) / len(models)
    assert (first - mean).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("sync", "faults", "joins", "alone"),
    [
        # In each step a round of gradients, one of lengths, and one of messages.
        ("topk:density=0.2", ["kill@2:8", "after@1:14", "late@0:14", "door@21", "leave@3:40"], "b", False),
        rest("topk:density=0.2", ["kill@2:7", "after@3:14", "late@0:14", "door@21", "leave@1:40"], "c", False),
        # In each block three rounds of gradients.
        ("sparse-local:every=3,density=0.2",
         ["kill@2:9", "after@1:14", "late@0:14", "door@20", "leave@3:31"], "c", True),
        # In each block a round of lengths, and one of messages.
        rest("sparse-local:every=3,density=0.2,bits=16,by_site=false",
             ["kill@2:3", "after@1:7", "late@0:7", "door@10", "leave@3:14"], "b", True),
        ("geo:threshold=0.02", ["kill@2:8", "after@1:14", "late@0:14", "door@21", "leave@3:40"], "b", False),
        rest("geo:threshold=0.02,bits=16", ["kill@2:6", "after@1:15", "late@0:15", "door@21", "leave@3:41"], "c", True),
    ],
)  # fmt: skip
def test_lost_joined_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, faults: list[str], joins: str, alone: bool
) -> None:
    """Worker 2 dies in an exchange; another one after one that 0 has not completed; 4 joins; another one leaves, and
    sends all if it is the last one of its site."""
    log = played(tmp_path, sync, faults, monkeypatch, "a,a,b,b", joins)
    leaves = {int(one[6:].split(":")[0]): int(one.split(":")[1]) for one in faults if one.startswith("leave@")}
    replay = Replay(log, policies.resolve(sync), {0: "a", 1: "a", 2: "b", 3: "b", 4: joins}, leaves)
    check(tmp_path, replay, log)
    assert bool(replay.whole) == alone  # several times if the exchange after which it may leave is repaired
