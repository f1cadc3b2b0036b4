"""A replica as one vector, and the vector back into the replica."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Flat:
    """Some parameters, then some running statistics, as one vector in one order.

    What is written goes past autograd, so a training step that is under way in another thread does not fail of it.

    Args:
        parameters: what is trained.
        statistics: what is averaged beside it, as batch norm's running mean and variance.

    Attributes:
        trained: length of the part that holds the parameters; it comes first.
        size: length of the whole vector.
        dtype: of the vector: float64 if any tensor is of it, else float32, also for tensors of less.
        device: where all of it lies.
    """

    def __init__(self, parameters: Sequence[Tensor], statistics: Sequence[Tensor] = ()) -> None:
        self._tensors = [*parameters, *statistics]
        self.trained = sum(one.numel() for one in parameters)
        self.size = sum(one.numel() for one in self._tensors)
        wide = any(one.dtype == torch.float64 for one in self._tensors)
        self.dtype = torch.float64 if wide else torch.float32
        self.device = self._tensors[0].device

    def room(self, more: int = 0) -> Tensor:
        """Uninitialized memory for such a vector and ``more`` numbers: shape (size + more,)."""
        return torch.empty(self.size + more, dtype=self.dtype, device=self.device)

    def read(self, into: Tensor | None = None) -> Tensor:
        """A copy of the replica as it is now: shape (size,).

        Args:
            into: memory of an earlier copy; None for new memory.
        """
        values = self.room() if into is None else into
        torch._foreach_copy_(self._pieces(values), self._live())
        return values

    def write(self, values: Tensor) -> None:
        """Replace the replica; ``values`` has the shape (size,)."""
        torch._foreach_copy_(self._live(), self._pieces(values))

    def add(self, change: Tensor, alpha: float) -> None:
        """x += α · change, of shape (size,): what the replica learns meanwhile stays."""
        for one, piece in zip(self._live(), self._pieces(change), strict=True):
            one.add_(piece, alpha=alpha)

    def interpolate(self, values: Tensor, alpha: float) -> None:
        """x ← (1 − α) x + α · values, of shape (size,)."""
        for one, piece in zip(self._live(), self._pieces(values), strict=True):
            one.lerp_(piece.to(one.dtype), alpha)

    def _live(self) -> list[Tensor]:
        # Asked for every time, as ``model.to(…)`` gives a parameter other memory. Views by .data have version
        # counters of their own, so writing through them does not disturb a backward pass.
        return [one.data for one in self._tensors]

    def _pieces(self, values: Tensor) -> list[Tensor]:
        parts = values.split([one.numel() for one in self._tensors])
        return [part.view(one.shape) for part, one in zip(parts, self._tensors, strict=True)]
