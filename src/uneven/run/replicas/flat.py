"""Conversion of a replica to one vector, and back; a worker's contribution to a sum over the members.

A weighted mean is one sum: every worker adds its weighted vector with the weight at the end, and divides by the total
weight. So no worker needs to know the others' samples in advance. One more number counts resting workers.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from uneven.run.lines.staging import host_room, mark_copied


class Flat:
    """A view of parameters, then running statistics, as one vector in a fixed order.

    Writes bypass autograd, so that a concurrent training step in another thread does not fail.

    Args:
        parameters: trained tensors.
        statistics: tensors averaged separately, such as batch norm's running mean and variance.
        on_host: whether vectors are in host memory, from where workers exchange them, instead of on the device.
    """

    def __init__(
        self, parameters: Sequence[Tensor], statistics: Sequence[Tensor] = (), *, on_host: bool = False
    ) -> None:
        self._tensors = [*parameters, *statistics]
        self.trained = sum(one.numel() for one in parameters)  # length of the part with the parameters
        self.size = sum(one.numel() for one in self._tensors)  # length of the whole vector
        wide = any(one.dtype == torch.float64 for one in self._tensors)
        # float64 if any tensor has it, otherwise float32, also for narrower tensors
        self.dtype = torch.float64 if wide else torch.float32
        self._model_device = self._tensors[0].device
        self.device = torch.device("cpu") if on_host else self._model_device  # of vectors

    def room(self, more: int = 0) -> Tensor:
        """Return uninitialized memory for such a vector and ``more`` numbers: shape (size + more,)."""
        if self.device.type == "cpu":
            return host_room([self.size + more], self.dtype, self._model_device)
        return torch.empty(self.size + more, dtype=self.dtype, device=self.device)

    def read(self, into: Tensor | None = None) -> Tensor:
        """Copy the replica into ``into``, or into new memory: shape (size,)."""
        values = self.room() if into is None else into
        torch._foreach_copy_(self._pieces(values), self._live(), non_blocking=True)
        if self.device.type == "cpu" and (copied := mark_copied(self._model_device)) is not None:
            copied.synchronize()
        return values

    def write(self, values: Tensor) -> None:
        """Replace the replica by ``values``, shape (size,)."""
        torch._foreach_copy_(self._live(), self._pieces(values))

    def add(self, change: Tensor, alpha: float) -> None:
        """Compute x += α · change, shape (size,); concurrent updates of the replica are preserved."""
        for one, piece in zip(self._live(), self._pieces(change), strict=True):
            one.add_(piece.to(one.device), alpha=alpha)

    def interpolate(self, values: Tensor, alpha: float) -> None:
        """Compute x ← (1 − α) x + α · values, shape (size,)."""
        for one, piece in zip(self._live(), self._pieces(values), strict=True):
            one.lerp_(piece.to(one), alpha)

    def _live(self) -> list[Tensor]:
        # Evaluated every time, because ``model.to(…)`` replaces a parameter's memory. Views by .data have separate
        # version counters, so writing through them does not invalidate a running backward pass.
        return [one.data for one in self._tensors]

    def _pieces(self, values: Tensor) -> list[Tensor]:
        parts = values.split([one.numel() for one in self._tensors])
        return [part.view(one.shape) for part, one in zip(parts, self._tensors, strict=True)]


LEAST = 2.0**-40
"""The weight of a worker without samples: it vanishes in the rounding of the others' weights; without any samples at
all, workers have equal weights. A power of two, so that scaling by it and back is exact."""

EXTRA = 2  # numbers at the end of a contribution


def contribution(values: Tensor, weight: float, *, resting: bool = False, into: Tensor | None = None) -> Tensor:
    """Return the values (n,) times the weight, the weight, and 1 for a resting worker; shape (n + EXTRA,).

    ``weight`` is the number of samples, or 1 for equal weights; ``into`` is memory for the result.
    """
    weight = max(weight, LEAST)
    room = torch.empty(len(values) + EXTRA, dtype=values.dtype, device=values.device) if into is None else into
    torch.mul(values, weight, out=room[:-EXTRA])
    room[-2], room[-1] = weight, float(resting)
    return room


def average(total: Tensor) -> Tensor:
    """Divide a sum of contributions by its weight in place; shape (n,)."""
    return total[:-EXTRA].div_(total[-2])


def weight_in(total: Tensor) -> float:
    """Return the total weight in a sum (n + EXTRA,); synchronizes with an accelerator."""
    return float(total[-2])


def resting_in(total: Tensor) -> int:
    """Return the number of resting workers in a sum (n + EXTRA,); synchronizes with an accelerator."""
    return round(float(total[-1]))


def apart(values: Tensor, total: Tensor, into: Tensor | None = None) -> Tensor:
    """Return a contributor's difference from the weighted mean, x − Σ / w, shape (n,), in one pass."""
    # one pass, without the mean as a temporary
    return torch.add(values, total[:-EXTRA], alpha=-1 / weight_in(total), out=into)


def mean_square_root(vector: Tensor) -> float:
    """Return the root mean square of a flat vector; 0 without entries."""
    return math.sqrt(float(torch.dot(vector, vector)) / max(1, len(vector)))
