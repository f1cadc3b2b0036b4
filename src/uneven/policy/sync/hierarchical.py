"""Two levels: agreement on every step inside a site, and at intervals between sites."""

from uneven.policy.core.actions import Exchange, Mean, Moment, Payload, StepPlan
from uneven.policy.core.views import SyncView
from uneven.policy.sync._parts import PerRank, whole
from uneven.policy.sync.bsp import bsp_plan, gradient_mean
from uneven.policy.sync.groups import by_site
from uneven.policy.sync.local import often
from uneven.policy.sync.sync_policy import EvaluationModel, Facts, Pace, SyncPolicy


class Hierarchical(SyncPolicy):
    """BSP inside each site; every few steps the mean of the sites' replicas, weighted by samples.

    Replicas inside a site are equal, so a site sends one copy over the slow link. With one site it is BSP, with one
    worker per site it is local SGD. ``every`` is the number of steps between two exchanges of the sites.
    """

    evaluation_model = EvaluationModel.MEAN

    def __init__(self, *, every: int = 8) -> None:
        self.every = whole("hierarchical", "every", every, least=1)
        self._plans = PerRank(self._make_plans, looks_at_sites=True)

    def plan(self, view: SyncView) -> StepPlan:
        return self._plans(view, int((view.clock + 1) % self.every == 0))

    @property
    def facts(self) -> Facts:
        return Facts(
            payloads=(Payload.GRADIENT, Payload.PARAMETERS),
            every=self.every,
            pace=Pace.TOGETHER,
            stops=True,
            moves=f"the gradient inside a site, every step; the parameters between sites, {often(self.every)}",
            waits=f"a site for its slowest worker, every step; all for the slowest site, {often(self.every)}",
            stale=f"the steps of other sites since the last exchange, up to {self.every - 1}",
            lost_when_one_dies="no update: its site has the same replica and stops immediately, the others at the "
            "sites' next exchange",
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
