"""An evaluation that all workers share, each at its own speed.

A counter in the store holds how much of the data set has been dispatched. A worker takes its next batch from it when it
has finished the last one. Batches are as large as its share of training batches, so that each takes about equally long.
They shrink towards the end, so that all workers end together (guided self-scheduling).
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from uneven.errors import ConfigError, DataError
from uneven.run.samples.stream import is_stream

Found = float | Tensor | Mapping[str, float | Tensor]
"""The counts over a batch."""

Kinds = dict[str, tuple[list[int], bool]]
"""Names of totals → their shapes, and whether they are integers."""

# A batch is at most 1/2 of the samples that a worker would still get if all continued at the same speed.
_AHEAD = 2

_SINGLE = ""  # the name of an unnamed total


class TakenPositions:
    """The batches of one worker as indices, for torch's ``DataLoader``.

    Args:
        take: adds to the counter, and returns its old value.
        part: estimated part of all work that this worker does: 0 … 1.
    """

    def __init__(self, take: Callable[[int], int], length: int, most: int, part: float) -> None:
        self._take = take
        self._length = length
        self._most = most
        self._part = part

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        while True:
            # `start` is a little old, but reading the counter first would cost another round trip.
            left = math.ceil((self._length - start) * self._part / _AHEAD)
            size = max(1, min(self._most, left))
            start = self._take(size)
            if start >= self._length:
                return
            yield [*range(start, min(start + size, self._length))]


class EvaluatedTotals:
    """Named sums over the batches of a worker, in float64, which is exact for integers up to 2⁵³."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.whole: dict[str, bool] = {}

    def add(self, found: Found) -> None:
        """Add the counts of a batch; raise :class:`DataError` if they have another form than before, or an
        unsupported one."""
        named = dict(found) if isinstance(found, Mapping) else {_SINGLE: found}
        for name, value in named.items():
            ours = isinstance(name, str) and isinstance(value, int | float | Tensor)
            if not ours or (isinstance(value, Tensor) and value.is_complex()):
                raise DataError(
                    f"session.evaluate: the function returned {name!r}: {type(value).__name__}; return real sums over "
                    "the batch: a number, a tensor, or a dictionary of them"
                )
        kinds = {name: torch.float64 if isinstance(value, float) else None for name, value in named.items()}
        counts = {name: torch.as_tensor(value, dtype=kinds[name]).detach() for name, value in named.items()}
        if not self.sums:
            self.sums = {name: torch.zeros(one.shape, dtype=torch.float64) for name, one in counts.items()}
            self.whole = {name: not one.dtype.is_floating_point for name, one in counts.items()}
        if {name: one.shape for name, one in counts.items()} != {name: one.shape for name, one in self.sums.items()}:
            raise DataError(
                f"session.evaluate: the function returned {_shapes(counts)} after {_shapes(self.sums)}: return the "
                "same sums each time"
            )
        for name, one in counts.items():
            self.sums[name] += one.to("cpu", torch.float64)

    def describe(self) -> str:
        """Return names, shapes and kinds, for workers without a batch."""
        return json.dumps({name: (one.shape, self.whole[name]) for name, one in self.sums.items()})

    def flat(self, kinds: Kinds) -> Tensor:
        """Return the totals as one vector (numbers + 1,), the same length on every worker."""
        # One number more, because a vector must not be empty if there are no totals.
        empty = {name: torch.zeros(shape, dtype=torch.float64) for name, (shape, _) in kinds.items()}
        whole = [self.sums.get(name, zeros).reshape(-1) for name, zeros in empty.items()]
        return torch.cat([torch.zeros(1, dtype=torch.float64), *whole])

    @classmethod
    def of(cls, flat: Tensor, kinds: Kinds) -> "EvaluatedTotals":
        """Return the totals of a vector from :meth:`flat`, shape (numbers + 1,)."""
        pieces = flat[1:].split([math.prod(shape) for shape, _ in kinds.values()])
        found = cls()
        found.sums = {
            name: piece.reshape(shape) for piece, (name, (shape, _)) in zip(pieces, kinds.items(), strict=True)
        }
        found.whole = {name: exact for name, (_, exact) in kinds.items()}
        return found

    def add_all(self, other: "EvaluatedTotals") -> None:
        self.whole |= other.whole
        for name, one in other.sums.items():
            self.sums[name] = self.sums[name] + one if name in self.sums else one

    def as_given(self) -> Any:
        """Return the totals in the form that the function returned."""
        found = {name: _as_given(one, self.whole[name]) for name, one in self.sums.items()}
        return found[_SINGLE] if [*found] == [_SINGLE] else found

    def over_all(self, texts: list[str], add_up: Callable[[Tensor], Any]) -> Any:
        """Return the totals of all workers in the form that the function returned, given all their descriptions.

        ``add_up`` replaces a vector (numbers + 1,) by its sum over all workers.
        """
        kinds: Kinds = next((found for text in texts if (found := json.loads(text))), {})
        flat = self.flat(kinds)
        add_up(flat)
        return EvaluatedTotals.of(flat, kinds).as_given()


def _as_given(total: Tensor, whole: bool) -> float | int | Tensor:
    whole = whole and bool((total.frac() == 0).all())  # a sum over an empty batch is the integer 0
    if total.dim():
        return total.to(torch.int64) if whole else total
    return int(total.item()) if whole else total.item()


def _shapes(found: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name or 'a total'} of shape {tuple(one.shape)}" for name, one in found.items())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set the model to evaluation mode without gradients, and restore each layer's mode at the end."""
    modes = [(layer, layer.training) for layer in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for layer, training in modes:
            layer.training = training


def batches_of(dataset: Any, positions: Iterable[list[int]], options: dict[str, Any]) -> DataLoader[Any]:
    """Return this worker's batches; raise :class:`ConfigError` if ``options`` holds an option that is decided here."""
    if wrong := sorted(set(options) & {"shuffle", "sampler", "batch_sampler", "drop_last", "generator"}):
        raise ConfigError(
            f"session.evaluate({wrong[0]}=…): an evaluation uses each sample once, on any free worker; leave it out"
        )
    # Its own generator: torch draws a seed when a loader starts, which must not change the script's random numbers.
    return DataLoader(dataset, batch_sampler=positions, generator=torch.Generator(), **options)


def check_evaluated(dataset: Any) -> int:
    """Return the samples in the data set; raise :class:`DataError` if it is a stream, or empty."""
    if is_stream(dataset) or len(dataset) == 0:
        raise DataError(
            f"session.evaluate on a {type(dataset).__name__}: give a data set with __len__, at least 1, and __getitem__"
        )
    return len(dataset)
