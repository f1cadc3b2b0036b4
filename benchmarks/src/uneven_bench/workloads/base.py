"""A model and the data it is trained on, and the stretches of the data that one block of training uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from uneven.cli.demo.demo_training import accuracy, loss_of, most_likely

MeanLoss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def first(dataset: TensorDataset, samples: int) -> Subset[tuple[torch.Tensor, ...]]:
    """So many samples from the beginning, over again if the data set is smaller."""
    return Subset(dataset, [index % len(dataset) for index in range(samples)])


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWorkload:
    """A model and what it is trained on.

    Attributes:
        about: in words, with what stands in for what where real data is missing.
        train, test: inputs and labels.
        make: the model, with the same weights on every call.
        loss: mean over a batch.
        right: which samples of a batch the model gets right.
        rate: of plain SGD with a momentum of 0.9.
        whole: fetch a batch at once, where one sample is too little work to be fetched by itself.
    """

    about: str
    train: TensorDataset
    test: TensorDataset
    make: Callable[[], nn.Module]
    loss: MeanLoss = loss_of
    right: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor] = most_likely
    rate: float = 0.02
    whole: bool = False

    def accuracy(self, model: nn.Module) -> float:
        """Share of the held-out samples that the model gets right."""
        return accuracy(model, self.test, right=self.right)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        """The same for every way to train it."""
        return torch.optim.SGD(parameters, lr=self.rate, momentum=0.9)


class Stretch(Dataset[tuple[torch.Tensor, ...]]):
    """So many samples of a data set, the next ones in every block, over again from its beginning.

    An epoch of a loader is a block then, and in the course of several blocks every sample is used.

    Args:
        data: inputs and labels; taken in an order that does not depend on how they are stored.
        samples: of a block.
    """

    def __init__(self, data: TensorDataset, samples: int) -> None:
        self._data, self._samples = data, samples
        self._order = np.random.default_rng(0).permutation(len(data))
        self._offset = 0

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, place: int) -> tuple[torch.Tensor, ...]:
        return self._data[int(self._order[(self._offset + place) % len(self._order)])]

    def turn(self, block: int) -> None:
        """From now on the samples of this block, counted from 0."""
        self._offset = block * self._samples

    def take(self, places: Any) -> tuple[torch.Tensor, ...]:
        """The samples at these places, as one batch."""
        rows = torch.from_numpy(self._order[(self._offset + np.asarray(places)) % len(self._order)])
        return tuple(tensor[rows] for tensor in self._data.tensors)


class WholeStretch(Stretch):
    """The same for loaders that fetch a batch at once; their ``collate_fn`` is :func:`whole`."""

    def __getitems__(self, places: list[int]) -> tuple[torch.Tensor, ...]:
        """What torch's loader asks for if it is there."""
        return self.take(places)


def whole(batch: Any) -> Any:
    """What is a batch already."""
    return batch


def stretch(work: TrainingWorkload, samples: int) -> tuple[Stretch, dict[str, Any]]:
    """The data of one arm, and the arguments that its loader needs."""
    if work.whole:
        return WholeStretch(work.train, samples), {"collate_fn": whole}
    return Stretch(work.train, samples), {}
