"""Do the replicas still agree? A few numbers of each tensor tell, at the start of an epoch and in steps 1, 2, 4, 8, …

Where gradients are averaged in every step, replicas stay the same if all workers change them alike. A layer that its
first batch initializes, a scheduler that follows a worker's own loss, or a step that one rank makes alone parts them,
and nothing fails. Replicas agree up to rounding, which differs between processors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from uneven.core.turn import Turn
from uneven.errors import TrainingError
from uneven.run.gradients.instep import is_still

_TOLERANCE, _ROUNDING = 1e-3, 8.0
"""Part of a tensor's length by which replicas may differ, and the same in roundings of its type (ours)."""

_RATES = "learning rates"

_REMEDIES = {
    "parameter": "A layer that its first batch initializes needs one batch before session.setup; all ranks have to "
    "make any other change alike",
    "buffer": "A forward pass writes it; such buffers are averaged if the first one does, and not in elastic runs: "
    "write it from what all ranks have, or name it in model._ddp_params_and_buffers_to_ignore if it may differ",
    "learning": "Give schedulers the same numbers on all ranks: scheduler.step(session.mean(loss))",
}


def digests(tensors: Sequence[Tensor]) -> Tensor:
    """Return Σ x and Σ x² of each tensor, and the squares of both: float64, shape (tensors, 4)."""
    sums = torch.stack([one.detach().sum(dtype=torch.float64) for one in tensors])
    norms = torch.stack([torch.linalg.vector_norm(one.detach(), dtype=torch.float64) for one in tensors])
    two = torch.stack([sums, norms.square()], 1)
    return torch.cat([two, two.square()], 1)


def differing(total: Tensor, tensors: Sequence[Tensor], ranks: float, tolerance: float = _TOLERANCE) -> list[int]:
    """Return the places of tensors that are not the same on all ranks. NaN counts as the same.

    Args:
        total: sum of :func:`digests` over the ranks, shape (tensors, 4).
        tolerance: part of a tensor's length by which replicas may differ.
    """
    mean = total[:, :2] / ranks
    variance = total[:, 2:] / ranks - mean.square()
    allowed = mean.new_tensor([max(tolerance, _ROUNDING * torch.finfo(one.dtype).eps) for one in tensors]) ** 2
    most = torch.stack([mean.new_tensor([one.numel() for one in tensors]) * mean[:, 1], mean[:, 1].square()], 1)
    return [*map(int, (ranks * variance > allowed[:, None] * most).any(1).nonzero())]


class ReplicaCheck:
    """Compares this worker's replica with the others' before a step of an optimizer, if it is time.

    Args:
        turn_now: gives the turn of the newest pass; None where a step concerns nobody else.
        buffers: name → buffer that forward passes are not to write.
        total: replaces a tensor by its sum over the members.
        members: their ranks.
        epochs: whether all members begin each epoch together.
    """

    def __init__(
        self, model: nn.Module, rank: int, turn_now: Callable[[], Turn | None],
        buffers: Callable[[], dict[str, Tensor]], total: Callable[[Tensor], object],
        members: Callable[[], Sequence[int]], epochs: bool,
    ) -> None:  # fmt: skip
        self._model, self._rank, self._turn_now, self._buffers = model, rank, turn_now, buffers
        self._total, self._members, self._epochs = total, members, epochs
        self._seen: dict[int, int] = {}  # by optimizer: the epoch of its newest step

    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Compare, as a hook of the optimizer.

        Raises:
            TrainingError: naming what differs.
        """
        turn = self._turn_now()
        if turn is None or is_still(optimizer):
            return
        seen, self._seen[id(optimizer)] = self._seen.get(id(optimizer)), turn.epoch
        if turn.iteration & (turn.iteration + 1) and (seen == turn.epoch or not self._epochs):
            return
        named = {name: one for name, one in self._model.named_parameters() if one.is_floating_point()}
        like = next(iter(named.values())).detach()
        rates = like.new_tensor([group["lr"] for group in optimizer.param_groups], dtype=torch.float64)
        every = {"": like.new_ones(1), _RATES: rates} | {f"parameter {name}": one for name, one in named.items()}
        every |= {f"buffer {name}": one for name, one in self._buffers().items()}
        total = digests([*every.values()])
        self._total(total)
        if apart := differing(total, [*every.values()], float(total[0, 0])):  # the first one counts the members
            raise self._error(*[*every.items()][apart[0]], turn.iteration)

    def _error(self, name: str, mine: Tensor, iteration: int) -> TrainingError:
        members = self._members()
        table = torch.zeros(len(members), dtype=torch.float64, device=mine.device)
        table[members.index(self._rank)] = mine.detach().sum(dtype=torch.float64)
        self._total(table)
        sums = "; ".join(f"{value:.6g} on rank {rank}" for rank, value in zip(members, table.tolist(), strict=True))
        return TrainingError(
            f"iteration {iteration}: the workers no longer train one model: {name} differ{'s' * (name != _RATES)}, "
            f"with sums of {sums}. {_REMEDIES[name.split()[0]]}"
        )
