"""The arithmetic of a preconditioner for one item, without placement, schedule and exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from uneven.policy.ownership.placement import Item


def like(model: nn.Module, kind: torch.dtype | None) -> Tensor:
    """Return an empty tensor, shape (0,), with the dtype and device of factors and bases.

    ``kind`` None means float32, or float64 if the whole model has it: decompositions need at least float32.
    """
    weights = list(model.parameters())
    whole = all(one.dtype == torch.float64 for one in weights)
    return weights[0].new_empty(0, dtype=kind or (torch.float64 if whole else torch.float32))


class Sizes(NamedTuple):
    """Lengths of the flat buffers of one item."""

    kept: tuple[int, ...]  # statistics of each square, on its owner
    basis: tuple[int, ...]  # decomposition of each square, for all workers that precondition the item
    result: int  # preconditioned gradient


class ItemWork(ABC):
    """One item: its weights, and the arithmetic for them."""

    item: Item  # for the placement
    sizes: Sizes  # of its buffers
    weights: tuple[nn.Parameter, ...]  # a weight and, possibly, a bias, whose gradients it preconditions

    @abstractmethod
    def decompose(self, square: int, kept: Tensor, identity: float) -> Tensor:
        """Return the decomposition of a square, shape (basis,), from its statistics ``kept`` (kept,); only its owner
        calls it.

        Args:
            identity: coefficient of the identity matrix in the running average.

        Raises:
            torch.linalg.LinAlgError: it does not converge.
        """

    @abstractmethod
    def neutral(self, square: int) -> Tensor:
        """Return the initial decomposition of a square, shape (basis,)."""

    @abstractmethod
    def renew(self, bases: list[Tensor]) -> None:
        """Use new decompositions, one per square, shape (basis,); they are views, unchanged until the next call."""

    @abstractmethod
    def apply(self, out: Tensor) -> Tensor | None:
        """Write the preconditioned gradient to ``out``, shape (result,).

        Returns:
            Its product with the gradient times the squared learning rate, a scalar; None if not requested.
        """

    def write(self, result: Tensor, scale: float) -> None:
        """Set the gradients to ``scale`` times ``result``, shape (result,)."""
        matrix, at = result, 0
        for one in self.weights:
            if one.grad is not None:
                torch.mul(matrix[at : at + one.numel()].view_as(one), scale, out=one.grad)
            at += one.numel()
