"""Evaluates in an elastic run in which two workers of three are lost, and writes down what was found.

Usage: elastic_evaluate.py FOLDER. Worker 2 dies in its second batch, worker 1 when it has counted all of its own.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from elastic_script import X, dataset, model

import uneven
from uneven_bench.inside import inside

DATA = dataset()


def counts(net: torch.nn.Module, batch: object) -> dict[str, object]:
    x, y, ids = batch
    logits = net(x)
    return {
        "loss": F.cross_entropy(logits, y, reduction="sum"),
        "right": (logits.argmax(1) == y).sum(),
        "seen": F.one_hot(ids, len(DATA)).sum(0),
    }


def main(folder: Path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    session = uneven.Session()
    session.barrier()
    session.setup(net, optimizer)
    loader = session.loader(DATA, global_batch_size=X)
    for number, (x, y, _) in enumerate(loader):
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 3:
            break
    (folder / f"{session.worker}.mean").write_text(str(net[1].running_mean.tolist()))
    membership = inside(session).elastic.membership
    batches = 0

    def dying(batch: object) -> dict[str, object]:
        nonlocal batches
        batches += 1
        if session.worker == 2 and batches == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        # Else 2 might have no second batch.
        while batches == 1 and session.worker != 2 and not membership.lost():
            time.sleep(0.005)
        return counts(net, batch)

    if session.worker == 1:
        inside(session).rounds(lambda number: os.kill(os.getpid(), signal.SIGKILL))
    found = session.evaluate(dying, DATA, global_batch_size=24)
    again = session.evaluate(lambda batch: counts(net, batch), DATA, global_batch_size=24)
    session.barrier()  # of the workers that are left
    session.save(again, folder / "again.pt")
    whole = counts(net.eval(), DATA.tensors)
    told = {
        "workers": session.world_size,
        "seen": [sorted(set(one["seen"].tolist())) for one in (found, again)],
        "right": [int(one["right"]) for one in (found, again, whole)],
        "loss": [float(one["loss"]) for one in (found, again, whole)],
    }
    (folder / f"{session.worker}.json").write_text(json.dumps(told))
    session.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
