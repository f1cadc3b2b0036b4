"""Where parties hold a replica together and divide the learning rate: what the steps of one worker count."""

from __future__ import annotations

from torch.optim import Optimizer

from uneven.core.actions import StepPlan
from uneven.data.order import Portion
from uneven.run.entries.exchange import OWN


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
        self._known: list[float] = []  # the same of a run that goes on, in the order in which they step first

    def state(self) -> dict[str, float]:
        """Numbers for a checkpoint, by names that begin with ``OWN``; nothing before the first step."""
        firsts = list(self._first.values()) or self._known
        named = {f"{OWN}first-{place}": rate for place, rate in enumerate(firsts)}
        return {f"{OWN}rate": self.rate, **named} if named else {}

    def load(self, state: dict[str, float]) -> None:
        """Inverse of :meth:`state`, among other numbers; nothing at all is a new beginning."""
        self.rate = state.get(f"{OWN}rate", 1.0)
        known = sum(name.startswith(f"{OWN}first-") for name in state)
        self._known = [state[f"{OWN}first-{place}"] for place in range(known)]
        self._first.clear()

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
        if id(optimizer) not in self._first:
            at = len(self._first)
            self._first[id(optimizer)] = self._known[at] if at < len(self._known) else rate
        first = self._first[id(optimizer)]
        self.rate = rate / first if first > 0 else 1.0
        if self._weight == 1.0:
            return
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            if parameter.grad is not None:
                parameter.grad.mul_(self._weight)
