"""An evaluation that all workers share, each as fast as it is.

A counter in the store that the ranks met at says how far the data set has been handed out. A worker takes its next
batch from it when it is done with the last one: as large as its share of the training's batches, so that one takes all
about equally long, and smaller and smaller towards the end, so that all end together (guided self-scheduling).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from uneven.data.stream import is_stream
from uneven.errors import ConfigError, DataError

Found = float | Tensor | Mapping[str, float | Tensor]
"""What is counted over a batch."""

Kinds = dict[str, tuple[list[int], bool]]
"""Names of totals: their shapes, and whether they are whole numbers."""

_AHEAD = 2
"""A batch is at most this part of what a worker would still get if all went on as fast."""

_SINGLE = ""
"""The name of a total that is alone."""


class TakenPositions:
    """The batches of one worker as indices, for torch's ``DataLoader``.

    Args:
        take: moves the counter on by so many; where it was.
        length: samples of the data set.
        most: in a batch of this worker.
        part: of all work that this worker does, as far as is known: 0 … 1.
    """

    def __init__(self, take: Callable[[int], int], length: int, most: int, part: float) -> None:
        self._take, self._length = take, length
        self._most, self._part = most, part

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        while True:
            left = math.ceil((self._length - start) * self._part / _AHEAD)
            size = max(1, min(self._most, left))
            start = self._take(size)
            if start >= self._length:
                return
            yield [*range(start, min(start + size, self._length))]


class EvaluatedTotals:
    """Sums over the batches of a worker, by name; kept in float64, in which whole numbers are exact up to 2⁵³."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.whole: dict[str, bool] = {}

    def add(self, found: Found) -> None:
        """Add what was found in a batch.

        Raises:
            DataError: it is neither a number nor a tensor nor a dictionary of them; or not what it was before.
        """
        named = dict(found) if isinstance(found, Mapping) else {_SINGLE: found}
        for name, value in named.items():
            if not isinstance(name, str) or not isinstance(value, int | float | Tensor):
                raise DataError(
                    f"session.evaluate: the function returned {name!r}: {type(value).__name__}; return a number, a "
                    f"tensor, or a dictionary of such by name: sums over the batch"
                )
        counts = {name: torch.as_tensor(value).detach() for name, value in named.items()}
        if not self.sums:
            self.sums = {name: torch.zeros(one.shape, dtype=torch.float64) for name, one in counts.items()}
            self.whole = {name: not one.dtype.is_floating_point for name, one in counts.items()}
        if {name: one.shape for name, one in counts.items()} != {name: one.shape for name, one in self.sums.items()}:
            raise DataError(
                f"session.evaluate: the function returned {_shapes(counts)} after {_shapes(self.sums)}: the same sums "
                f"are expected of every batch"
            )
        for name, one in counts.items():
            self.sums[name] += one.to("cpu", torch.float64)

    def describe(self) -> str:
        """Names, shapes and kinds, for a worker that has had no batch."""
        return json.dumps({name: (one.shape, self.whole[name]) for name, one in self.sums.items()})

    def flat(self, kinds: Kinds) -> Tensor:
        """One axis, the same on every worker, and one number more, as some have no totals."""
        empty = {name: torch.zeros(shape, dtype=torch.float64) for name, (shape, _) in kinds.items()}
        whole = [self.sums.get(name, zeros).reshape(-1) for name, zeros in empty.items()]
        return torch.cat([torch.zeros(1, dtype=torch.float64), *whole])

    @classmethod
    def of(cls, flat: Tensor, kinds: Kinds) -> EvaluatedTotals:
        """Inverse of :meth:`flat`."""
        pieces = flat[1:].split([math.prod(shape) for shape, _ in kinds.values()])
        found = cls()
        found.sums = {
            name: piece.reshape(shape) for piece, (name, (shape, _)) in zip(pieces, kinds.items(), strict=True)
        }
        found.whole = {name: exact for name, (_, exact) in kinds.items()}
        return found

    def add_all(self, other: EvaluatedTotals) -> None:
        """Those of another part of the data set."""
        self.whole |= other.whole
        for name, one in other.sums.items():
            self.sums[name] = self.sums[name] + one if name in self.sums else one

    def as_given(self) -> Any:
        """As the function returned them."""
        found = {name: _as_given(one, self.whole[name]) for name, one in self.sums.items()}
        return found[_SINGLE] if [*found] == [_SINGLE] else found

    def over_all(self, texts: list[str], add_up: Callable[[Tensor], Any]) -> Any:
        """Everybody's totals, as the function returned them.

        Args:
            texts: everybody's :meth:`describe`.
            add_up: replaces a tensor by its sum over all workers.
        """
        kinds: Kinds = next((found for text in texts if (found := json.loads(text))), {})
        flat = self.flat(kinds)
        add_up(flat)
        return EvaluatedTotals.of(flat, kinds).as_given()


def _as_given(total: Tensor, whole: bool) -> float | int | Tensor:
    if total.dim():
        return total.to(torch.int64) if whole else total
    return int(total.item()) if whole else total.item()


def _shapes(found: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name or 'a total'} of shape {tuple(one.shape)}" for name, one in found.items())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode and no gradients are kept; then all is as it was."""
    modes = [(layer, layer.training) for layer in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for layer, training in modes:
            layer.training = training


def batches_of(dataset: Any, positions: Iterable[list[int]], options: dict[str, Any]) -> DataLoader[Any]:
    """This worker's batches.

    Raises:
        ConfigError: ``options`` holds what is decided here.
    """
    if wrong := sorted(set(options) & {"shuffle", "sampler", "batch_sampler", "drop_last", "generator"}):
        raise ConfigError(f"session.evaluate({wrong[0]}=…): each sample is used once, by who is free; leave it out")
    # A generator of its own: torch draws a seed when a loader begins, and the script's random numbers are to stay.
    return DataLoader(dataset, batch_sampler=positions, generator=torch.Generator(), **options)


def check_evaluated(dataset: Any) -> int:
    """Samples in the data set.

    Raises:
        DataError: it is a stream, or empty.
    """
    if is_stream(dataset) or len(dataset) == 0:
        raise DataError(
            f"session.evaluate on a {type(dataset).__name__}: give a data set with __len__, at least 1, and __getitem__"
        )
    return len(dataset)
