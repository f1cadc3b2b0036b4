"""Weights and learning rates of a worker's steps if parties hold one replica together and divide the learning rate."""

from itertools import chain

from torch.optim import Optimizer

from uneven.policy.core.actions import StepPlan
from uneven.policy.samples.order import Portion
from uneven.run.replicas.sparse.unsent import OWN


class DividedSteps:
    """The weight of a worker's gradients; ``rate`` is the learning rate relative to the optimizer's first step."""

    def __init__(self, rank: int) -> None:
        self.rate = 1.0
        self._rank = rank
        self._weight = 1.0
        self._part: Portion | None = None  # of the newest step
        self._first: dict[int, float] = {}  # optimizer id → its learning rate in the first step
        self._known: list[float] = []  # the same from a checkpoint, in the order of the optimizers' first steps

    def state(self) -> dict[str, float]:
        """Return numbers for a checkpoint, by names that begin with ``OWN``; none before the first step."""
        firsts = list(self._first.values()) or self._known
        named = {f"{OWN}first-{place}": rate for place, rate in enumerate(firsts)}
        return {f"{OWN}rate": self.rate, **named} if named else {}

    def load(self, state: dict[str, float]) -> None:
        """Load :meth:`state` from among other numbers; without any, start from scratch."""
        self.rate = state.get(f"{OWN}rate", 1.0)
        known = sum(name.startswith(f"{OWN}first-") for name in state)
        self._known = [state[f"{OWN}first-{place}"] for place in range(known)]
        self._first.clear()

    def members_changed(self, plan: StepPlan) -> None:
        """Continue the step with the plan of other members."""
        if self._part is not None:
            self.begin(plan, self._part)

    def begin(self, plan: StepPlan, part: Portion) -> None:
        self._weight, self._part = 1.0, part
        if plan.divided:
            parties = next(one.parties for one in plan.exchanges if one.parties)
            party = next(party for party in parties if self._rank in party)
            self._weight = len(parties) * sum(map(part.batch, party)) / max(1, sum(map(part.batch, chain(*parties))))

    def weigh(self, optimizer: Optimizer) -> None:
        """Weight the gradient, before an optimizer step, by its part of all samples."""
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
