"""SOAP's arithmetic for one weight (Vyas et al. 2024, arXiv 2409.11321)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from uneven.precondition.item_work import ItemWork, Sizes
from uneven.precondition.kfac.sums import RowSums
from uneven.precondition.place import Item


@dataclass(slots=True)
class AdamRates:
    """What all weights share.

    Attributes:
        first, second: β₁ and β₂ of Adam.
        squares: decay of L and R.
        eps: ε.
        taken: steps so far, the one under way included.
    """

    first: float
    second: float
    squares: float
    eps: float
    taken: int = 0

    @property
    def correction(self) -> float:
        """What undoes the bias that both averages have for beginning at 0."""
        return math.sqrt(1.0 - self.second**self.taken) / (1.0 - self.first**self.taken)


class Turned(ItemWork):
    """A weight with two axes or more; all but the first count as one.

    Attributes:
        name: of the weight in the model.
        momentum, square: Adam's averages; the second is of gradients in the basis. Held by who preconditions it.
    """

    def __init__(self, name: str, weight: nn.Parameter, rates: AdamRates, kind: torch.dtype) -> None:
        self.name = name
        self.weights = (weight,)
        self._rates = rates
        self._kind = kind
        rows, columns = len(weight), weight.numel() // len(weight)
        self._sums = RowSums(rows), RowSums(columns)
        self.sizes = Sizes(tuple(one.numbers for one in self._sums), (rows * rows, columns * columns), weight.numel())
        self.item = Item(name, (rows, columns), step=8.0 * rows * columns * (rows + columns) / 2)
        self.momentum, self.square = weight.new_zeros(2, rows, columns, dtype=kind).unbind()
        self._bases: list[Tensor] = []

    def add(self, square: int, kept: Tensor) -> None:
        """L ← β L + (1 − β) ∇ ∇ᵀ, or R with ∇ᵀ ∇; on the owner."""
        gradient = self._gradient()
        kept.mul_(self._rates.squares)
        self._sums[square].add(kept, gradient if square else gradient.t(), 1.0 - self._rates.squares)

    def decompose(self, square: int, kept: Tensor, identity: float) -> Tensor:
        """Q: at first of an eigendecomposition, then one turn of orthogonal iteration from the last, as in the paper.

        Columns descend by eigenvalue, which orthogonal iteration wants. A slope on the diagonal, as small as the root
        of the rounding error, settles what is left open where several eigenvalues are the same: those of directions
        that no gradient has had yet. They would else be noise, another one on each machine (ours).
        """
        found = self._sums[square].square(kept)
        if not torch.isfinite(found).all():
            return found.view(-1)
        slope = torch.arange(len(found), 0, -1, dtype=found.dtype, device=found.device) / len(found)
        found.diagonal().add_(slope * found.diagonal().mean() * torch.finfo(found.dtype).eps ** 0.5)
        if not self._bases:
            return torch.linalg.eigh(found)[1].flip(1).reshape(-1)
        return torch.linalg.qr(found @ self._bases[square])[0].reshape(-1)

    def neutral(self, square: int) -> Tensor:
        return torch.eye(self.item.sides[square], dtype=self._kind).view(-1)

    def renew(self, bases: list[Tensor]) -> None:
        """New Q of L and R."""
        self._bases = [one.view(n, n) for one, n in zip(bases, self.item.sides, strict=True)]

    def apply(self, out: Tensor) -> None:
        """Adam's direction in the basis, turned back."""
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


class Straight:
    """A bias or a norm's weight: plain Adam, on every worker alike.

    Attributes:
        name: of the weight in the model.
        momentum, square: Adam's averages.
    """

    def __init__(self, name: str, weight: nn.Parameter, rates: AdamRates) -> None:
        self.name = name
        self.weights = (weight,)
        self._rates = rates
        self.momentum = torch.zeros_like(weight)
        self.square = torch.zeros_like(weight)

    def apply(self) -> None:
        """Put Adam's direction into the gradient."""
        gradient, rates = self.weights[0].grad, self._rates
        if gradient is not None:
            self.momentum.lerp_(gradient, 1.0 - rates.first)
            self.square.mul_(rates.second).addcmul_(gradient, gradient, value=1.0 - rates.second)
            torch.div(self.momentum, self.square.sqrt().add_(rates.eps), out=gradient).mul_(rates.correction)
