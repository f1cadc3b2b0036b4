"""The check that replicas still agree, by a few numbers of each tensor, after 1, 2, 4, 8, … batches and when an
epoch starts.

If gradients are averaged in every step, replicas stay equal only if all workers change them identically. They diverge
without an error by a layer that its first batch initializes, a scheduler that follows a worker's own loss, or a step on
one rank. Replicas agree up to rounding, which differs between processors.
"""

import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from uneven.errors import TrainingError
from uneven.policy.core.batch_weight import BatchWeight

# The part of a tensor's norm by which replicas may differ, and the same in units of its type's rounding (ours).
_TOLERANCE, _ROUNDING = 1e-3, 8.0

# The fewest iterations between two comparisons at epoch starts, so that short epochs do not pay for each (ours).
_APART = 100

_RATES = "learning rates"

_REMEDIES = {
    "parameter": "A layer that its first batch initializes needs one batch before session.setup; make other "
    "changes on all ranks",
    "buffer": "A forward pass has written it, but the first one did not, so it is not averaged: write it in each pass, "
    "or name it in model._ddp_params_and_buffers_to_ignore if it may differ",
    "learning": "Give schedulers the same numbers on all ranks: scheduler.step(session.mean(loss))",
}


def wide_place(tensor: Tensor) -> Tensor:
    """Return the tensor, any shape, on a device that has float64: on the host, if it is on an Apple GPU."""
    return tensor.detach().cpu() if tensor.is_mps else tensor.detach()


def digests(tensors: Sequence[Tensor]) -> Tensor:
    """Return Σ x and Σ x² of each tensor (any shape), and the squares of both: float64, shape (tensors, 4)."""
    if not tensors:
        return torch.zeros(0, 4, dtype=torch.float64)
    wide = [wide_place(one) for one in tensors]
    sums = torch.stack([one.sum(dtype=torch.float64) for one in wide])
    norms = torch.stack([torch.linalg.vector_norm(one, dtype=torch.float64) for one in wide])
    two = torch.stack([sums, norms.square()], 1)
    return torch.cat([two, two.square()], 1)


def differing(total: Tensor, tensors: Sequence[Tensor], ranks: float, tolerance: float = _TOLERANCE) -> list[int]:
    """Return the places of tensors that differ between ranks; NaN counts as equal.
    ``total`` is the sum of :func:`digests` over the ranks, shape (tensors, 4); ``tolerance`` a part of a tensor's norm.
    """
    mean = total[:, :2] / ranks
    variance = total[:, 2:] / ranks - mean.square()
    allowed = mean.new_tensor([max(tolerance, _ROUNDING * torch.finfo(one.dtype).eps) for one in tensors]) ** 2
    most = torch.stack([mean.new_tensor([one.numel() for one in tensors]) * mean[:, 1], mean[:, 1].square()], 1)
    return [*map(int, (ranks * variance > allowed[:, None] * most).any(1).nonzero())]


class _Due:
    """The iterations in which replicas are compared, the same on all ranks."""

    def __init__(self) -> None:
        self._epoch = self._seen = -1
        self._last = 0

    def at(self, epoch: int, iteration: int) -> bool:
        """Return whether to compare now; call it in order, for all iterations or those with an exchange."""
        fresh, self._epoch = epoch != self._epoch, epoch
        before, self._seen = self._seen, iteration
        due = (iteration + 1).bit_length() > (before + 1).bit_length() or (fresh and iteration - self._last >= _APART)
        self._last = iteration if due else self._last
        return due


class ReplicaCheck:
    """Compares this worker's replica with those of others after an exchange of gradients, in selected iterations.

    Args:
        buffers: returns the named buffers that forward passes must not write.
        total: replaces a tensor by its sum over all ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        rank: int,
        ranks: Sequence[int],
        buffers: Callable[[], dict[str, Tensor]],
        total: Callable[[Tensor], object],
    ) -> None:
        self._model = model
        self._buffers = buffers
        self._total = total
        self._optimizers = [weakref.ref(one) for one in optimizers]  # their hooks lead here: avoid a cycle
        self._rank = rank
        self._ranks = ranks
        self._left_out = getattr(model, "_ddp_params_and_buffers_to_ignore", ())  # DDP skips them too
        self._handed = _Due()
        self._exchanged = _Due()
        self._thread = get_ident()
        self._found: dict[int, Tensor] = {}  # by iteration, until the next exchange

    def begins(self, epoch: int, iteration: int) -> None:
        # Not at the exchange: a script (SAM) may move parameters for a pass and back before the step. A thread that
        # reads ahead would see them mid-step.
        if self._handed.at(epoch, iteration) and get_ident() == self._thread:
            self._found[iteration] = digests([*self._parameters().values()])

    def _parameters(self) -> dict[str, Tensor]:
        named = self._model.named_parameters()
        return {
            f"parameter {name}": one for name, one in named if one.is_floating_point() and name not in self._left_out
        }

    def __call__(self, turn: BatchWeight) -> None:
        """Compare if it is time, and raise :class:`TrainingError` with the name of a tensor that differs."""
        handed = [self._found.pop(at) for at in sorted(self._found) if at <= turn.iteration] if self._found else []
        if not self._exchanged.at(turn.epoch, turn.iteration):
            return
        named = self._parameters()
        rates = [float(group["lr"]) for one in self._optimizers for group in _groups(one()) if "lr" in group]
        every = {_RATES: wide_place(next(self._model.parameters())).new_tensor(rates, dtype=torch.float64), **named}
        every |= {f"buffer {name}": one for name, one in self._buffers().items()}
        own = digests([*every.values()])
        if handed:
            own[1 : len(named) + 1] = handed[-1]
        self._total(total := own.clone())
        if apart := differing(total, [*every.values()], len(self._ranks)):
            raise self._error([*every][apart[0]], own[apart[0], 0], turn.iteration)

    def _error(self, name: str, mine: Tensor, iteration: int) -> TrainingError:
        table = mine.new_zeros(len(self._ranks))
        table[self._ranks.index(self._rank)] = mine
        self._total(table)
        sums = "; ".join(f"{value:.6g} on rank {rank}" for rank, value in zip(self._ranks, table.tolist(), strict=True))
        return TrainingError(
            f"iteration {iteration}: the workers no longer train one model: {name} differ{'s' * (name != _RATES)}, "
            f"with sums of {sums}. {_REMEDIES[name.split()[0]]}"
        )


def _groups(optimizer: torch.optim.Optimizer | None) -> list[dict[str, Any]]:
    return [] if optimizer is None else optimizer.param_groups
