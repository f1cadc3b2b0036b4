"""EASGD: springs between the replicas and a parameter server's center."""

from uneven.errors import ConfigError
from uneven.policy.core.actions import Elastic, Exchange, Moment, Payload, StepPlan, Via
from uneven.policy.core.views import SyncView
from uneven.policy.sync._parts import NOTHING, Members, Remembered, flag, number, whole
from uneven.policy.sync.local import often
from uneven.policy.sync.sync_policy import EvaluationModel, Facts, Pace, SyncPolicy

_BETA = 0.9  # of α = β / members [recalled]
# the largest stable α · members: beyond it x̃ += Σ α (x_i − x̃) overshoots by more than the distance [derived]
_MOST_BETA = 2.0


_SHOWN = 64  # τ of the paper, at most (Zhang, Choromanska and LeCun 2015) [recalled]


class EASGD(SyncPolicy):
    """Elastic averaging (2015), asynchronous: d = α (x_i − x̃); x_i −= d; x̃ += d, both from the old values.

    Each worker exchanges with the parameter server separately. Every exchange keeps the sum of the server and the
    replicas.

    Args:
        alpha: α, above 0 and at most 1; None is 0.9 / members, a rule of thumb [recalled].
        every: steps between two exchanges of a worker.
        together: the synchronous form, without a server: all workers exchange at the same time, x_i −= d_i and
            x̃ += Σ_i d_i, and each keeps an equal x̃. α · members must be at most 2, or ``plan`` raises
            ``ConfigError``.
    """

    evaluation_model = EvaluationModel.CENTRE

    def __init__(self, *, alpha: float | None = None, every: int = 4, together: bool = False) -> None:
        self.alpha = None if alpha is None else number("easgd", "alpha", alpha, "(0, 1]")
        self.every = whole("easgd", "every", every, least=1)
        self.together = flag("easgd", "together", together)
        self._plan = Remembered(self._make_plan)

    def plan(self, view: SyncView) -> StepPlan:
        return NOTHING if (view.clock + 1) % self.every else self._plan(view.members)

    @property
    def constant(self) -> bool:
        return self.every == 1

    @property
    def facts(self) -> Facts:
        if self.together:
            return Facts(
                payloads=(Payload.PARAMETERS,),
                every=self.every,
                pace=Pace.TOGETHER,
                stops=True,
                moves=f"the parameters, {often(self.every)}, after the optimizer",
                waits=f"all workers for the slowest, {often(self.every)}",
                stale="a replica lacks the others' steps; replicas approach each other but are never equal",
                lost_when_one_dies=f"its steps since the last one, up to {self.every}; the others stop at the next",
                shown=_SHOWN,
            )
        return Facts(
            payloads=(Payload.PARAMETERS,),
            every=self.every,
            pace=Pace.OWN,
            stops=False,
            moves=f"the parameters to the parameter server and back, {often(self.every)}, after the optimizer",
            waits="no worker",
            stale="a replica lacks the others' steps since its last exchange; replicas are never equal",
            lost_when_one_dies=f"its steps since its last exchange, up to {self.every}; the others continue",
            shown=_SHOWN,
        )

    def _make_plan(self, members: Members) -> StepPlan:
        alpha = _BETA / len(members) if self.alpha is None else self.alpha
        # The members are known only here, and they may change during a run.
        if self.together and alpha * len(members) > _MOST_BETA:
            raise ConfigError(
                f"easgd: alpha = {alpha} with {len(members)} workers would make the centre overshoot: use at most "
                f"{_MOST_BETA / len(members):.4g}, or leave alpha out for {_BETA} / workers"
            )
        pull = Exchange(
            payload=Payload.PARAMETERS,
            members=members,
            merge=Elastic(alpha),
            moment=Moment.STEP,
            via=Via.GROUP if self.together else Via.SERVER,
        )
        return StepPlan(exchanges=(pull,))
