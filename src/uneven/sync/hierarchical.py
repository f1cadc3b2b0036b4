"""Two levels: inside a site on every step, between sites now and then. Pure."""

from __future__ import annotations

from uneven.core.actions import Exchange, Mean, Moment, Payload, StepPlan
from uneven.core.views import SyncView
from uneven.sync._parts import PerRank, whole
from uneven.sync.base import Evaluated, Facts, Pace, SyncPolicy
from uneven.sync.bsp import bsp_plan, gradient_mean
from uneven.sync.groups import by_site
from uneven.sync.local import often


class Hierarchical(SyncPolicy):
    """BSP inside each site; every so many steps the mean of the sites' replicas, weighted by samples.

    Inside a site the replicas are equal, so a site speaks once over the slow line. With one site it is BSP, with
    sites of one worker each it is local SGD.

    Args:
        every: steps between two exchanges of the sites.

    Raises:
        ConfigError: every is no whole number of at least 1.
    """

    evaluated = Evaluated.MEAN

    def __init__(self, *, every: int = 8) -> None:
        self.every = whole("hierarchical", "every", every, least=1)
        self._plans = PerRank(self._make_plans, looks_at_sites=True)

    def plan(self, view: SyncView) -> StepPlan:
        """The site's gradients, and after the last step of a block the parameters of all sites."""
        return self._plans(view, int((view.clock + 1) % self.every == 0))

    @property
    def facts(self) -> Facts:
        """A site is one worker to the others."""
        return Facts(
            payloads=(Payload.GRADIENT, Payload.PARAMETERS),
            every=self.every,
            pace=Pace.TOGETHER,
            stops=True,
            moves=f"the gradient inside a site, every step; the parameters between sites, {often(self.every)}",
            waits=f"a site for its slowest worker, every step; all for the slowest site, {often(self.every)}",
            stale=f"the steps of other sites since the last exchange, up to {self.every - 1}",
            lost_when_one_dies="no update: its site has the same replica; its site stops at once, the others when "
            "the sites meet",
        )

    def _make_plans(self, view: SyncView, meeting: int) -> dict[int, StepPlan]:
        homes = by_site(view)
        if len(homes) == 1:
            return dict.fromkeys(view.members, bsp_plan(view.members))
        far = Exchange(
            payload=Payload.PARAMETERS, members=view.members, merge=Mean(), moment=Moment.STEP, parties=homes
        )
        plans = {}
        for home in homes:
            near = (gradient_mean(home),) if len(home) > 1 else ()
            plans.update(dict.fromkeys(home, StepPlan(exchanges=(*near, far) if meeting else near)))
        return plans
