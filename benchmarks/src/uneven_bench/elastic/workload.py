"""The workload of every arm of ``uneven bench elastic``: a network of a given size on numbered samples.

The model carries a ledger, a parameter with one entry for each sample and a learning rate of zero. Its gradient is
non-zero exactly at the samples whose gradient is in the sum that the optimizer will use. So each worker reads the
samples from the sum itself, and need not trust the system that made it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from uneven.cli.demo.demo_training import network
from uneven.cli.demo.demo_worker import WIDTH
from uneven.cluster.virtual.datasets import digits
from uneven_bench.workloads.base import Images

FEATURES, CLASSES = 64, 10
RATE, MOMENTUM = 0.02, 0.9

_SEED = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedWorkload:
    """A model and its data."""

    model_bytes: int = 4_000_000  # of the parameters, about
    double: bool = False  # float64 parameters, so that a replay can be compared with the run to the last digits
    samples: int = 7200  # of the data set
    global_batch: int = 240  # samples of all workers together in one step
    # a worker's sleep for each of its samples; stands for the work of a device, as all workers here share a few cores
    per_sample_s: float = 0.02 / 60
    # train the network of ``uneven demo`` on its digits, numbered over and over, in float32, at its own size
    demo: bool = False

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.double else torch.float32

    @property
    def steps(self) -> int:
        """The least number of steps of an epoch."""
        return -(-self.samples // self.global_batch)

    def model(self) -> "Counting":
        """Return the model, with the same weights on every call."""
        with torch.random.fork_rng():
            torch.manual_seed(_SEED)
            entries = self.model_bytes // self.dtype.itemsize
            layers = network(digits(), WIDTH) if self.demo else _dense(hidden(entries))
            return Counting(layers, self.samples).to(self.dtype)

    def data(self) -> Images:
        """Return samples x (features), y and index."""
        index = torch.arange(self.samples)
        if self.demo:
            x, y = digits().train.tensors
            again = index % len(y)
            return Images(TensorDataset(x[again], y[again], index))
        generator = torch.Generator().manual_seed(_SEED + 1)
        x = torch.randn(self.samples, FEATURES, generator=generator, dtype=self.dtype)
        return Images(TensorDataset(x, torch.randint(0, CLASSES, (self.samples,), generator=generator), index))

    def optimizer(self, model: "Counting") -> torch.optim.Optimizer:
        """Return SGD with momentum, which leaves the ledger unchanged."""
        groups: list[dict[str, Any]] = [{"params": model.layers.parameters()}, {"params": [model.ledger], "lr": 0.0}]
        return torch.optim.SGD(groups, RATE, MOMENTUM)

    def order(self, epoch: int) -> list[int]:
        """Return the shuffled samples of an epoch, for the rivals, which bring no order."""
        return torch.randperm(self.samples, generator=torch.Generator().manual_seed(epoch)).tolist()


def hidden(entries: int) -> int:
    """Return the width of both hidden layers for about ``entries`` parameters: the root of h² + (FEATURES + CLASSES +
    2) h."""
    each = FEATURES + CLASSES + 2
    return max(1, round((math.sqrt(each * each + 4 * entries) - each) / 2))


def _dense(h: int) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, CLASSES))


class Counting(nn.Module):
    """The network, its ledger, and the number of its steps, which a newcomer receives with the rest. ``ledger``:
    ``(samples,)``; see the module."""

    steps: torch.Tensor

    def __init__(self, layers: nn.Module, samples: int) -> None:
        super().__init__()
        self.layers = layers
        self.ledger = nn.Parameter(torch.zeros(samples))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch, a scalar; the ledger adds nothing to it."""
        return F.cross_entropy(self.layers(x), y) + self.ledger[index].mean()


def counted(model: Counting) -> list[int]:
    """Return the samples in the gradient of ``model``, each as often as it is in it, in order."""
    gradient = model.ledger.grad
    if gradient is None:
        return []
    index = gradient.nonzero().flatten()
    times = (gradient[index] / gradient[index].min()).round().to(torch.int64) if len(index) else index
    return index.repeat_interleave(times).tolist()


def weights(model: Counting) -> Iterator[torch.Tensor]:
    return (parameter.detach() for parameter in model.layers.parameters())
