"""The training script of ``uneven bench machines``. Its argument is JSON: host, folders, and the step of a fault."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import uneven
from uneven.runtime.world import discover
from uneven_bench.harness.witness import Witness, await_notes, begin, journal_at, note, numbered
from uneven_bench.machines.cases import BATCH, EPOCHS, SAMPLES

_MEET_WITHIN_S, _STRUCK_WITHIN_S = 90.0, 3.0
_STEP_S = 0.04
_WORKERS = 5  # more workers than a run ever has


def main(told: dict[str, Any]) -> None:
    begin()
    notes, host, worker = Path(told["notes"]), told["host"], discover().rank
    run = discover().run_directory
    assert run is not None
    if told["journal"]:  # on a disk that can hang or become full
        journal_at(run, worker, told["journal"])
    note(notes / f"here-{host}", [worker, os.getpid()])
    # No time-out may run while another worker starts.
    await_notes([notes / f"here-{other}" for other in told["hosts"]], _MEET_WITHIN_S)
    session = uneven.Session(nonfinite="raise")
    model = Witness(EPOCHS, SAMPLES, _WORKERS, worker)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session.setup(model, optimizer)
    loader = session.loader(numbered(SAMPLES), BATCH)
    step = 0
    with (notes / f"taken-{host}.jsonl").open("w", buffering=1) as taken:
        for epoch in range(loader.epoch, EPOCHS):
            for x, y, index in loader:
                taken.write(json.dumps([epoch, index.tolist()]) + "\n")
                step += 1
                if step == told["step"]:
                    await_notes([notes / f"strikes-{host}"], _STRUCK_WITHIN_S)
                model(x, y, epoch, index).backward()
                optimizer.step()
                optimizer.zero_grad()
                time.sleep(_STEP_S)
            with session.evaluation_model():
                if told["save"]:
                    torch.save([model.state_dict(), torch.zeros(2**18)], told["save"].format(epoch))
    with session.evaluation_model():
        note(notes / f"used-{host}", model.used.nonzero().tolist())
    session.close()
    (notes / f"done-{host}").touch()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
