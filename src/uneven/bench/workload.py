"""What the demo and the benches train: a small convolutional network on real images, and one pass over them."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Subset, TensorDataset

from uneven.data.datasets import ImageData, digits, fashion_mnist
from uneven.errors import UnknownNameError

DATA = {"digits": digits, "fashion-mnist": fashion_mnist}


@lru_cache(maxsize=1)
def images(name: str) -> ImageData:
    """"digits" (ships with scikit-learn) or "fashion-mnist" (from the folder named by ``UNEVEN_DATA``).

    Raises:
        UnknownNameError: no such data set.
        DataError: it is not on this machine; says how to get it.
    """
    if name not in DATA:
        raise UnknownNameError("data set", name, DATA)
    return DATA[name]()


def network(data: ImageData, width: int = 32) -> nn.Module:
    """Two convolutions and two linear layers; the same weights on every call."""
    torch.manual_seed(0)
    side = data.train.tensors[0].shape[-1]
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(2 * width * (side // 2) ** 2, 64), nn.ReLU(),
        nn.Linear(64, data.classes),
    )  # fmt: skip


def first(dataset: TensorDataset, samples: int) -> Subset[tuple[torch.Tensor, ...]]:
    """So many samples from the beginning, over again if the data set is smaller."""
    return Subset(dataset, [index % len(dataset) for index in range(samples)])


@torch.no_grad()
def accuracy(model: nn.Module, dataset: TensorDataset, batch_size: int = 512) -> float:
    """Share of the data set that the model gets right, 0 … 1. Leaves the model in training mode."""
    model.eval()
    x, y = dataset.tensors
    right = sum(
        int((model(some).argmax(1) == labels).sum())
        for some, labels in zip(x.split(batch_size), y.split(batch_size), strict=True)
    )
    model.train()
    return right / len(dataset)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the batch."""
    return F.cross_entropy(model(x), y)
