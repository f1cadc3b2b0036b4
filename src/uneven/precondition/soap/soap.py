"""SOAP as a callback of a session."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from uneven.errors import ConfigError
from uneven.policy.ownership.placement import Item
from uneven.precondition.item_work import ItemWork, Sizes
from uneven.precondition.kfac.sums import RowSums
from uneven.precondition.preconditioner import Preconditioner
from uneven.precondition.pure.schedule import Value
from uneven.precondition.pure.sharing import Sharing
from uneven.precondition.refusals import check_gradients, check_optimizer
from uneven.run.step.callback import Step


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

    def batch_key(self, square: int) -> Hashable:
        return self.item.sides[square], bool(self._bases)

    @classmethod
    def decompose(cls, squares: Sequence[tuple[Self, int]], kept: Tensor, identity: float) -> Tensor:
        """Return each Q, shape (squares, basis): first from eigh, then by one step of orthogonal iteration, as in the
        paper."""
        first, square = squares[0]
        found = first._sums[square].squares(kept)
        side = first.item.sides[square]
        # A slope of the size of the root of the rounding error orders equal eigenvalues: those of directions without
        # any gradient so far. Otherwise they would be noise, different on each machine (ours).
        slope = torch.arange(side, 0, -1, dtype=found.dtype, device=found.device) / side
        diagonal = found.diagonal(dim1=1, dim2=2)
        diagonal.add_(slope * diagonal.mean(1, keepdim=True) * torch.finfo(found.dtype).eps ** 0.5)
        if not first._bases:
            return torch.linalg.eigh(found)[1].flip(2).flatten(1)  # descending, as orthogonal iteration needs it
        bases = torch.stack([one._bases[number] for one, number in squares])
        return torch.linalg.qr(found @ bases)[0].flatten(1)

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


class SOAP(Preconditioner):
    """Run Adam in the eigenbasis of each weight's squares L = E[∇ ∇ᵀ] and R = E[∇ᵀ ∇] (arXiv 2409.11321)::

        session = uneven.Session(callbacks=[uneven.SOAP()])
        model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=3e-3, weight_decay=0.01))

    It turns gradients into SOAP's steps, so the optimizer must be plain SGD without momentum, whose learning rate and
    weight decay are SOAP's. L and R use gradients that are already averaged over all workers. So unequal shares change
    nothing, layers need no hooks, and only bases and steps are exchanged. Weights with one axis get Adam's step.

    Args:
        betas: of Adam.
        squares: decay of L and R; the second of ``betas`` if None.
        eps: of Adam.
        largest: weights with a longer side get Adam's step.
        factor_update_steps: steps between updates of L and R; a number, or a callable of the step.
        inv_update_steps: steps between refreshes of the bases; a multiple of ``factor_update_steps``.
        grad_worker_fraction: share of the workers that compute a weight's step, as of :class:`uneven.KFAC`.
        assignment_strategy: owners of refreshes by "speed", "compute", "memory", or "round-robin".
        colocate_factors: whether one worker refreshes both bases of a weight.
        refresh: "now", "shadow" or "auto", as of :class:`uneven.KFAC`.
        factor_dtype: of L, R and the bases; None for float32, or float64 if the whole model has it.

    Raises:
        ConfigError: an argument is out of range.
    """

    kind = "soap"
    movable = False  # a weight's averages stay with the workers that precondition it,
    saves_bases = True  # and are meaningless in another basis

    def __init__(
        self,
        *,
        betas: tuple[float, float] = (0.95, 0.95),
        squares: float | None = None,
        eps: float = 1e-8,
        largest: int = 10_000,
        factor_update_steps: Value = 1,
        inv_update_steps: Value = 10,
        grad_worker_fraction: float | str = "auto",
        assignment_strategy: str = "speed",
        colocate_factors: bool = True,
        refresh: str = "now",
        factor_dtype: torch.dtype | None = None,
    ) -> None:
        sharing = Sharing(
            factor_update_steps=factor_update_steps,
            inv_update_steps=inv_update_steps,
            grad_worker_fraction=grad_worker_fraction,
            assignment_strategy=assignment_strategy,
            colocate_factors=colocate_factors,
            refresh=refresh,
            factor_dtype=factor_dtype,
        )
        super().__init__(sharing)
        decays = (betas[0], betas[1], betas[1] if squares is None else squares)
        if not all(0.0 <= one < 1.0 for one in decays) or not eps > 0.0:
            raise ConfigError(
                f"betas = {betas!r}, squares = {squares!r}, eps = {eps!r}: from 0 to below 1, and above 0"
            )
        self._rates = AdamRates(*decays, eps)
        self._largest = largest

    def make(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[ItemWork]:
        """Return the works of weights with two axes; others get plain Adam."""
        stepped = check_optimizer(self.name, model, optimizer)
        self.turned: list[RotatedAdam] = []
        self._straight: list[PlainAdam] = []
        for name, weight in model.named_parameters():
            if id(weight) not in stepped or not weight.requires_grad:
                self.notes[name] = "frozen, or another optimizer steps it"
            elif weight.ndim < 2 or max(len(weight), weight.numel() // len(weight)) > self._largest:
                self._straight.append(PlainAdam(name, weight, self._rates))
            else:
                self.turned.append(RotatedAdam(name, weight, self._rates, self._like.dtype))
        self._averaged: list[RotatedAdam | PlainAdam] = [*self.turned, *self._straight]
        return list(self.turned)

    def before(self, step: Step, due_factors: bool) -> None:
        """Update the squares that this worker owns, and weights with one axis."""
        check_gradients(self.name, ((one.name, one.weights[0]) for one in self._averaged))
        self._rates.taken += 1
        self._take_loaded()
        if due_factors:
            for unit, kept in self._kept.items():
                i, j = self._units[unit]
                self.turned[i].add(j, kept)
        for one in self._straight:
            one.apply()

    # ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _gather(self) -> dict[str, Tensor]:
        """Add Adam's averages; one column holds each."""
        found = super()._gather()
        for what in ("momentum", "square"):
            for i in self._mine:
                span = self._result_layout.spans[i]
                self._result_flat[slice(*span)] = getattr(self.turned[i], what).view(-1)
            self.exchanges.in_row(self._result_flat, self._result_layout)
            for one, span in zip(self.turned, self._result_layout.spans, strict=True):
                found[f"{what} {one.name}"] = self._result_flat[slice(*span)].clone()
            found |= {f"{what} {one.name}": getattr(one, what).clone() for one in self._straight}
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return clock, statistics and bases.

        Raises:
            CheckpointError: other workers keep a part, and this is outside of ``session.evaluation_model()``.
        """
        state = super().state_dict()
        return {**state, "taken": self._rates.taken} if state else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state, with any number of workers.

        Raises:
            CheckpointError: ``state`` is that of another model.
        """
        super().load_state_dict(state)
        if "clock" not in state:
            return
        self._rates.taken = int(state["taken"])
        for one in self._averaged:
            for what in ("momentum", "square"):
                mine = getattr(one, what)
                mine.copy_(self.saved(state, f"{what} {one.name}", mine.numel()).view_as(mine))
        if not self._replicated:
            self._take_bases(state)
