"""The arithmetic of a preconditioner for one item, without placement, schedule and exchange."""

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from uneven.policy.ownership.placement import Item
from uneven.precondition.item_exchange import PackedExchanges
from uneven.precondition.pure.packing import Layout
from uneven.run.step.callback import CallbackContext


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
    def batch_key(self, square: int) -> Hashable:
        """Return a key; squares with equal keys are decomposed in one call."""

    @classmethod
    @abstractmethod
    def decompose(cls, squares: Sequence[tuple[Self, int]], kept: Tensor, identity: float) -> Tensor:
        """Return the decompositions of ``squares`` with equal keys, shape (squares, basis); only their owner calls it.

        Args:
            squares: items, and the number of the square in each.
            kept: their statistics, shape (squares, kept); a copy.
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


_TIMES = 3
_SIDE = 256


def probed_share(run: CallbackContext, name: str, works: Sequence[ItemWork]) -> float:
    """Return 1 or 1 / P, whichever gives the shorter plain step.

    With 1 every worker preconditions everything and nothing is sent; with 1 / P each layer is preconditioned once and
    gradients are sent. Shares in between cost in between. The slowest worker's times count.
    """
    size = len(run.members)
    if size == 1:
        return 1.0
    exchanges = PackedExchanges(run.lines, f"{name} probe")
    total = sum(one.sizes.result for one in works)
    layout = Layout.of([-(-total // size)] * size, run.members, run.members)
    device = works[0].weights[0].device
    flat, square = torch.zeros(layout.size, device=device), torch.ones(_SIDE, _SIDE, device=device)
    sending_s = _median_s(lambda: exchanges.among_all(flat, layout), device)
    rate = 2.0 * _SIDE**3 / _median_s(lambda: torch.mm(square, square), device)
    computing_s = sum(one.item.step for one in works) / rate
    rows = list(exchanges.table((sending_s, computing_s)).values())
    once_s = max(row[0] for row in rows) + max(row[1] for row in rows) / size
    return 1.0 / size if once_s < max(row[1] for row in rows) else 1.0


def _median_s(call: Callable[[], object], device: torch.device) -> float:
    wait = (lambda: None) if device.type == "cpu" else (lambda: torch.accelerator.synchronize(device))
    call()
    wait()
    taken = []
    for _ in range(_TIMES):
        began_s = time.perf_counter()
        call()
        wait()
        taken.append(time.perf_counter() - began_s)
    return statistics.median(taken)
