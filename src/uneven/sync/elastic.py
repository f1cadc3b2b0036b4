"""Replicas on a spring to a shared copy: EASGD. Pure."""

from __future__ import annotations

from uneven.core.actions import Elastic, Exchange, Moment, Payload, StepPlan, Via
from uneven.core.views import SyncView
from uneven.sync.base import Evaluated, Facts, Pace, SyncPolicy
from uneven.sync.local import often
from uneven.sync.parts import NOTHING, Kept, Members, number, whole

_BETA = 0.9


class EASGD(SyncPolicy):
    """Elastic averaging (2015), asynchronous: d = α (x_i − x̃); x_i −= d; x̃ += d, both from the old values.

    Each worker meets the shared copy on its own. The sum of copy and replicas is kept by every exchange.

    Args:
        alpha: α, above 0 and at most 1; None is 0.9 / members, a rule of thumb (recalled).
        every: steps between two exchanges of a worker.

    Raises:
        ConfigError: alpha or every out of range.
    """

    evaluated = Evaluated.CENTRE

    def __init__(self, *, alpha: float | None = None, every: int = 4) -> None:
        self.alpha = None if alpha is None else number("easgd", "alpha", alpha, "(0, 1]")
        self.every = whole("easgd", "every", every, least=1)
        self._plan = Kept(self._make_plan)

    def plan(self, view: SyncView) -> StepPlan:
        """One exchange with the shared copy, every so many steps; no wait."""
        return NOTHING if (view.clock + 1) % self.every else self._plan(view.members)

    @property
    def facts(self) -> Facts:
        """Nobody waits; replicas may differ for ever."""
        return Facts(
            payloads=(Payload.PARAMETERS,),
            every=self.every,
            pace=Pace.OWN,
            stops=False,
            moves=f"the parameters to the shared copy and back, {often(self.every)}, after the optimizer",
            waits="nobody",
            stale="a replica, by what the others did since its last exchange; they are drawn together, never equal",
            lost_when_one_dies=f"its steps since its last exchange, up to {self.every}; the others go on",
        )

    def _make_plan(self, members: Members) -> StepPlan:
        alpha = _BETA / len(members) if self.alpha is None else self.alpha
        pull = Exchange(
            payload=Payload.PARAMETERS, members=members, merge=Elastic(alpha), moment=Moment.STEP, via=Via.SERVER
        )
        return StepPlan(exchanges=(pull,))
