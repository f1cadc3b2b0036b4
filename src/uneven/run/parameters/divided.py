"""Where parties hold a replica together and divide the learning rate: what the steps of one worker count."""

from __future__ import annotations

from torch.optim import Optimizer

from uneven.core.actions import StepPlan
from uneven.data.order import Portion


class DividedSteps:
    """What a worker's gradients and learning rate are, beside those of all.

    Attributes:
        rate: the learning rate of the newest step, of that of the first one of the same optimizer.
    """

    def __init__(self, rank: int) -> None:
        self.rate = 1.0
        self._rank = rank
        self._weight = 1.0
        self._first: dict[int, float] = {}  # optimizer → its learning rate in the first step

    def begin(self, plan: StepPlan, part: Portion) -> None:
        """A step is about to begin."""
        self._weight = 1.0
        if plan.divided:
            parties = next(one.parties for one in plan.exchanges if one.parties)
            party = next(party for party in parties if self._rank in party)
            self._weight = len(parties) * sum(map(part.batch, party)) / max(1, sum(part.shares))

    def weigh(self, optimizer: Optimizer) -> None:
        """Before a step of the optimizer: let the gradient count as what its samples are of all."""
        rate = float(optimizer.param_groups[0]["lr"]) if "lr" in optimizer.param_groups[0] else 1.0
        first = self._first.setdefault(id(optimizer), rate)
        self.rate = rate / first if first > 0 else 1.0
        if self._weight == 1.0:
            return
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            if parameter.grad is not None:
                parameter.grad.mul_(self._weight)
