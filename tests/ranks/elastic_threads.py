"""Trains in an elastic run with several threads a worker, and writes down steps and merges.

Usage: elastic_threads.py SYNC FOLDER EPOCHS [FAULT …]; see elastic_merges.py. The loss is linear in the parameters, so
the order of a worker's steps does not matter.
"""

import json
import sys
import threading
from pathlib import Path
from typing import Any

import elastic_merges
import torch
from elastic_script import LR, dataset
from torch import nn

import uneven
from uneven_bench.inside import inside

X, THREADS = 25, 3


def model() -> nn.Module:
    """Begins the same everywhere."""
    torch.manual_seed(0)
    return nn.Linear(8, 2).double()


def loss(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return net(x).sum() / X


def main(sync: str, folder: Path, epochs: int, faults: list[str]) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    session = elastic_merges.session = uneven.Session(balance="even", sync=sync, threads=THREADS)
    session.setup(net, optimizer)
    loader = session.loader(dataset(), global_batch_size=X)
    own, writing = inside(session), threading.Lock()
    log = (folder / f"{session.worker}.jsonl").open("a", buffering=1)
    elastic_merges.instrument(own, log, folder, faults)
    first, new = loader.epoch, own.elastic.membership.generation.came
    if str(session.worker) in new:
        donor = min(one for one in own.elastic.members if str(one) not in new)
        log.write(json.dumps(["join", own.exchanges, donor]) + "\n")

    def loop(net: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
        for x, _, ids in batches:
            loss(net, x).backward()
            with writing:  # two steps at the same time may lose an addition
                log.write(json.dumps(["step", own.part.epoch, own.part.iteration, ids.tolist()]) + "\n")
                optimizer.step()
            optimizer.zero_grad()

    for _ in range(first, epochs):
        session.train(loop)
    with session.evaluation_model():
        torch.save(net.state_dict(), folder / f"{session.worker}.pt")
    session.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
