"""The training of runs with faults: a model that remembers who has used which sample, and notes to the bench."""

import json
import resource
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from uneven.journal.reader import rank_path
from uneven_bench.harness.program import write_whole

_FEATURES, _CLASSES = 5, 3
_LOOK_EVERY_S = 0.01


class Witness(nn.Module):
    """A small model whose ``used`` (epochs, samples, workers) is not zero where this worker used a sample; later epochs
    count as the last one."""

    def __init__(self, epochs: int, samples: int, workers: int = 1, worker: int = 0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(_FEATURES, 8), nn.Tanh(), nn.Linear(8, _CLASSES))
        self.used = nn.Parameter(torch.zeros(epochs, samples, workers))
        self._worker = worker

    def forward(self, x: torch.Tensor, y: torch.Tensor, epoch: int, index: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        used = self.used[min(epoch, len(self.used) - 1), :, self._worker]
        return F.cross_entropy(self.layers(x), y) + used[index].mean()


def numbered(samples: int) -> TensorDataset:
    """Return samples that know their index."""
    dice = torch.Generator().manual_seed(7)
    x = torch.randn(samples, _FEATURES, generator=dice)
    return TensorDataset(x, torch.randint(0, _CLASSES, (samples,), generator=dice), torch.arange(samples))


def begin() -> None:
    """Use one thread, and leave no core file."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def journal_at(run: Path, rank: int, target: str) -> None:
    """Let a worker's journal be this file."""
    path = rank_path(run, rank)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)


def note(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value))


def await_notes(paths: Iterable[Path], within_s: float) -> bool:
    """Wait until all these files are there, and return whether they are."""
    awaited, until_s = list(paths), time.monotonic() + within_s
    while not (there := all(one.exists() for one in awaited)) and time.monotonic() < until_s:
        time.sleep(_LOOK_EVERY_S)
    return there
