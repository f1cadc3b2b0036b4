"""K-FAC's arithmetic for one layer: factors, their bases, the preconditioned gradient.

Formulas: Pauloski et al. (SC 2020, arXiv 2007.00784; SC 2021, arXiv 2107.01739), as in their authors' code. With rank
i's share x_i of X samples, the factors of the union batch are A = Σ (x_i / X) A_i and G = Σ (x_i / X) G_i, where G_i
undoes the 1 / x_i of a mean loss: the weights with which gradients are averaged. The scaling of the newer code
("compat") does not undo it, so G has another factor (x_i / X)². If a worker's gradient has weight c_i / C instead,
because losses are means over c_i things, G has another factor ((c_i / C) / (x_i / X))².
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from uneven.errors import ConfigError
from uneven.policy.ownership.placement import Item
from uneven.precondition.item_work import ItemWork, Sizes
from uneven.precondition.kfac.sums import AutoSums, PatchSums, PixelSums, RowSums, Sums


@dataclass(slots=True)
class Numbers:
    """The settings and current values that all layers of one preconditioner share."""

    inverse: bool  # invert factors instead of decomposing them
    compat: bool  # scale factors as in kfac-pytorch, otherwise as in KFC and SC 2020
    kind: torch.dtype  # dtype of factors and bases
    damping: float  # current λ
    lr_of: Callable[[nn.Parameter], float]  # parameter → learning rate of its group
    clipped: bool  # whether products with the gradient are needed


class Layer(ItemWork):
    """The work of a Linear or Conv2d."""

    def __init__(self, name: str, module: nn.Linear | nn.Conv2d, numbers: Numbers) -> None:
        self.name = name
        self.module = module
        self._numbers = numbers
        bias = module._parameters["bias"]
        ones = bias is not None and bias.requires_grad
        self.weights = (module.weight, bias) if bias is not None and ones else (module.weight,)  # type: ignore[assignment]
        self.sums = _sums(module, ones)  # of inputs, and of output gradients
        self.passes = 0  # backward passes since the last step
        self.seen = False
        self._bases: list[Tensor] = []
        self._scale: tuple[float, Tensor] | None = None  # of λ, 1 / (dG dAᵀ + λ)
        a, g = (one.side for one in self.sums)
        basis = tuple(n * n + n * (not numbers.inverse) for n in (a, g))
        self.sizes = Sizes(tuple(one.numbers for one in self.sums), basis, sum(p.numel() for p in self.weights))
        self.item = Item(name, (a, g), step=(2.0 if numbers.inverse else 4.0) * a * g * (a + g))

    def add_inputs(self, flat: Tensor, seen: Tensor, weight: float) -> None:
        """Add the second moment of this pass's inputs (samples, ...) to ``flat``, times ``weight`` (x_i / X)."""
        seen = seen.to(self._numbers.kind)
        if isinstance(self.module, nn.Linear):
            rows = seen.reshape(-1, seen.shape[-1])
            self.sums[0].add(flat, rows, weight / max(1, len(rows)))
            return
        positions = _positions(self.module, seen)
        scale = weight / (positions**2 * max(1, len(seen)))
        self.sums[0].add(flat, seen, scale / positions if self._numbers.compat else scale)

    def add_outputs(self, flat: Tensor, seen: Tensor, weight: float, undo: float) -> None:
        """Add that of the output gradients ``seen`` (samples, ...) to ``flat``, each times ``undo``.

        ``undo`` is the weight of the loss in the union's gradient over its scale; with KFC's scaling, also over x_i / X
        and times the passes of an accumulation.
        """
        seen, compat, scale = seen.to(self._numbers.kind), self._numbers.compat, weight * undo**2
        if isinstance(self.module, nn.Linear):
            rows = seen.reshape(-1, seen.shape[-1])
            self.sums[1].add(flat, rows, scale / max(1, len(rows)) if compat else scale * len(rows))
            return
        samples, positions = max(1, len(seen)), seen.shape[2] * seen.shape[3]
        self.sums[1].add(flat, seen, scale / (samples * positions**3) if compat else scale * samples * positions)

    def factors(self, square: int, kept: Tensor, identity: float) -> Tensor:
        """Return A or G of layers with equal keys, shape (layers, n, n), from their statistics (layers, kept)."""
        found = self.sums[square].squares(kept)
        found.diagonal(dim1=1, dim2=2).add_(identity)
        return found

    def batch_key(self, square: int) -> Hashable:
        return type(self.sums[square]), self.sums[square].numbers

    @classmethod
    def decompose(cls, squares: Sequence[tuple[Self, int]], kept: Tensor, identity: float) -> Tensor:
        """Return Q and d of each factor concatenated, or its damped inverse; shape (squares, basis)."""
        layer, square = squares[0]
        factors = layer.factors(square, kept, identity)
        if layer._numbers.inverse:
            factors.diagonal(dim1=1, dim2=2).add_(layer._numbers.damping)
            return torch.cholesky_inverse(torch.linalg.cholesky(factors)).flatten(1)
        values, vectors = torch.linalg.eigh(factors)
        return torch.cat([vectors.flatten(1), values.clamp_(min=0.0)], 1)  # rounding makes zeros slightly negative

    def neutral(self, square: int) -> Tensor:
        side = self.item.sides[square]
        unit = torch.eye(side, dtype=self._numbers.kind).view(-1)
        return unit if self._numbers.inverse else torch.cat([unit, torch.ones(side, dtype=self._numbers.kind)])

    def renew(self, bases: list[Tensor]) -> None:
        self._bases = [one[: n * n].view(n, n) for one, n in zip(bases, self.item.sides, strict=True)]
        self._values = [one[n * n :] for one, n in zip(bases, self.item.sides, strict=True)]
        self._scale = None

    def curvature(self) -> Tensor | None:
        """Return the median of dG dA, a scalar, for comparison with λ; None without a basis on this worker."""
        return torch.outer(self._values[1], self._values[0]).median() if self._bases else None

    def apply(self, out: Tensor) -> Tensor | None:
        """Write QG ((QGᵀ ∇ QA) / (dG dAᵀ + λ)) QAᵀ, or G⁻¹ ∇ A⁻¹, to ``out`` (result,)."""
        numbers, (qa, qg) = self._numbers, self._bases
        gradient = self._gradient()
        if numbers.inverse:
            found = qg @ gradient @ qa
        else:
            if self._scale is None or self._scale[0] != numbers.damping:
                outer = torch.outer(self._values[1], self._values[0]).add_(numbers.damping).reciprocal_()
                self._scale = numbers.damping, outer  # until λ or the bases change
            found = qg @ (qg.t() @ gradient @ qa).mul_(self._scale[1]) @ qa.t()
        wide = self.module.weight.numel() // len(self.module.weight)
        out[: self.module.weight.numel()].view(-1, wide).copy_(found[:, :wide])
        if len(self.weights) > 1:
            out[self.module.weight.numel() :].copy_(found[:, wide])
        if not numbers.clipped:
            return None
        return torch.dot(found.reshape(-1), gradient.reshape(-1)) * numbers.lr_of(self.weights[0]) ** 2

    def _gradient(self) -> Tensor:
        """Return the gradient as a matrix, with that of the bias as last column; shape (out, in · kernel + bias)."""
        found = [_or_zero(one).reshape(len(self.module.weight), -1) for one in self.weights]
        return (torch.cat(found, 1) if len(found) > 1 else found[0]).to(self._numbers.kind)


def _or_zero(weight: nn.Parameter) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


def _pair(what: Any) -> tuple[int, int]:
    return (what, what) if isinstance(what, int) else (int(what[0]), int(what[1]))


def _padding(module: nn.Conv2d) -> tuple[int, int]:
    if module.padding == "valid":
        return 0, 0
    if module.padding == "same":
        down, right = module.kernel_size
        if down % 2 == 0 or right % 2 == 0:
            raise ConfigError(
                "padding='same' with an even kernel is asymmetric: use an odd kernel, or give the padding as numbers"
            )
        return down // 2, right // 2
    return _pair(module.padding)


def _positions(module: nn.Conv2d, seen: Tensor) -> int:
    """Return the number of output positions, Ho · Wo."""
    found = 1
    for size, kernel, stride, pad in zip(
        seen.shape[2:], module.kernel_size, module.stride, _padding(module), strict=True
    ):
        found *= (size + 2 * pad - kernel) // stride + 1
    return found


def _sums(module: nn.Linear | nn.Conv2d, ones: bool) -> tuple[Sums, Sums]:
    if isinstance(module, nn.Linear):
        return RowSums(module.in_features, ones), RowSums(module.out_features)
    kernel, stride, padding = _pair(module.kernel_size), _pair(module.stride), _padding(module)
    outputs = PixelSums(module.out_channels)
    if kernel == (3, 3) and stride == padding == (1, 1):
        return AutoSums(module.in_channels, ones), outputs
    if kernel == (1, 1) and padding == (0, 0):
        return PixelSums(module.in_channels, stride, ones), outputs
    return PatchSums(module.in_channels, kernel, stride, padding, ones), outputs
