"""The training of the demo: a small convolutional network on real images. The benches use it too."""

import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Sampler, TensorDataset

from uneven.cluster.virtual.datasets import ImageData
from uneven.policy.samples.order import epoch_order


def network(data: ImageData, width: int = 32) -> nn.Module:
    """Return two convolutions and two linear layers, with the same weights on every call."""
    torch.manual_seed(0)
    side = data.train.tensors[0].shape[-1]
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (side // 2) ** 2, 64),
        nn.ReLU(),
        nn.Linear(64, data.classes),
    )


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy, a scalar, of images (n, 1, height, width) and their classes (n,)."""
    return F.cross_entropy(model(x), y)


def most_likely(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return whether each sample's class is the likeliest one, bool ``(n,)``; arguments as of :func:`loss_of`."""
    return model(x).argmax(1) == y


@torch.no_grad()
def accuracy(
    model: nn.Module,
    dataset: TensorDataset,
    batch_size: int = 512,
    right: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor] = most_likely,
) -> float:
    """Return the part of the data set, with images (samples, 1, height, width), that the model predicts correctly, 0 …
    1. Leaves the model in training mode."""
    model.eval()
    x, y = dataset.tensors
    counts = (
        int(right(model, some, labels).sum())
        for some, labels in zip(x.split(batch_size), y.split(batch_size), strict=True)
    )
    found = sum(counts) / len(dataset)
    model.train()
    return found


class ReadyMark:
    """A record of when the last gradient of a backward pass is ready: that of the layer nearest to the input."""

    def __init__(self, model: nn.Module) -> None:
        self.ready_s = 0.0  # on the clock of ``time.perf_counter``
        self.worked_s = 0.0  # processor time of this process at that moment
        # The backward pass runs from the output to the input, so the first layer with parameters is the last.
        layer = next(layer for layer in model.modules() if list(layer.parameters(recurse=False)))
        for parameter in layer.parameters(recurse=False):
            parameter.register_post_accumulate_grad_hook(self._mark)

    def _mark(self, _: torch.Tensor) -> None:
        self.ready_s, self.worked_s = time.perf_counter(), time.process_time()


class FixedSampler(Sampler[list[int]]):
    """A sampler of this rank's slice of each global batch for a fixed split, in uneven's order of samples."""

    def __init__(self, length: int, shares: tuple[int, ...], rank: int) -> None:
        self.shares = shares
        self._length = length
        self._rank = rank
        self._epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        order = epoch_order(length=self._length, seed=0, epoch=self._epoch)
        self._epoch += 1
        total = sum(self.shares)
        for start in range(0, self._length, total):
            offset = start + sum(self.shares[: self._rank])
            yield order[offset : offset + self.shares[self._rank]].tolist()
