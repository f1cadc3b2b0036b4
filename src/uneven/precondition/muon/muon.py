"""Muon as a callback of a session."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from uneven.errors import ConfigError
from uneven.policy.ownership.placement import Item
from uneven.precondition.item_work import ItemWork, Sizes
from uneven.precondition.preconditioner import Preconditioner
from uneven.precondition.pure.sharing import Sharing, one_of
from uneven.precondition.refusals import check_gradients, check_optimizer
from uneven.run.step.callback import Step


@dataclass(frozen=True, slots=True)
class Orthogonalisation:
    """The settings that all weights share; names are those of ``torch.optim.Muon``."""

    momentum: float
    nesterov: bool
    ns_coefficients: tuple[float, float, float]
    eps: float
    ns_steps: int
    adjust_lr_fn: str | None
    ns_dtype: torch.dtype

    def ratio(self, rows: int, columns: int) -> float:
        """Return the factor of the learning rate of a matrix."""
        if self.adjust_lr_fn == "match_rms_adamw":
            return 0.2 * math.sqrt(max(rows, columns))
        return math.sqrt(max(1.0, rows / columns))


def orthogonalised(matrices: Tensor, how: Orthogonalisation) -> Tensor:
    """Return nearly U Vᵀ of each matrix U S Vᵀ, by the Newton-Schulz steps of ``torch.optim.Muon``.

    Args:
        matrices: shape (matrices, rows, columns), as the result.
    """
    a, b, c = how.ns_coefficients
    tall = matrices.shape[1] > matrices.shape[2]
    found = (matrices.mT if tall else matrices).to(how.ns_dtype)
    found = found / found.norm(dim=(1, 2), keepdim=True).clamp_(min=how.eps)
    for _ in range(how.ns_steps):
        gram = found @ found.mT
        gram = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        found = torch.baddbmm(found, gram, found, beta=a)
    return found.mT if tall else found


class Momentum(ItemWork):
    """A weight with two axes or more; all but the first are merged. Its statistics are its momentum, its basis is the
    orthogonalised momentum."""

    def __init__(self, name: str, weight: nn.Parameter, how: Orthogonalisation) -> None:
        self.weights = (weight,)
        self._how = how
        self._shape = (len(weight), weight.numel() // len(weight))
        self.sizes = Sizes((weight.numel(),), (weight.numel(),), 0)
        self.item = Item(name, self._shape, step=0.0, ns_steps=how.ns_steps)
        self._ratio = how.ratio(*self._shape)

    def add(self, kept: Tensor) -> None:
        """Update the momentum ``kept`` (kept,): M ← μ M + (1 − μ) ∇."""
        if (gradient := self._gradient(kept)) is not None:
            kept.lerp_(gradient, 1.0 - self._how.momentum)

    def batch_key(self, square: int) -> Hashable:
        return self._shape

    @classmethod
    def decompose(cls, squares: Sequence[tuple[Self, int]], kept: Tensor, identity: float) -> Tensor:
        """Return the orthogonalised momentum of each weight, shape (squares, basis)."""
        first = squares[0][0]
        for (one, _), momentum in zip(squares, kept, strict=True):
            if first._how.nesterov and (gradient := one._gradient(kept)) is not None:
                momentum.copy_(gradient.lerp(momentum, first._how.momentum))
        return orthogonalised(kept.view(-1, *first._shape), first._how).flatten(1)

    def _gradient(self, like: Tensor) -> Tensor | None:
        gradient = self.weights[0].grad
        return None if gradient is None else gradient.reshape(-1).to(like.dtype)

    def neutral(self, square: int) -> Tensor:
        return torch.zeros(self.sizes.basis[square])

    def renew(self, bases: list[Tensor]) -> None:
        (self._direction,) = bases

    def apply(self, out: Tensor) -> None:
        """Do nothing: all workers have the direction."""

    def write(self, result: Tensor, scale: float) -> None:
        if (gradient := self.weights[0].grad) is not None:
            gradient.copy_(self._direction.view_as(gradient)).mul_(self._ratio)


class Muon(Preconditioner):
    """Step along the orthogonalised momentum of each weight matrix (Jordan et al., 2024), as ``torch.optim.Muon``::

        hidden = [weight for weight in model.parameters() if weight.ndim >= 2]
        others = [weight for weight in model.parameters() if weight.ndim < 2]
        session = uneven.Session(callbacks=[uneven.Muon()])
        model, muon, adamw = session.setup(
            model, torch.optim.SGD(hidden, lr=0.02, weight_decay=0.1), torch.optim.AdamW(others, lr=3e-4)
        )

    Each matrix has an owner, which orthogonalises it and sends it to all others. Owners follow cost ÷ measured speed,
    and matrices of one shape share a call. The momentum is that of averaged gradients, so unequal shares change
    nothing. To orthogonalise every matrix on every worker, use ``torch.optim.Muon`` itself in a session.

    It turns the gradients of the first optimizer of ``session.setup`` into Muon's steps. This must be plain SGD without
    momentum, whose learning rate and weight decay are Muon's. Its weights need two axes; of more axes, all but the
    first are merged. Give biases, norms, embeddings and the last layer to another optimizer, such as AdamW.

    Args:
        momentum: decay of the momentum, from 0 to below 1.
        nesterov: whether a step looks ahead along the momentum.
        ns_coefficients: of the Newton-Schulz polynomial.
        eps: least norm by which a momentum is divided.
        ns_steps: Newton-Schulz steps.
        adjust_lr_fn: factor of the learning rate: "original" or None for √max(1, rows / columns), "match_rms_adamw" for
            0.2 √max(rows, columns).
        ns_dtype: of the Newton-Schulz steps and of the messages. float32 is faster on CPUs without bfloat16.
        assignment_strategy: owners by "speed", "compute", "memory", or "round-robin".

    Raises:
        ConfigError: an argument is out of range.
    """

    kind = "muon"
    keeps_failed = False  # as in torch, NaN in a gradient reaches the weights: an old direction would hide it
    owner_period = 10

    def __init__(
        self,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        ns_dtype: torch.dtype = torch.bfloat16,
        assignment_strategy: str = "speed",
    ) -> None:
        # Every worker needs every direction in every step.
        super().__init__(Sharing(inv_update_steps=1, grad_worker_fraction=1.0, assignment_strategy=assignment_strategy))
        one_of(adjust_lr_fn=(adjust_lr_fn or "original", ("original", "match_rms_adamw")))
        if not 0.0 <= momentum < 1.0 or not eps > 0.0 or not 1 <= ns_steps < 100:
            raise ConfigError(
                f"momentum = {momentum!r}, eps = {eps!r}, ns_steps = {ns_steps!r}: from 0 to below 1, above 0, and "
                "from 1 to 99"
            )
        self._how = Orthogonalisation(momentum, nesterov, ns_coefficients, eps, ns_steps, adjust_lr_fn, ns_dtype)
        self.basis_dtype = ns_dtype

    def make(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[ItemWork]:
        """Return the works of the optimizer's weights; raise :class:`ConfigError` for one without two axes."""
        stepped = check_optimizer(self.name, model, optimizer)
        self.moving: list[Momentum] = []
        for name, weight in model.named_parameters():
            if id(weight) not in stepped or not weight.requires_grad:
                continue
            if weight.ndim < 2:
                raise ConfigError(
                    f"{self.name} needs weights with two axes, and {name!r} has shape {tuple(weight.shape)}: give it "
                    "to another optimizer, session.setup(model, SGD(matrices, …), AdamW(others, …))"
                )
            self.moving.append(Momentum(name, weight, self._how))
        return list(self.moving)

    def before(self, step: Step, due_factors: bool) -> None:
        """Update the momentum of the weights that this worker owns."""
        check_gradients(self.name, ((one.item.name, one.weights[0]) for one in self.moving))
        self._take_loaded()
        for unit, kept in self._kept.items():
            self.moving[unit].add(kept)
