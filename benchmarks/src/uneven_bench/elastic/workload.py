"""What every arm of ``uneven bench elastic`` trains: a network of a given size on numbered samples.

The model carries a ledger, a parameter with one entry for each sample and a learning rate of zero. Its gradient is not
zero just where a sample's gradient is in the sum that the optimizer is about to use, so each worker reads from the sum
itself which samples count, whatever the system that made the sum believes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from uneven.cli.demo.demo_training import network
from uneven.cli.demo.demo_worker import WIDTH
from uneven.cluster.virtual.datasets import digits

FEATURES, CLASSES = 64, 10
RATE, MOMENTUM = 0.02, 0.9

_SEED = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedWorkload:
    """A model and its data.

    Attributes:
        model_bytes: of the parameters, about.
        double: whether they are float64, so that a replay can be compared with the run to the last digits.
        samples: of the data set.
        global_batch: samples of all workers together in one step.
        per_sample_s: how long a worker sleeps for each of its samples; stands for the work of a device of its own, as
            all workers here share a few cores.
        demo: train the network of ``uneven demo`` on its digits, numbered over and over, in float32; it has the size
            that it has.
    """

    model_bytes: int = 4_000_000
    double: bool = False
    samples: int = 7200
    global_batch: int = 240
    per_sample_s: float = 0.02 / 60
    demo: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of parameters and inputs."""
        return torch.float64 if self.double else torch.float32

    @property
    def steps(self) -> int:
        """The least steps of an epoch."""
        return -(-self.samples // self.global_batch)

    def model(self) -> Counting:
        """The model, with the same weights on every call."""
        with torch.random.fork_rng():
            torch.manual_seed(_SEED)
            entries = self.model_bytes // self.dtype.itemsize
            layers = network(digits(), WIDTH) if self.demo else _dense(hidden(entries))
            return Counting(layers, self.samples).to(self.dtype)

    def data(self) -> NumberedSamples:
        """The data set."""
        if self.demo:
            x, y = digits().train.tensors
            again = torch.arange(self.samples) % len(y)
            return NumberedSamples(x[again], y[again])
        generator = torch.Generator().manual_seed(_SEED + 1)
        x = torch.randn(self.samples, FEATURES, generator=generator, dtype=self.dtype)
        return NumberedSamples(x, torch.randint(0, CLASSES, (self.samples,), generator=generator))

    def optimizer(self, model: Counting) -> torch.optim.Optimizer:
        """SGD with momentum; the ledger stays what it is."""
        groups: list[dict[str, Any]] = [{"params": model.layers.parameters()}, {"params": [model.ledger], "lr": 0.0}]
        return torch.optim.SGD(groups, RATE, MOMENTUM)

    def order(self, epoch: int) -> list[int]:
        """The samples of an epoch, shuffled, for the rivals, which bring no order of their own."""
        return torch.randperm(self.samples, generator=torch.Generator().manual_seed(epoch)).tolist()


def hidden(entries: int) -> int:
    """Width of both hidden layers for about so many parameters: the root of h² + (FEATURES + CLASSES + 2) h."""
    each = FEATURES + CLASSES + 2
    return max(1, round((math.sqrt(each * each + 4 * entries) - each) / 2))


def _dense(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, CLASSES)
    )


class NumberedSamples(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Samples that know their index."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.x[index], self.y[index], index

    def __getitems__(self, ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As a loader asks for a batch that :func:`as_it_is` leaves alone; the rivals' loops ask for theirs at once."""
        return self.batch(ids)

    def batch(self, ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """These samples, as a loader hands them out."""
        index = torch.tensor(ids, dtype=torch.int64)
        return self.x[index], self.y[index], index


def as_it_is(batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Collates what is a batch already."""
    return batch


class Counting(nn.Module):
    """The network, its ledger, and how many steps it has taken, which travels to a newcomer with the rest.

    Attributes:
        ledger: ``(samples,)``; see the module.
    """

    steps: torch.Tensor

    def __init__(self, layers: nn.Module, samples: int) -> None:
        super().__init__()
        self.layers = layers
        self.ledger = nn.Parameter(torch.zeros(samples))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """The mean loss of a batch; the ledger adds nothing to it."""
        return F.cross_entropy(self.layers(x), y) + self.ledger[index].mean()


def counted(model: Counting) -> list[int]:
    """Which samples are in the gradient that lies in ``model``, each as often as it is in it, in order."""
    gradient = model.ledger.grad
    if gradient is None:
        return []
    index = gradient.nonzero().flatten()
    times = (gradient[index] / gradient[index].min()).round().to(torch.int64) if len(index) else index
    return index.repeat_interleave(times).tolist()


def weights(model: Counting) -> Iterator[torch.Tensor]:
    """What is trained."""
    return (parameter.detach() for parameter in model.layers.parameters())
