"""Trains in an elastic run in other ways than step by step, and writes down whose samples each step holds.

Usage: elastic_more.py WAY FOLDER EPOCHS [FAULT …]; a fault is kill@W:N (before worker W's exchange number N),
after@W:N (right after it), late@W:N (takes it for failed, when another one has not), or door@N (nobody makes exchange N
before somebody asks to join).
"""

import json
import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from elastic_script import LR, MOMENTUM, N, be_late, dataset
from session_parts import Moving
from torch import nn

import uneven

X, TOGETHER = 25, 3


class Branches(nn.Module):
    """Which parameters a pass uses depends on the samples in it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 2), nn.Linear(8, 2)
        self.never = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        rare = ids % 16 == 0
        out = self.first(x)
        return out + rare.unsqueeze(1) * self.second(x) if rare.any() else out


class Scaling(uneven.Part):
    """Divides each gradient by the size of the inputs, over all samples of the step and averaged over steps."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        self.average = torch.ones(8, dtype=torch.float64)
        self.inputs, self.ids = torch.zeros(0, 8), []
        self.told: list[tuple[int, ...]] = []

    def attach(self, run: uneven.Run) -> None:
        self.line, self.layer = run.lines.open("scaling"), run.model[0]

    def members_changed(self, members: tuple[int, ...]) -> None:
        self.told.append(members)

    def gradients_ready(self, step: uneven.Step, optimizer: torch.optim.Optimizer) -> None:
        wait_for_faults(self.elastic, self.faults)
        mine = torch.cat((self.inputs.square().sum(0) * bool(step.samples), torch.tensor([float(step.samples)])))
        self.line.sum(mine).wait()  # those that are there, and how many they are, whoever is lost meanwhile
        self.log.write(json.dumps([self.elastic.recovery.exchanges - 2, self.ids * bool(step.samples)]) + "\n")
        self.average.lerp_(mine[:-1] / mine[-1], 0.1)
        self.layer.weight.grad.div_(self.average.sqrt())
        die_after(self.elastic, self.faults)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.average.copy_(state["average"])


class Fading(nn.Module):
    """Counts its passes in a buffer that is in no checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.factor *= 0.99
        return x * self.factor


def model(way: str) -> nn.Module:
    """Begins the same everywhere."""
    torch.manual_seed(0)
    layers = nn.Linear(8, 6), nn.Tanh(), Fading(), nn.Linear(6, 2)
    return (Branches() if way == "unused" else nn.Sequential(*layers)).double()


def output(way: str, net: nn.Module, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return net(x, ids) if way == "unused" else net(x)


def wait_at_door(membership: object, folder: Path) -> None:
    """Let the test know that somebody is to come, and wait until it asks."""
    (folder / "door").touch()
    while not membership.watch.asked:
        time.sleep(0.01)


def wait_for_faults(elastic: object, faults: list[str]) -> None:
    """Before the next exchange of this worker."""
    number, worker = elastic.recovery.exchanges, elastic.membership.worker
    if f"door@{number}" in faults:
        wait_at_door(elastic.membership, Path(sys.argv[2]))
    if f"late@{worker}:{number}" in faults:
        be_late(elastic)
    if f"kill@{worker}:{number}" in faults:
        os.kill(os.getpid(), signal.SIGKILL)


def die_after(elastic: object, faults: list[str]) -> None:
    """Right after an exchange of this worker."""
    if f"after@{elastic.membership.worker}:{elastic.recovery.exchanges - 1}" in faults:
        os.kill(os.getpid(), signal.SIGKILL)


def main(way: str, folder: Path, epochs: int, faults: list[str]) -> None:
    net = model(way)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    parts = [Scaling(faults)] if way == "part" else []
    session = uneven.Session(balance=Moving(), parts=parts)
    session.setup(net, optimizer, find_unused_parameters=way == "unused")
    loader = session.loader(dataset(), batch_size=X)
    elastic = session._loop.context.elastic
    for one in parts:
        one.elastic, one.log = elastic, (folder / f"{session.worker}.part").open("a", buffering=1)
    log = (folder / f"{session.worker}.jsonl").open("a", buffering=1)
    together, held = TOGETHER if way == "together" else 1, []
    for _ in range(loader.epoch, epochs):
        for x, y, ids in loader:
            part = session._loop.part
            mine = ids.tolist() if part.batch(session.worker) else []
            held.append([elastic.recovery.exchanges, part.epoch, part.iteration, part.size, mine])
            ends = len(held) == together or part.end == N
            with nullcontext() if ends else session.no_sync():
                loss = F.cross_entropy(output(way, net, x, ids), y)
                for one in parts:
                    one.inputs, one.ids = x, ids.tolist()
                if ends:
                    wait_for_faults(elastic, faults)
                loss.backward()
            if ends:
                for one in held:
                    log.write(json.dumps(one) + "\n")
                held = []
                die_after(elastic, faults)
                optimizer.step()
                optimizer.zero_grad()
    torch.save(net.state_dict(), folder / f"{session.worker}.pt")
    for one in parts:
        assert one.told[-1] == elastic.members == one.line.members, one.told
    session.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
