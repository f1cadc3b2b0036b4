"""What a preconditioner does for one of its items: the arithmetic, apart from placement, schedule and carriage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from uneven.precondition.place import Item


def like(model: nn.Module, kind: torch.dtype | None) -> Tensor:
    """An empty tensor of the type of factors and bases, and on their device.

    Args:
        kind: None for float64 where the whole model is in it, else float32: decompositions want no less.
    """
    weights = list(model.parameters())
    whole = all(one.dtype == torch.float64 for one in weights)
    return weights[0].new_empty(0, dtype=kind or (torch.float64 if whole else torch.float32))


class Sizes(NamedTuple):
    """Lengths of the flat buffers of one item.

    Attributes:
        kept: of what the owner of each square keeps and refreshes it from.
        basis: of what comes of each square, for all who precondition the item.
        result: of the preconditioned gradient.
    """

    kept: tuple[int, ...]
    basis: tuple[int, ...]
    result: int


class ItemWork(ABC):
    """One item: its weights, and what is done for them.

    Attributes:
        item: for the placement.
        sizes: of its buffers.
        weights: those whose gradients it turns: a weight, and perhaps a bias.
    """

    item: Item
    sizes: Sizes
    weights: tuple[nn.Parameter, ...]

    @abstractmethod
    def decompose(self, square: int, kept: Tensor, identity: float) -> Tensor:
        """What comes of a square, shape (basis,). May take long; called on its owner alone.

        Args:
            kept: what its owner keeps.
            identity: how much of the unit matrix the running average still holds.

        Raises:
            torch.linalg.LinAlgError: it does not converge.
        """

    @abstractmethod
    def neutral(self, square: int) -> Tensor:
        """Stands for what comes of a square where nothing has come of it yet, shape (basis,)."""

    @abstractmethod
    def renew(self, bases: list[Tensor]) -> None:
        """New ones have come, one for each square; the tensors are views, and stay as they are until the next."""

    @abstractmethod
    def apply(self, out: Tensor) -> Tensor | None:
        """Put the preconditioned gradient into ``out``, shape (result,).

        Returns:
            Its product with the gradient times the squared learning rate, shape (); None where nobody asks.
        """

    def write(self, result: Tensor, scale: float) -> None:
        """Put ``scale`` times the result into the gradients, in place."""
        matrix, at = result, 0
        for one in self.weights:
            if one.grad is not None:
                torch.mul(matrix[at : at + one.numel()].view_as(one), scale, out=one.grad)
            at += one.numel()
