"""Conversion of a replica to one vector, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Flat:
    """A view of parameters, then running statistics, as one vector in a fixed order.

    Writes bypass autograd, so that a concurrent training step in another thread does not fail.

    Args:
        parameters: trained tensors.
        statistics: tensors averaged separately, such as batch norm's running mean and variance.
    """

    def __init__(self, parameters: Sequence[Tensor], statistics: Sequence[Tensor] = ()) -> None:
        self._tensors = [*parameters, *statistics]
        self.trained = sum(one.numel() for one in parameters)  # length of the part with the parameters
        self.size = sum(one.numel() for one in self._tensors)  # length of the whole vector
        wide = any(one.dtype == torch.float64 for one in self._tensors)
        # float64 if any tensor has it, otherwise float32, also for narrower tensors
        self.dtype = torch.float64 if wide else torch.float32
        self.device = self._tensors[0].device

    def room(self, more: int = 0) -> Tensor:
        """Return uninitialized memory for such a vector and ``more`` numbers: shape (size + more,)."""
        return torch.empty(self.size + more, dtype=self.dtype, device=self.device)

    def read(self, into: Tensor | None = None) -> Tensor:
        """Copy the replica into ``into``, or into new memory: shape (size,)."""
        values = self.room() if into is None else into
        torch._foreach_copy_(self._pieces(values), self._live())
        return values

    def write(self, values: Tensor) -> None:
        """Replace the replica by ``values``, shape (size,)."""
        torch._foreach_copy_(self._live(), self._pieces(values))

    def add(self, change: Tensor, alpha: float) -> None:
        """Compute x += α · change, shape (size,); concurrent updates of the replica are preserved."""
        for one, piece in zip(self._live(), self._pieces(change), strict=True):
            one.add_(piece, alpha=alpha)

    def interpolate(self, values: Tensor, alpha: float) -> None:
        """Compute x ← (1 − α) x + α · values, shape (size,)."""
        for one, piece in zip(self._live(), self._pieces(values), strict=True):
            one.lerp_(piece.to(one.dtype), alpha)

    def _live(self) -> list[Tensor]:
        # Evaluated every time, because ``model.to(…)`` replaces a parameter's memory. Views by .data have separate
        # version counters, so writing through them does not invalidate a running backward pass.
        return [one.data for one in self._tensors]

    def _pieces(self, values: Tensor) -> list[Tensor]:
        parts = values.split([one.numel() for one in self._tensors])
        return [part.view(one.shape) for part, one in zip(parts, self._tensors, strict=True)]
