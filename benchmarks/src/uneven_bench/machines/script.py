"""The training script of ``uneven bench machines``. Its argument is JSON: host, folders, and the step of a fault."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.journal.reader import rank_path
from uneven.runtime.world import discover
from uneven_bench.machines.cases import BATCH, EPOCHS, SAMPLES

_MEET_WITHIN_S, _STRUCK_WITHIN_S = 90.0, 3.0
_STEP_S = 0.04
_COLUMNS = 5  # more workers than a run ever has


class Witness(nn.Module):
    """A small model that remembers who has used a sample: ``used`` (epochs, samples, workers) is then not zero."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
        self.used = nn.Parameter(torch.zeros(EPOCHS, SAMPLES, _COLUMNS))
        self._worker = worker

    def forward(self, x: torch.Tensor, epoch: int, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layers(x), self.used[epoch, :, self._worker][index].mean()


def main(told: dict[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    notes, host, worker = Path(told["notes"]), told["host"], discover().rank
    run = discover().run_directory
    assert run is not None
    if told["journal"]:  # on a disk that can hang or become full
        path = rank_path(run, worker)
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(told["journal"])
    _note(notes / f"here-{host}", [worker, os.getpid()])
    # No time-out may run while another worker starts.
    _await([notes / f"here-{other}" for other in told["hosts"]], _MEET_WITHIN_S)
    session = uneven.Session(nonfinite="raise")
    torch.manual_seed(1)
    model = Witness(worker)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session.setup(model, optimizer)
    dice = torch.Generator().manual_seed(7)
    x, y = torch.randn(SAMPLES, 5, generator=dice), torch.randint(0, 3, (SAMPLES,), generator=dice)
    loader = session.loader(TensorDataset(x, y, torch.arange(SAMPLES)), BATCH)
    step = 0
    with (notes / f"taken-{host}.jsonl").open("w", buffering=1) as taken:
        for epoch in range(loader.epoch, EPOCHS):
            for x, y, index in loader:
                taken.write(json.dumps([epoch, index.tolist()]) + "\n")
                step += 1
                if step == told["step"]:
                    _await([notes / f"strikes-{host}"], _STRUCK_WITHIN_S)
                scores, used = model(x, epoch, index)
                (F.cross_entropy(scores, y) + used).backward()
                optimizer.step()
                optimizer.zero_grad()
                time.sleep(_STEP_S)
            with session.evaluation_model():
                if told["save"]:
                    torch.save([model.state_dict(), torch.zeros(2**18)], told["save"].format(epoch))
    with session.evaluation_model():
        _note(notes / f"used-{host}", model.used.nonzero().tolist())
    session.close()
    (notes / f"done-{host}").touch()


def _note(path: Path, value: Any) -> None:
    half = path.with_suffix(".part")
    half.write_text(json.dumps(value))
    half.replace(path)


def _await(paths: list[Path], within_s: float) -> None:
    until_s = time.monotonic() + within_s
    while not all(one.exists() for one in paths) and time.monotonic() < until_s:
        time.sleep(0.01)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
