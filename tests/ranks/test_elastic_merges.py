"""Replicas that are merged now and then, while workers are lost, leave and join: as one process that plays them all.

A step counts once it is in a merge. So what a worker is lost with since the last one comes again, and no sample is lost
or counts twice.
"""

from __future__ import annotations

import json
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import elastic_merges
import elastic_script
import elastic_threads
import pytest
import torch
import torch.nn.functional as F
from test_elastic import HERE, await_door, free_port, run

from tiers import rest
from uneven.policy.core.views import SyncView
from uneven.policy.merge import Combined, Merge
from uneven.policy.sync import policies

pytestmark = pytest.mark.timeout(200)

EPOCHS = 2


class Log:
    """What all workers have written down.

    Attributes:
        steps: worker → (epoch, iteration, samples) of each.
        merges: number → (iteration up to which it settles, whose replicas are in it).
        joins: worker → (number of the merge that it came after before the next, who gave it its state).
    """

    def __init__(self, folder: Path) -> None:
        self.steps: dict[int, list[tuple[int, int, list[int]]]] = {}
        self.merges: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.joins: dict[int, tuple[int, int]] = {}
        for path in folder.glob("*.jsonl"):
            worker = int(path.stem)
            for line in path.read_text().splitlines():
                kind, *rest = json.loads(line)
                if kind == "step":
                    self.steps.setdefault(worker, []).append((rest[0], rest[1], rest[2]))
                elif kind == "join":
                    self.joins[worker] = rest[0], rest[1]
                else:
                    number, settles, those, _ = rest
                    said = settles, tuple(those)
                    assert self.merges.setdefault(number, said) == said, "workers say different things of one merge"
        self.merges = dict(sorted(self.merges.items()))

    def in_merge(self, worker: int, number: int) -> list[tuple[int, int, list[int]]]:
        """Steps of a worker that are in a merge, and in none before."""
        before = max((settles for one, (settles, _) in self.merges.items() if one < number), default=-1)
        return [step for step in self.steps.get(worker, []) if before < step[1] <= self.merges[number][0]]


def check_samples(log: Log) -> None:
    for epoch in range(EPOCHS):
        used = Counter(
            one
            for number, (_, those) in log.merges.items()
            for worker in those
            for of, _, ids in log.in_merge(worker, number)
            if of == epoch
            for one in ids
        )
        assert sorted(used) == list(range(elastic_script.N)), "samples were lost"
        assert set(used.values()) == {1}, "samples were used twice"


class Played:
    """One worker, played in this process."""

    def __init__(self) -> None:
        self.model = elastic_merges.model()
        self.optimizer = self._sgd()
        self.samples = 0

    def _sgd(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=elastic_script.LR, momentum=elastic_script.MOMENTUM)

    def copy(self) -> Played:
        other = Played()
        other.model.load_state_dict(self.model.state_dict())
        other.optimizer.load_state_dict(deepcopy(self.optimizer.state_dict()))
        return other

    def step(self, ids: list[int]) -> None:
        x, y, _ = elastic_script.dataset().tensors
        self.optimizer.zero_grad()
        if ids:
            F.cross_entropy(self.model(x[ids]), y[ids]).backward()
        else:  # a batch that only fills up a last part: nothing is learnt from it
            for one in self.model.parameters():
                one.grad = torch.zeros_like(one)
        self.optimizer.step()
        self.samples += len(ids)

    def read(self) -> torch.Tensor:
        return torch.nn.utils.parameters_to_vector(self.model.parameters()).detach()

    def write(self, flat: torch.Tensor) -> None:
        torch.nn.utils.vector_to_parameters(flat.clone(), self.model.parameters())


def replayed(log: Log, merge: Merge) -> torch.Tensor:
    """What one process makes of the same steps and merges."""
    workers = {one: Played() for one in range(4)}
    kept: Any = merge.begin(workers[0].read())
    central = merge.combined is Combined.CENTRE
    outcome = workers[0].read()
    for number, (_, those) in log.merges.items():
        for one, (at, donor) in log.joins.items():
            if at == number:
                workers[one] = workers[donor].copy()
                if central:
                    workers[one].write(outcome)
        total, weights = torch.zeros_like(outcome), 0.0
        for one in those:
            for _, _, ids in log.in_merge(one, number):
                workers[one].step(ids)
            weight = max(merge.weight(workers[one].samples), 2.0**-40)
            given = merge.contribute(workers[one].read(), kept)
            total, weights = total + weight * given, weights + weight
            if central:
                workers[one].write(workers[one].read() - given)
        kept, outcome = merge.combine(kept, total if central else total / weights, weights)
        for one in those:
            if not central:
                workers[one].write(outcome)
            workers[one].samples = 0
    return outcome


def lost_joined_and_left(folder: Path, script: str, sync: str, end: int) -> tuple[Log, dict[str, torch.Tensor]]:
    """Worker 2 dies before a merge; 1 after one that 0 has not completed, the last of an epoch; 4 joins; 3 leaves."""
    faults = ["kill@2:0", "after@1:3", "late@0:3", "door@5", "leave@3:6"]
    port = free_port()
    meeting = f"127.0.0.1:{port}"
    words = [HERE / script, sync, folder, EPOCHS, *faults]
    with run("--nproc", 4, "--elastic", "1:4", "--rdzv-endpoint", meeting, "--run-dir", folder / "run", *words) as a:
        await_door(a, folder)
        with run("--join", meeting, "--run-dir", folder / "joined", *words) as b:
            said, said_there = a.communicate(100)[1], b.communicate(100)[1]
    assert (a.returncode, b.returncode) == (0, 0), said + said_there
    assert "worker 4 has joined" in said_there, said_there
    assert all(text in said for text in ("worker 3 got a request to leave", "rank 1 ", "rank 2 ")), said
    log = Log(folder)
    check_samples(log)
    assert log.merges[3] == (end, (0, 1, 3)), "the merge that ends the first epoch; the next was to be after 27"
    assert log.merges[0][1] == (0, 1, 3)
    models = {int(path.stem): torch.load(path) for path in folder.glob("*.pt")}
    assert set(models) == {0, 4}
    assert all(torch.equal(models[0][name], models[4][name]) for name in models[0])
    return log, models[0]


@pytest.mark.parametrize(
    "sync",
    [
        "local:every=7",
        rest("ma:every=7,by_samples=false"),
        rest("bmuf:every=7,momentum=0.5"),
        "diloco:every=7",
        "easgd:together=true,every=7,alpha=0.2",
    ],
)
def test_lost_joined_and_left(tmp_path: Path, sync: str) -> None:
    log, shown = lost_joined_and_left(tmp_path, "elastic_merges.py", sync, end=26)
    policy = policies.resolve(sync)
    (exchange,) = next(
        found for clock in range(9) if (found := policy.plan(SyncView(rank=0, clock=clock, members=(0, 1))).exchanges)
    )
    outcome = replayed(log, exchange.merge)
    assert (torch.cat([one.reshape(-1) for one in shown.values()]) - outcome).abs().max() < 1e-12


@pytest.mark.parametrize("sync", ["local:every=7", rest("ma:every=7,by_samples=false")])
def test_with_several_threads(tmp_path: Path, sync: str) -> None:
    log, shown = lost_joined_and_left(tmp_path, "elastic_threads.py", sync, end=25)
    merge = policies.resolve(sync).plan(SyncView(rank=0, clock=6, members=(0, 1))).exchanges[0].merge
    x, *_ = elastic_script.dataset().tensors
    net = elastic_threads.model()
    start = torch.nn.utils.parameters_to_vector(net.parameters()).detach()
    for number, (_, those) in log.merges.items():
        total, weights = torch.zeros_like(start), 0.0
        for one in those:
            ids = [sample for _, _, samples in log.in_merge(one, number) for sample in samples]
            gradient = torch.autograd.grad(elastic_threads.loss(net, x[ids]), list(net.parameters()))
            moved = torch.cat([part.reshape(-1) for part in gradient])
            weight = max(merge.weight(len(ids)), 2.0**-40)
            total, weights = total + weight * (start - elastic_script.LR * moved), weights + weight
        start = total / weights
    assert (torch.cat([one.reshape(-1) for one in shown.values()]) - start).abs().max() < 1e-12
