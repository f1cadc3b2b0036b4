"""Trains in an elastic run and writes down whose samples each step holds; some workers die, are late, or leave.

Usage: elastic_script.py FOLDER EPOCHS READERS [FAULT …]; a fault is kill@W:I (before the exchange of
iteration I), after@W:I (dies right after it), late@W:I (takes its exchange for failed, once somebody is gone or has
given it up), slow@W:I (half a second after it began), leave@W:I, until@W (there is one more epoch until W has left),
till@W (until an epoch after W has come), door@I (nobody goes on before somebody asks to join), fell@W:N (once N take
part, of whom W is the first, W dies before an exchange, and its launcher with it), stay@W (W says that it has come to
an exchange, and never enters it), save@I (the first of them saves after the step of iteration I, and all end there),
staged@W (W copies in host memory what it exchanges), cuda (all train on a GPU), or resume.
"""

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.run.lines import staging
from uneven.run.membership.generations import Membership
from uneven.runtime.membership_board import ASKED
from uneven_bench.inside import Inside, inside

N, X, LR, MOMENTUM = 600, 24, 0.05, 0.9


def dataset() -> TensorDataset:
    """Samples that know their number."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, 8, generator=generator, dtype=torch.float64)
    return TensorDataset(x, (x[:, 0] > 0).long(), torch.arange(N))


def model() -> nn.Module:
    """Begins the same everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, momentum=0.01), nn.Tanh(), nn.Linear(16, 2)).double()


def main(folder: Path, epochs: int, readers: int, faults: list[str]) -> None:
    device = "cuda" if "cuda" in faults else "cpu"
    net = model().to(device)
    net[1].eval()  # what batch norm computes would depend on who has which samples
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    session = uneven.Session()
    staging.forced = f"staged@{session.worker}" in faults
    session.setup(net, optimizer)
    own = inside(session)
    elastic = own.elastic
    if "resume" in faults:
        saved = torch.load(folder / "saved", weights_only=True)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        session.load_state_dict(saved["session"])
    loader = session.loader(dataset(), global_batch_size=X, num_workers=readers)
    worker = session.worker
    log = (folder / f"{worker}.jsonl").open("a", buffering=1)
    until = {int(one.removeprefix("until@")) for one in faults if one.startswith("until@")}
    till = {int(one.removeprefix("till@")) for one in faults if one.startswith("till@")}

    come = -1  # the epoch in which they have

    def members() -> set[int]:
        return {*elastic.members} if elastic is not None else set()  # resumed, a run need not be elastic

    def waits() -> bool:
        return bool(until & members() or (till and (come < 0 or loader.epoch <= come + 1)))

    while loader.epoch < epochs or waits():
        for x, y, ids in loader:
            time.sleep(0.01 if waits() else 0.0)
            part = inside(session).part
            at = part.iteration
            come = part.epoch if come < 0 and till <= members() else come
            if f"door@{at}" in faults:
                wait_at_door(elastic.membership, folder)
            if f"late@{worker}:{at}" in faults:
                be_late(own)
            if f"slow@{worker}:{at}" in faults:
                be_late(own, 0.5)
            loss = F.cross_entropy(net(x.to(device)), y.to(device))
            if f"kill@{worker}:{at}" in faults:
                await_others(folder, worker, elastic.members, 2)
                os.kill(os.getpid(), signal.SIGKILL)
            first = at % 8 == 7 and session.rank == 0
            if first and f"fell@{worker}:{session.world_size}" in faults:
                os.kill(os.getppid(), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            if at % 8 == 7 and f"stay@{worker}" in faults:
                (folder / "stays").touch()
                threading.Event().wait()
            if f"leave@{worker}:{at}" in faults:
                os.kill(os.getpid(), signal.SIGTERM)
            loss.backward()
            log.write(json.dumps([part.epoch, at, ids.tolist() if part.batch(worker) else []]) + "\n")
            if f"after@{worker}:{at}" in faults:
                await_another(folder / f"{worker}.jsonl")
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            optimizer.zero_grad()
            if f"save@{at}" in faults:
                state = {"model": net, "optimizer": optimizer, "session": session}
                if session.rank == 0:
                    torch.save({name: one.state_dict() for name, one in state.items()}, folder / "saved")
                session.close()
                return
    torch.save({name: one.cpu() for name, one in net.state_dict().items()}, folder / f"{worker}.pt")
    (folder / f"{worker}.place").write_text(f"{session.rank} of {session.world_size}")
    session.close()


def await_others(folder: Path, worker: int, members: Sequence[int], fields: int, suffix: str = ".jsonl") -> None:
    """Until all others are as far as this worker. One that is waiting for its last exchange gives it up, once it is
    looked at and somebody is dead, and then what is written down here was not used."""

    def last(one: int) -> list[Any] | None:
        lines = path.read_text().splitlines() if (path := folder / f"{one}{suffix}").exists() else []
        return json.loads(lines[-1])[:fields] if lines else None

    while any(last(one) != last(worker) for one in members):
        time.sleep(0.005)


def await_another(log: Path) -> None:
    """Until another worker has written as much: only then has somebody who lives on completed the exchange, too."""
    lines = len(log.read_text().splitlines())
    others = [one for one in log.parent.glob(f"*{log.suffix}") if one != log]
    while not any(len(one.read_text().splitlines()) >= lines for one in others):
        time.sleep(0.005)


def wait_at_door(membership: Membership, folder: Path) -> None:
    """Let the test know that a worker is to come, and wait until it asks, or another one has admitted it."""
    (folder / "door").touch()
    while not (membership.watch.asked or membership.board.look(f"admitted/{membership.board.count(ASKED)}")):
        time.sleep(0.01)


def be_late(own: Inside, within_s: float = math.inf) -> None:
    """This worker's next exchange has failed, as far as it knows, and that is when another one's has not.

    Args:
        within_s: or when this is over.
    """

    def gone() -> None:
        until_s = time.monotonic() + within_s
        while not own.elastic.membership.lost() and time.monotonic() < until_s:
            time.sleep(0.01)

    own.fail_round(gone)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
