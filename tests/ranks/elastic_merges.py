"""Trains in an elastic run under a policy that merges replicas now and then, and writes down steps and merges.

Usage: elastic_merges.py SYNC FOLDER EPOCHS [FAULT …]; a fault is kill@W:N (before worker W's merge number N),
after@W:N (right after it), late@W:N (takes it for failed, when another one has not), leave@W:N (asked to leave before
it), leave@W:joined (before the first merge of a worker that joined), or door@N (no worker makes merge N before another
one asks to join).
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from elastic_script import LR, MOMENTUM, await_another, be_late, dataset, wait_at_door
from session_parts import Moving
from torch import nn

import uneven
from uneven_bench.inside import Inside, Round, inside

X = 25


def model() -> nn.Module:
    """Begins the same everywhere."""
    torch.manual_seed(0)
    # Of two outputs the rows would move equally, with opposite signs: rounding would decide which entry is the largest.
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def instrument(own: Inside, log: object, folder: Path, faults: list[str]) -> None:
    """Faults around the exchanges of this worker; complete ones are logged with those that are in them."""
    membership = own.elastic.membership
    worker = membership.worker

    def before(number: int) -> None:
        if f"door@{number}" in faults:
            wait_at_door(membership, folder)
        if f"late@{worker}:{number}" in faults:
            be_late(own)
        if f"kill@{worker}:{number}" in faults:
            os.kill(os.getpid(), signal.SIGKILL)
        joined = f"leave@{worker}:joined" in faults and bool(membership.generation.came)
        if joined or f"leave@{worker}:{number}" in faults:
            session.leave()

    def after(made: Round) -> None:
        kind = "gradients" if made.what.startswith("the gradient") else "merge"
        log.write(json.dumps([kind, made.number, made.settles, made.contributors, made.groups]) + "\n")
        if f"after@{worker}:{made.number}" in faults:
            await_another(folder / f"{worker}.jsonl")
            os.kill(os.getpid(), signal.SIGKILL)

    own.rounds(before, after)


def main(sync: str, folder: Path, epochs: int, faults: list[str]) -> None:
    global session
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    session = uneven.Session(balance=Moving(), sync=sync)
    session.setup(net, optimizer)
    loader = session.loader(dataset(), global_batch_size=X)
    own = inside(session)
    elastic = own.elastic
    log = (folder / f"{session.worker}.jsonl").open("a", buffering=1)
    instrument(own, log, folder, faults)
    first, new = loader.epoch, elastic.membership.generation.came
    if str(session.worker) in new:
        donor = min(one for one in elastic.members if str(one) not in new)
        log.write(json.dumps(["join", own.exchanges, donor]) + "\n")
    for _ in range(first, epochs):
        for x, y, ids in loader:
            part = inside(session).part
            mine = ids.tolist() if part.batch(session.worker) else []
            log.write(json.dumps(["step", part.epoch, part.iteration, mine]) + "\n")
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    with session.evaluation_model():
        torch.save(net.state_dict(), folder / f"{session.worker}.pt")
    session.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
