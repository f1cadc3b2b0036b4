"""Outer steps inside sites and between them, while workers are lost, leave and join: as one process that plays all.

The replay knows the rules only: who has met whom is read from the logs, and who gave a newcomer its state follows from
the sites. Optimizers have momentum, so a newcomer with the state of another worker would show.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import elastic_script
import elastic_threads
import pytest
import torch
from test_elastic_groups import Exchanged, Holder, Log, Step, check, played

from uneven.policy.merge import BlockMomentum, Kept
from uneven.policy.merge.merge import OuterMovement

pytestmark = pytest.mark.timeout(200)

EVERY, ACROSS = 2, 3
SYNC = f"regional:every={EVERY},across={ACROSS},outer_lr=0.9,outer_momentum=0.5,global_lr=0.7,global_momentum=0.5"
NEAR, FAR = OuterMovement(0.5, 0.9), BlockMomentum(0.5, 0.7, nesterov=True)
LEAST = 2.0**-40


def mean_of(vectors: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    total = torch.zeros_like(vectors[0])
    for vector, weight in zip(vectors, weights, strict=True):
        total += weight * vector
    return total / sum(weights)


class Regional(Holder):
    """One worker with the state of its merges."""

    def __init__(self) -> None:
        super().__init__()
        self.moved_from = self.read()
        self.near: Kept = NEAR.begin(self.read())
        self.far: Kept = FAR.begin(self.read())
        self.unmerged = 0  # its samples since its last exchange

    def train(self, log: Log, worker: int, settles: int) -> None:
        """Take the steps up to this iteration."""
        for iteration in range(self.last + 1, settles + 1):
            if (step := (worker, iteration)) in log.steps:
                self.step_on(log.steps[step][1], {step})
                self.unmerged += len(log.steps[step][1])
        self.last = settles

    def go_on(self, replica: torch.Tensor) -> None:
        self.write(replica)
        self.moved_from, self.unmerged = self.read(), 0


class Threaded(Regional):
    """A worker of :mod:`elastic_threads`."""

    def __init__(self) -> None:
        super().__init__()
        self.model = elastic_threads.model()
        self.go_on(self.read())
        self.near, self.far = NEAR.begin(self.read()), FAR.begin(self.read())

    def step(self, ids: list[int]) -> None:
        x, *_ = elastic_script.dataset().tensors
        gradients = torch.autograd.grad(elastic_threads.loss(self.model, x[ids]), list(self.model.parameters()))
        moved = torch.cat([one.reshape(-1) for one in gradients])
        self.write(self.read() - elastic_script.LR * moved)


class Replay:
    """All workers of a run."""

    def __init__(self, log: Log, sites: dict[int, str], kind: type[Regional]) -> None:
        self.log, self.sites = log, sites
        self.all = {one: kind() for one in range(4)}
        self.members: tuple[int, ...] = (0, 1, 2, 3)
        self.donors: dict[int, int] = {}

    def run(self) -> Holder:
        before = -1
        for number, exchange in self.log.exchanges.items():
            there = tuple(sorted(one for group in exchange.groups for one in group))
            came = [one for one, (at, _) in self.log.joins.items() if at == number]
            if came:
                self.join(came, tuple(one for one in there if one not in came))
            self.members = there
            trained = exchange.settles > before or number == 0
            before = exchange.settles
            for one in there:
                self.all[one].train(self.log, one, exchange.settles)
            if not exchange.grouped:
                self.settle(trained)
            elif trained:
                self.meet_at_home(exchange)
            else:
                self.meet_across(exchange)
        return self.all[self.members[0]]

    def homes(self, members: tuple[int, ...]) -> list[list[int]]:
        return [
            home
            for site in sorted({*self.sites.values()})
            if (home := [one for one in members if self.sites[one] == site])
        ]

    def join(self, came: list[int], old: tuple[int, ...]) -> None:
        same = self.all[old[0]].read()
        assert all(torch.equal(self.all[one].read(), same) for one in old), "else a site's steps would count twice"
        first = len(self.homes(old)) == 1 and len(self.homes((*old, *came))) > 1
        for one in came:
            mates = [other for other in old if self.sites[other] == self.sites[one]]
            self.donors[one] = donor = (mates or old)[0]
            self.all[one] = deepcopy(self.all[donor])
            if not mates:
                self.all[one].near = NEAR.begin(self.all[one].read())
        for one in (*old, *came) if first else ():
            self.all[one].far = FAR.begin(self.all[one].read())

    def share(self, group: Sequence[int], mean: torch.Tensor) -> None:
        held = set[Step]().union(*(self.all[one].held for one in group))
        for one in group:
            self.all[one].held = {*held}
            self.all[one].go_on(mean)

    def meet_at_home(self, exchange: Exchanged) -> None:
        for group in exchange.groups:
            those = [self.all[one] for one in group]
            weights = [max(one.unmerged, LEAST) for one in those]
            moved = [one.read() - one.moved_from for one in those]
            mean = mean_of(moved, weights)
            assert all(torch.equal(one.moved_from, those[0].moved_from) for one in those), "a region has one replica"
            assert all(torch.equal(one.near["velocity"], those[0].near["velocity"]) for one in those)
            near, by = NEAR.combine(those[0].near, mean, sum(weights))
            for one in those:
                one.near = deepcopy(near)
            self.share(group, those[0].moved_from + by)

    def meet_across(self, exchange: Exchanged) -> None:
        for group in exchange.groups:
            leaders = [self.all[home[0]] for home in self.homes(group)]
            mean = mean_of([one.read() for one in leaders], [1.0] * len(leaders))
            far, outcome = FAR.combine(leaders[0].far, mean, len(leaders) * LEAST)
            for one in group:
                self.all[one].far = deepcopy(far)
            self.share(group, outcome)

    def settle(self, trained: bool) -> None:
        """An epoch ends with the mean of all, weighted by the steps that only some replicas have."""
        weights = dict.fromkeys(self.members, 0.0)
        for home in self.homes(self.members):
            weights[home[0]] = 1.0
        if trained:
            holders = {one: self.all[one].held for one in self.members}
            steps = set[Step]().union(*holders.values())
            weights = dict.fromkeys(self.members, LEAST)
            for step in steps:
                those = [one for one in self.members if step in holders[one]]
                for one in those if len(those) < len(self.members) else ():
                    weights[one] += len(self.log.steps[step][1]) / len(those)
        replicas = [self.all[one].read() for one in self.members]
        self.share(self.members, mean_of(replicas, [weights[one] for one in self.members]))


def replayed(
    folder: Path, faults: list[str], patch: pytest.MonkeyPatch, there: str, joins: str, threads: bool = False
) -> Replay:
    script = "elastic_threads.py" if threads else "elastic_merges.py"
    log = played(folder, SYNC, faults, patch, there, joins, script)
    replay = Replay(log, {**dict(enumerate(there.split(","))), 4: joins}, Threaded if threads else Regional)
    check(log, folder, replay.run())
    return replay


@pytest.mark.rest
def test_a_newcomer_has_the_momentum_of_its_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites a (0, 1) and b (2, 3): 3 dies in an exchange at home; 1 after one that 0 has not completed; 4 joins site
    b; 2 dies in the exchange between sites; 0 leaves."""
    faults = ["kill@3:0", "after@1:4", "late@0:4", "door@5", "kill@2:15", "leave@0:17"]
    replay = replayed(tmp_path, faults, monkeypatch, "a,a,b,b", "b")
    groups = {exchange.groups for exchange in replay.log.exchanges.values()}
    assert groups >= {((0, 1), (2,)), ((0,), (2,)), ((0, 2, 4),), ((0,), (2, 4)), ((0, 4),), ((4,),)}
    assert replay.donors == {4: 2}


def test_the_first_of_a_site_begins_where_all_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites a (0, 1) and b (2, 3), where 2 dies; 4 is the first of site c."""
    replay = replayed(tmp_path, ["kill@2:1", "door@5"], monkeypatch, "a,a,b,b", "c")
    assert replay.donors == {4: 0}
    assert ((0, 1), (3,), (4,)) in {exchange.groups for exchange in replay.log.exchanges.values()}


def test_a_site_that_comes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Site a (0, 1, 2) is alone when 3, the last of site b, dies in the exchange between sites; 4 joins site b."""
    replay = replayed(tmp_path, ["kill@3:3", "door@5", "leave@1:12"], monkeypatch, "a,a,a,b", "b")
    assert replay.donors == {4: 0}
    assert {step for step in replay.log.steps if step[0] == 3} - replay.all[0].held, "its site has no one left"
    assert replay.log.exchanges[4].groups == ((0, 1, 2),)
    assert ((0, 1, 2, 4),) in {exchange.groups for exchange in replay.log.exchanges.values()}


@pytest.mark.rest
def test_a_newcomer_with_the_last_exchange_of_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has taken no step when the epoch ends with the mean of all, 24 steps."""
    replay = replayed(tmp_path, ["leave@1:1", "door@14"], monkeypatch, "a,b,b,b", "a")
    across, settled = (replay.log.exchanges[number] for number in (15, 16))
    assert (across.settles, across.groups) == (23, ((0, 2, 3),))
    assert (settled.settles, settled.groups, settled.grouped) == (23, ((0, 2, 3, 4),), False)


@pytest.mark.rest
def test_with_several_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites a (0, 1) and b (2, 3): 3 dies in an exchange at home, 4 joins site b, and 2 dies between sites."""
    faults = ["kill@3:1", "door@5", "kill@2:11"]
    assert replayed(tmp_path, faults, monkeypatch, "a,a,b,b", "b", threads=True).donors == {4: 2}
