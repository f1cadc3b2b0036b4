"""Two levels of outer steps with momentum: frequent inside a region, rare between regions."""

from uneven.policy.core.actions import BlockMomentum, Exchange, Moment, Payload, StepPlan
from uneven.policy.core.views import SyncView
from uneven.policy.merge.merge import OuterMovement
from uneven.policy.sync._parts import NOTHING, PerRank, number, whole
from uneven.policy.sync.groups import by_site
from uneven.policy.sync.local import often
from uneven.policy.sync.sync_policy import EvaluationModel, Facts, Pace, SyncPolicy


class Regional(SyncPolicy):
    """Local steps, an outer step on the mean movement of a region, and sometimes one on the mean of all regions.

    Every ``every`` steps the workers of a region (a site) add η₁ (G + μ₁ V₁), V₁ = μ₁ V₁ + G, to their starting point,
    where G is their mean movement. After every ``across`` of these outer steps all regions take one of DiLoCo's on the
    mean of their replicas. This is the form of HALoS (2025), which is asynchronous; here a region waits for its slowest
    worker, and all regions for the slowest region.

    Args:
        every: steps between two outer steps of a region.
        across: a region's outer steps between two of all regions.
        outer_lr, outer_momentum: η₁ and μ₁; 1 and 0 are local SGD.
        global_lr, global_momentum: of the outer step of all regions.
    """

    evaluation_model = EvaluationModel.MEAN

    def __init__(
        self,
        *,
        every: int = 4,
        across: int = 4,
        outer_lr: float = 1.0,
        outer_momentum: float = 0.3,
        global_lr: float = 0.7,
        global_momentum: float = 0.5,
    ) -> None:
        self.every = whole("regional", "every", every, least=1)
        self.across = whole("regional", "across", across, least=1)
        self.outer_lr = number("regional", "outer_lr", outer_lr, "(0, inf)")
        self.outer_momentum = number("regional", "outer_momentum", outer_momentum, "[0, 1)")
        self.global_lr = number("regional", "global_lr", global_lr, "(0, inf)")
        self.global_momentum = number("regional", "global_momentum", global_momentum, "[0, 1)")
        self._near = OuterMovement(self.outer_momentum, self.outer_lr)
        self._far = BlockMomentum(self.global_momentum, self.global_lr, nesterov=True)
        self._plans = PerRank(self._make_plans, looks_at_sites=True)

    def plan(self, view: SyncView) -> StepPlan:
        turn, step = divmod(view.clock + 1, self.every)
        return NOTHING if step else self._plans(view, int(turn % self.across == 0))

    @property
    def facts(self) -> Facts:
        far = self.every * self.across
        return Facts(
            payloads=(Payload.PARAMETERS, Payload.DELTA),
            every=far,
            pace=Pace.TOGETHER,
            stops=True,
            moves=f"movements inside a region, {often(self.every)}; the parameters between regions, {often(far)}",
            waits=f"a region for its slowest worker, {often(self.every)}; all for the slowest region, {often(far)}",
            stale=f"the steps of other regions since the last exchange, up to {far - 1}",
            lost_when_one_dies=f"its steps since its region's last exchange, up to {self.every}; its region stops at "
            "the next one, then the others",
        )

    def _make_plans(self, view: SyncView, meeting: int) -> dict[int, StepPlan]:
        homes = by_site(view)
        far = Exchange(
            payload=Payload.PARAMETERS, members=view.members, merge=self._far, moment=Moment.STEP, parties=homes
        )
        plans = {}
        for home in homes:
            near = Exchange(payload=Payload.DELTA, members=home, merge=self._near, moment=Moment.STEP)
            meets = meeting and len(homes) > 1
            # Order matters: first the region's own step, so that regions exchange equal replicas.
            plans.update(dict.fromkeys(home, StepPlan(exchanges=(near, far) if meets else (near,))))
        return plans
