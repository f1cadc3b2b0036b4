"""Workers that meet in groups, while some are lost, leave and join: as one process that plays all replicas.

A sample counts as used as long as somebody's replica holds what was learnt from it. So what is in which replica is
worked out here anew, from what was in each exchange; and what all hold in the end has each sample of an epoch once.
"""

from __future__ import annotations

import json
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import elastic_script
import pytest
import torch
from test_elastic import HERE, await_door, free_port, run
from test_elastic_merges import EPOCHS, Played

from tiers import rest

pytestmark = pytest.mark.timeout(200)

Step = tuple[int, int]
"""Worker and iteration."""


@dataclass(frozen=True)
class Exchanged:
    """One exchange: of gradients or replicas, up to which iteration, who with whom, and whether groups were planned."""

    kind: str
    settles: int
    groups: tuple[tuple[int, ...], ...]
    grouped: bool


@dataclass
class Log:
    """What all workers have written down: samples of each step, exchanges by number, and who began with whose state."""

    steps: dict[Step, tuple[int, list[int]]] = field(default_factory=dict)
    exchanges: dict[int, Exchanged] = field(default_factory=dict)
    joins: dict[int, tuple[int, int]] = field(default_factory=dict)


def read(folder: Path) -> Log:
    log = Log()
    for path in folder.glob("*.jsonl"):
        worker = int(path.stem)
        for line in path.read_text().splitlines():
            kind, *rest = json.loads(line)
            if kind == "step":
                log.steps[worker, rest[1]] = rest[0], rest[2]
            elif kind == "join":
                log.joins[worker] = rest[0], rest[1]
            else:
                number, settles, those, groups = rest
                said = Exchanged(kind, settles, tuple(map(tuple, groups or [those])), groups is not None)
                assert log.exchanges.setdefault(number, said) == said, "workers say different things of one exchange"
    log.exchanges = dict(sorted(log.exchanges.items()))
    return log


class Holder(Played):
    """One worker, and whose steps its replica holds.

    Attributes:
        since: of these, the samples since its last merge.
        last: the last iteration whose step it has taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held: set[Step] = set()
        self.since, self.last = 0, -1

    def step_on(self, ids: list[int], steps: set[Step]) -> None:
        self.step(ids)
        self.held |= steps
        self.since += len(ids)


def replayed(log: Log, by_site: bool) -> Holder:
    """One of those that are there in the end, who then all have the same."""
    workers = {one: Holder() for one in range(4)}
    for number, exchange in log.exchanges.items():
        for one, (at, donor) in log.joins.items():
            if at == number:
                workers[one] = deepcopy(workers[donor])
        if exchange.kind == "gradients":
            average(log, workers, exchange)
        elif exchange.settles >= 0:
            merge(log, workers, exchange, by_site)
    last = list(log.exchanges.values())[-1]
    return workers[last.groups[0][0]]


def average(log: Log, workers: dict[int, Holder], exchange: Exchanged) -> None:
    for group in exchange.groups:
        steps = {(one, exchange.settles) for one in group if (one, exchange.settles) in log.steps}
        ids = [one for step in sorted(steps) for one in log.steps[step][1]]
        for one in group:
            workers[one].step_on(ids, steps)
            workers[one].last = exchange.settles
            workers[one].since *= len(exchange.groups) > 1  # else all have the same


def merge(log: Log, workers: dict[int, Holder], exchange: Exchanged, by_site: bool) -> None:
    for group in exchange.groups:
        for one in group:
            for iteration in range(workers[one].last + 1, exchange.settles + 1):  # that it took by itself
                if (step := (one, iteration)) in log.steps:
                    workers[one].step_on(log.steps[step][1], {step})
            workers[one].last = exchange.settles
        # A site's replicas are one, and count once.
        sites = Counter(tuple(sorted(workers[one].held)) for one in group) if by_site else Counter[tuple[Step, ...]]()
        shared = {one: sites[tuple(sorted(workers[one].held))] if by_site else 1 for one in group}
        weights = {one: max(workers[one].since / shared[one], 2.0**-40) for one in group}
        outcome = sum(weights[one] * workers[one].read() for one in group) / sum(weights.values())
        held = set[Step]().union(*(workers[one].held for one in group))
        for one in group:
            workers[one].write(outcome)
            workers[one].held, workers[one].since = {*held}, 0


def check(log: Log, folder: Path, end: Holder) -> None:
    """Compare with ``end``, one of the workers of a replay that are there in the end."""
    for epoch in range(EPOCHS):
        used = Counter(one for step in end.held if log.steps[step][0] == epoch for one in log.steps[step][1])
        assert sorted(used) == list(range(elastic_script.N)), "samples were lost"
        assert set(used.values()) == {1}, "samples were used twice"
    models = {int(path.stem): torch.load(path) for path in folder.glob("*.pt")}
    shown = {one: torch.cat([it.reshape(-1) for it in model.values()]) for one, model in models.items()}
    first, *others = shown.values()
    assert all(torch.equal(first, other) for other in others)
    assert (first - end.read()).abs().max() < 1e-12


def played(
    folder: Path,
    sync: str,
    faults: list[str],
    patch: pytest.MonkeyPatch,
    there: str,
    joins: str,
    script_name: str = "elastic_merges.py",
) -> Log:
    """What a run wrote down in which faults occur, and another worker joins; with the sites of the workers."""
    meeting = f"127.0.0.1:{free_port()}"
    script = [HERE / script_name, sync, folder, EPOCHS, *faults]
    first = ("--nproc", 4, "--elastic", "1:4", "--rdzv-endpoint", meeting, "--run-dir", folder / "run")
    patch.setenv("UNEVEN_SITE", there)
    with run(*first, *script) as a:
        await_door(a, folder)
        patch.setenv("UNEVEN_SITE", joins)
        with run("--join", meeting, "--run-dir", folder / "joined", *script) as b:
            said, said_there = a.communicate(100)[1], b.communicate(100)[1]
    assert (a.returncode, b.returncode) == (0, 0), said + said_there
    assert "worker 4 has joined" in said_there, said_there
    return read(folder)


@pytest.mark.parametrize("sync", ["shuffle:ma:every=4", rest("shuffle:groups=random,size=3:ma:every=3")])
def test_groups_that_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str) -> None:
    """Worker 2 dies before an exchange; 1 after one that 0 has not completed; 4 joins; then 3 leaves."""
    faults = ["kill@2:1", "after@1:3", "late@0:3", "door@5", "leave@3:joined"]
    log = played(tmp_path, sync, faults, monkeypatch, "a", "a")
    there = [{one for group in exchange.groups for one in group} for exchange in log.exchanges.values()]
    assert all(those in there for those in ({0, 1, 2, 3}, {0, 1, 3}, {0, 3, 4}, {0, 4}))
    check(log, tmp_path, replayed(log, by_site=False))


@pytest.mark.rest
def test_one_that_joins_with_the_last_merge_of_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has taken no step when all meet at the end of the epoch, 24 steps, and is where the others are."""
    log = played(tmp_path, "shuffle:ma:every=4", ["leave@2:1", "door@5"], monkeypatch, "a", "a")
    last, settled = (log.exchanges[number] for number in (5, 6))
    assert (last.settles, last.groups) == (23, ((0, 1, 3),))
    assert (settled.settles, settled.groups) == (23, ((0, 1, 3, 4),))
    check(log, tmp_path, replayed(log, by_site=False))


def test_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites a (0, 1, 2) and b (3): 3 dies with its site's steps since the last merge; 2 after gradients that 0 has not
    completed; 4 joins, at site b; 1 leaves."""
    faults = ["kill@3:7", "after@2:13", "late@0:13", "door@20", "leave@1:30"]
    log = played(tmp_path, "hierarchical:every=4", faults, monkeypatch, "a,a,a,b", "b")
    groups = {exchange.groups for exchange in log.exchanges.values()}
    assert groups >= {((0, 1, 2), (3,)), ((0, 1), (4,)), ((0, 4),)}
    end = replayed(log, by_site=True)
    assert {step for step in log.steps if step[0] == 3} - end.held, "its site has no one left"
    check(log, tmp_path, end)
