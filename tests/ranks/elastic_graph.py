"""Trains on a cut graph in an elastic run, and writes down the weights after each step.

Usage: elastic_graph.py FOLDER STEPS [FAULT …]; a fault is kill@W:N (worker W dies in the forward pass of its step N),
leave@W:N (it leaves in step N), or door@N (nobody goes on before somebody asks to join).
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from elastic_script import wait_at_door
from torch import nn

import uneven
from uneven import graph
from uneven_bench.inside import inside

WIDTH, CLASSES = 9, 3


class Net(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = graph.SAGEConv(WIDTH, 6), graph.GCNConv(6, CLASSES)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor, g: graph.PartedGraph, dies: bool) -> torch.Tensor:
        """Rows of this worker."""
        h = self.first(x, g)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.second(F.relu(self.norm(h)), g)


def learn(
    g: graph.PartedGraph, net: nn.Module, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor, dies: bool
) -> None:
    """The gradient of a step."""
    g.loss(F.cross_entropy, net(x, g, dies), y, mask).backward()


def model() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Begins the same everywhere."""
    torch.manual_seed(0)
    net = Net().double()
    return net, torch.optim.Adam(net.parameters(), lr=0.05, weight_decay=1e-3)


def main(folder: Path, steps: int, faults: list[str]) -> None:
    torch.set_num_threads(1)
    g = graph.load(folder / "parts")
    session = uneven.Session(callbacks=[g])
    net, optimizer = session.setup(*model())
    elastic = inside(session).elastic
    log = (folder / f"{session.worker}.jsonl").open("a", buffering=1)
    x = y = mask = torch.empty(0)
    for step in range(session.steps_taken(samples=g.samples), steps):
        if g.rebalance():
            x, y, mask = g.x, g.y, g.tensor("mask")
        with session.step(samples=g.samples):
            learn(g, net, x, y, mask, f"kill@{session.worker}:{step}" in faults)
            optimizer.step()
            optimizer.zero_grad()
            if f"door@{step}" in faults:
                wait_at_door(elastic.membership, folder)
            if f"leave@{session.worker}:{step}" in faults:
                os.kill(os.getpid(), signal.SIGTERM)
        weights = [one.detach().flatten().tolist() for one in (*net.parameters(), *net.buffers())]
        log.write(json.dumps({"step": step, "size": g.size, "weights": weights}) + "\n")
    session.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
