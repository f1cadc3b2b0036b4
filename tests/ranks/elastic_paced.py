"""Trains in an elastic run in which each worker goes at its own pace, and writes down what it gives to the others.

Usage: elastic_paced.py SYNC FOLDER EPOCHS [FAULT …]; a fault is before@W:N (worker W dies before its update number N),
noted@W:N (once it has noted what is in it, and sent nothing), gave@W:N (when it has arrived), late@W:N (W takes the
merge that it is in for failed, once somebody is gone), leave@W:N (told to leave before it), door@W:N (worker W does
not begin its update N before somebody asks to join), or far@W (the store is far from worker W).
"""

import json
import os
import signal
import sys
import time
import zlib
from pathlib import Path

import torch
import torch.nn.functional as F
from elastic_merges import model
from elastic_script import LR, be_late, dataset, wait_at_door

import uneven
from uneven_bench.inside import Inside, inside

X = 24
STEP_S = 0.004


def instrument(own: Inside, log: object, folder: Path, faults: list[str]) -> None:
    """Faults around the updates of this worker; what it gives, and what others say of a lost one, is logged."""
    elastic, updates = own.elastic, [0]
    worker = elastic.membership.worker

    def before(number: int) -> None:
        if f"late@{worker}:{updates[0]}" in faults and number == own.noted - 1:
            be_late(own)

    def merged() -> list[object]:
        """What came of a merge among all, the same bit for bit on each."""
        if not elastic.aside:
            return []
        assert own.noted == own.exchanges, "another merge than the one that was noted"
        return [zlib.crc32(elastic.merging._replica.for_newcomers().numpy().tobytes())]

    def die(kind: str) -> None:
        if f"{kind}@{worker}:{updates[0]}" in faults:
            os.kill(os.getpid(), signal.SIGKILL)

    def begins(update: int) -> None:
        if f"door@{worker}:{updates[0]}" in faults:
            wait_at_door(elastic.membership, folder)
        if f"leave@{worker}:{updates[0]}" in faults:
            session.leave()
        die("before")

    def gives(update: int, samples: object) -> None:
        log.write(json.dumps(["gives", update, samples]) + "\n")
        die("noted")

    def gave(update: int) -> None:
        log.write(json.dumps(["gave", update, *merged()]) + "\n")
        if f"gave@{worker}:{updates[0]}" in faults:
            time.sleep(0.2)  # in which another has it, too
        die("gave")
        updates[0] += 1

    def lost(one: int, arrived: int) -> None:
        log.write(json.dumps(["lost", one, arrived]) + "\n")

    if f"far@{worker}" in faults:
        near = elastic.claims._store.texts

        def far(keys: list[str]) -> list[str | None]:
            time.sleep(0.05)
            return near(keys)

        elastic.claims._store.texts = far
    own.rounds(before)
    own.updates(begins=begins, gives=gives, gave=gave, lost=lost)


def main(sync: str, folder: Path, epochs: int, faults: list[str]) -> None:
    global session
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    session = uneven.Session(balance="even", sync=sync)
    session.setup(net, optimizer)
    loader = session.loader(dataset(), global_batch_size=X)
    own = inside(session)
    log = (folder / f"{session.worker}.jsonl").open("a", buffering=1)
    instrument(own, log, folder, faults)
    for _ in range(loader.epoch, epochs):
        for x, y, ids in loader:
            part = inside(session).part
            log.write(json.dumps(["step", part.epoch, part.start, part.end, ids.tolist()]) + "\n")
            time.sleep(STEP_S)
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    with session.evaluation_model():
        torch.save(net.state_dict(), folder / f"{session.worker}.pt")
    session.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
