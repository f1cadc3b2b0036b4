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


def wait_for_faults(elastic: object, faults: list[str]) -> None:
    """Before the next exchange of this worker."""
    number, worker = elastic.recovery.exchanges, elastic.membership.worker
    if f"door@{number}" in faults:
        while not elastic.membership.watch.asked:
            time.sleep(0.01)
    if f"late@{worker}:{number}" in faults:
        be_late(elastic)
    if f"kill@{worker}:{number}" in faults:
        os.kill(os.getpid(), signal.SIGKILL)


def main(way: str, folder: Path, epochs: int, faults: list[str]) -> None:
    net = model(way)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    session = uneven.Session(balance=Moving())
    session.setup(net, optimizer, find_unused_parameters=way == "unused")
    loader = session.loader(dataset(), batch_size=X)
    elastic = session._loop.context.elastic
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
                if ends:
                    wait_for_faults(elastic, faults)
                loss.backward()
            if ends:
                for one in held:
                    log.write(json.dumps(one) + "\n")
                held = []
                if f"after@{session.worker}:{elastic.recovery.exchanges - 1}" in faults:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()
                optimizer.zero_grad()
    torch.save(net.state_dict(), folder / f"{session.worker}.pt")
    session.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
