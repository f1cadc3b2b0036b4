"""SOAP's arithmetic for one weight (Vyas et al. 2024, arXiv 2409.11321)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from uneven.policy.ownership.placement import Item
from uneven.precondition.item_work import ItemWork, Sizes
from uneven.precondition.kfac.sums import RowSums


@dataclass(slots=True)
class AdamRates:
    """The settings and the step count that all weights share."""

    first: float  # β₁ of Adam
    second: float  # β₂ of Adam
    squares: float  # decay of L and R
    eps: float
    taken: int = 0  # steps so far, including the current one

    @property
    def correction(self) -> float:
        """The factor that corrects the bias of both averages, which start at 0."""
        return math.sqrt(1.0 - self.second**self.taken) / (1.0 - self.first**self.taken)


class RotatedAdam(ItemWork):
    """A weight with two axes or more; all but the first are merged."""

    def __init__(self, name: str, weight: nn.Parameter, rates: AdamRates, kind: torch.dtype) -> None:
        self.name = name
        self.weights = (weight,)
        self._rates = rates
        self._kind = kind
        rows = len(weight)
        columns = weight.numel() // len(weight)
        self._sums = RowSums(rows), RowSums(columns)
        self.sizes = Sizes(tuple(one.numbers for one in self._sums), (rows * rows, columns * columns), weight.numel())
        self.item = Item(name, (rows, columns), step=8.0 * rows * columns * (rows + columns) / 2)
        # Adam's averages, on the workers that precondition this weight; `square` is of gradients in the basis.
        self.momentum, self.square = weight.new_zeros(2, rows, columns, dtype=kind).unbind()
        self._bases: list[Tensor] = []

    def add(self, square: int, kept: Tensor) -> None:
        """Update statistics ``kept`` (kept,) on the owner: L ← β L + (1 − β) ∇ ∇ᵀ, or R with ∇ᵀ ∇."""
        gradient = self._gradient()
        kept.mul_(self._rates.squares)
        self._sums[square].add(kept, gradient if square else gradient.t(), 1.0 - self._rates.squares)

    def decompose(self, square: int, kept: Tensor, identity: float) -> Tensor:
        """Return Q, shape (basis,): first from eigh, then by one step of orthogonal iteration, as in the paper."""
        found = self._sums[square].square(kept)
        if not torch.isfinite(found).all():
            return found.view(-1)
        # A slope of the size of the root of the rounding error orders equal eigenvalues: those of directions without
        # any gradient so far. Otherwise they would be noise, different on each machine (ours).
        slope = torch.arange(len(found), 0, -1, dtype=found.dtype, device=found.device) / len(found)
        found.diagonal().add_(slope * found.diagonal().mean() * torch.finfo(found.dtype).eps ** 0.5)
        if not self._bases:
            return torch.linalg.eigh(found)[1].flip(1).reshape(-1)  # descending, as orthogonal iteration needs it
        return torch.linalg.qr(found @ self._bases[square])[0].reshape(-1)

    def neutral(self, square: int) -> Tensor:
        return torch.eye(self.item.sides[square], dtype=self._kind).view(-1)

    def renew(self, bases: list[Tensor]) -> None:
        self._bases = [one.view(n, n) for one, n in zip(bases, self.item.sides, strict=True)]

    def apply(self, out: Tensor) -> None:
        """Write Adam's direction in the basis, rotated back, to ``out`` (result,)."""
        rates, (left, right) = self._rates, self._bases
        gradient = self._gradient()
        self.momentum.lerp_(gradient, 1.0 - rates.first)
        turned = left.t() @ gradient @ right
        self.square.mul_(rates.second).addcmul_(turned, turned, value=1.0 - rates.second)
        step = (left.t() @ self.momentum @ right).div_(self.square.sqrt().add_(rates.eps))
        torch.mul(left @ step @ right.t(), rates.correction, out=out.view_as(self.momentum))

    def _gradient(self) -> Tensor:
        weight = self.weights[0]
        found = torch.zeros_like(weight) if weight.grad is None else weight.grad
        return found.reshape(self.momentum.shape).to(self._kind)


class PlainAdam:
    """A bias or a norm's weight: plain Adam, computed by every worker."""

    def __init__(self, name: str, weight: nn.Parameter, rates: AdamRates) -> None:
        self.name = name
        self.weights = (weight,)
        self._rates = rates
        self.momentum = torch.zeros_like(weight)
        self.square = torch.zeros_like(weight)

    def apply(self) -> None:
        """Replace the gradient by Adam's direction."""
        gradient, rates = self.weights[0].grad, self._rates
        if gradient is not None:
            self.momentum.lerp_(gradient, 1.0 - rates.first)
            self.square.mul_(rates.second).addcmul_(gradient, gradient, value=1.0 - rates.second)
            torch.div(self.momentum, self.square.sqrt().add_(rates.eps), out=gradient).mul_(rates.correction)
