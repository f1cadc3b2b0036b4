"""A model and its data, and the stretches of the data that one block of training uses."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from uneven.cli.demo.demo_training import accuracy, loss_of, most_likely

MeanLoss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def first(dataset: TensorDataset, samples: int) -> Subset[tuple[torch.Tensor, ...]]:
    """Return the first ``samples``, repeated if the data set is smaller."""
    return Subset(dataset, [index % len(dataset) for index in range(samples)])


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWorkload:
    """A model and its data. ``train, test``: inputs and labels."""

    about: str  # a description, with the stand-ins for missing real data
    train: TensorDataset
    test: TensorDataset
    make: Callable[[], nn.Module]  # the model, with the same weights on every call
    loss: MeanLoss = loss_of  # mean over a batch
    # the correctly classified samples of a batch
    right: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor] = most_likely
    rate: float = 0.02  # of plain SGD with a momentum of 0.9
    whole: bool = False  # fetch a whole batch, if one sample is too little work

    def accuracy(self, model: nn.Module) -> float:
        """Return the share of held-out samples that the model classifies correctly."""
        return accuracy(model, self.test, right=self.right)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.rate, momentum=0.9)


class Images(Dataset[Any]):
    """A data set that returns whole batches."""

    def __init__(self, data: TensorDataset) -> None:
        self._tensors = data.tensors

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitem__(self, place: int | list[int]) -> tuple[torch.Tensor, ...]:
        """Return a sample; or of several places a batch, images (n, …) and labels (n,), as torch's loader asks for."""
        return tuple(tensor[place] for tensor in self._tensors)

    __getitems__ = __getitem__


class Stretch(Dataset[tuple[torch.Tensor, ...]]):
    """The next ``samples`` samples of a data set in every block, from its beginning again after its end, so that a
    loader's epoch is a block. The order does not depend on how ``data`` is stored."""

    def __init__(self, data: TensorDataset, samples: int) -> None:
        self._data = data
        self._samples = samples
        self._order = np.random.default_rng(0).permutation(len(data))
        self._offset = 0

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, place: int) -> tuple[torch.Tensor, ...]:
        return self._data[int(self._order[(self._offset + place) % len(self._order)])]

    def turn(self, block: int) -> None:
        """Choose the samples of this block, counted from 0."""
        self._offset = block * self._samples

    def take(self, places: Any) -> tuple[torch.Tensor, ...]:
        """Return the samples at these places, as one batch."""
        rows = torch.from_numpy(self._order[(self._offset + np.asarray(places)) % len(self._order)])
        return tuple(tensor[rows] for tensor in self._data.tensors)


class WholeStretch(Stretch):
    """A stretch for loaders that fetch a whole batch; their ``collate_fn`` is :func:`whole`."""

    def __getitems__(self, places: list[int]) -> tuple[torch.Tensor, ...]:
        """Return a batch for torch's loader: inputs (n, …) and labels (n,)."""
        return self.take(places)


def whole(batch: Any) -> Any:
    """Return a batch that is complete already."""
    return batch


def for_ever(loader: Any) -> Generator[Any, None, None]:
    """Yield the batches of a loader, epoch after epoch."""
    while True:
        yield from loader


def stretch(work: TrainingWorkload, samples: int) -> tuple[Stretch, dict[str, Any]]:
    """Return the data of one arm, and the arguments of its loader."""
    if work.whole:
        return WholeStretch(work.train, samples), {"collate_fn": whole}
    return Stretch(work.train, samples), {}
