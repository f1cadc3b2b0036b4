"""SkewScout: a policy's knob follows the accuracy that models lose at other sites."""

import inspect
import math
from bisect import bisect_right
from typing import Any, NamedTuple, NotRequired, TypedDict

from uneven.errors import ConfigError
from uneven.policy.core.actions import StepPlan
from uneven.policy.core.plain import read
from uneven.policy.core.views import SyncView
from uneven.policy.skew import Objective, Tuner, tuners
from uneven.policy.sync._parts import number, whole
from uneven.policy.sync.geo import Geo
from uneven.policy.sync.hierarchical import Hierarchical
from uneven.policy.sync.local import LocalSGD
from uneven.policy.sync.sparse import SparseLocal
from uneven.policy.sync.sync_policy import Facts, Pace, SyncPolicy, WrappingPolicy

Setting = float | int

# Policy class (subclasses count), knob and settings to try, from the one that sends least. The last setting of geo,
# local and hierarchical is BSP and sends as much.
KNOBS: tuple[tuple[type[SyncPolicy], str, tuple[Setting, ...]], ...] = (
    (Geo, "threshold", (0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.0)),
    (SparseLocal, "density", (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)),
    (Hierarchical, "every", (64, 32, 16, 8, 4, 2, 1)),
    (LocalSGD, "every", (64, 32, 16, 8, 4, 2, 1)),
)

# The models compared with a site's own model at home, and the accuracy they may lose by default. A mean can be as good
# as BSP's model even if copies lose a quarter of their accuracy at other sites. Each knows its own labels best.
JUDGES = {"mean": 0.2, "copies": 0.05}


class _ScoutState(TypedDict):
    inner: dict[str, Any]
    tuner: NotRequired[dict[str, Any]]
    settings: NotRequired[list[list[int]]]


class ScoutPeriod(NamedTuple):
    """The result of a period."""

    until: int  # the first step of the next period
    setting: Setting
    loss: float  # of accuracy
    share: float  # bytes relative to BSP's


class Scout(WrappingPolicy):
    """Tunes the inner policy's knob by evaluating models at other sites (SkewScout, Hsieh et al. 2020).

    Every ``period`` steps each site evaluates its own model and the mean of all sites' models, the result of the
    training, on samples of the site. The accuracy that the mean loses, and the bytes sent in the period relative to
    BSP's, make the objective (:class:`~uneven.policy.skew.Objective`). By it a tuner chooses the setting of the next
    period. SkewScout compares a site's model with itself at the next site (``judge="copies"``), which suits training in
    which every site keeps its own model.

    The knob is ``threshold`` of geo, ``density`` of sparse-local and topk, ``every`` of local and hierarchical.

    Args:
        inner: policy whose knob is tuned.
        period: steps from one evaluation to the next.
        sample: number of training samples of each site for it.
        judge: "mean" or "copies".
        tolerance: accuracy that may be lost, below 1; 0 is 0.2 for means and 0.05 for copies.
        loss_weight, bytes_weight: of the objective.
        start: index of the first setting, from the loosest; −1 is the middle.
        tuner: climb, stochastic or annealing.
    """

    def __init__(
        self,
        inner: str | SyncPolicy = "geo",
        *,
        period: int = 500,
        sample: int = 500,
        judge: str = "mean",
        tolerance: float = 0.0,
        loss_weight: float = 50.0,
        bytes_weight: float = 1.0,
        start: int = 0,
        tuner: str = "climb",
    ) -> None:
        super().__init__(inner)
        self.period = whole("scout", "period", period, least=1)
        self.sample = whole("scout", "sample", sample, least=1)
        if judge not in JUDGES:
            raise ConfigError(f"scout: judge = {judge!r} must be one of: {', '.join(JUDGES)}")
        self.judge = judge
        self.tolerance = number("scout", "tolerance", tolerance, "[0, 1)")
        self.loss_weight = number("scout", "loss_weight", loss_weight, "[0, inf)")
        self.bytes_weight = number("scout", "bytes_weight", bytes_weight, "[0, inf)")
        self.start = whole("scout", "start", start, least=-1)
        self.tuner = tuner
        self.knob, self.settings = _knob(self.inner)  # settings from the one that sends least
        self._policies = [_with(self.inner, self.knob, value) for value in self.settings]
        self._tolerated = self.tolerance or JUDGES[judge]
        self._objective = Objective(self._tolerated, self.loss_weight, self.bytes_weight)
        first = len(self.settings) // 2 if start == -1 else start
        tightest = self.bytes_weight if self.settings[-1] in (0, 1) else math.inf  # BSP, whose bytes are known
        self._tuner: Tuner = tuners[tuner](len(self.settings), first, tightest=tightest)
        self._since = [0]  # first step of each setting in ``_in_force``
        self._in_force = [first]
        self.periods: list[ScoutPeriod] = []

    def plan(self, view: SyncView) -> StepPlan:
        # Workers may plan different steps at the same time, so the setting depends on the clock, not on the newest one.
        return self._policies[self._in_force[bisect_right(self._since, view.clock) - 1]].plan(view)

    @property
    def tuned(self) -> "Scout":
        return self

    @property
    def setting(self) -> Setting:
        return self.settings[self._in_force[-1]]

    def heard(self, clock: int, *, loss: float, share: float) -> Setting:
        """Record the result of a period; return the setting from step ``clock`` on, which no worker has planned yet.

        ``loss`` is the accuracy of sites' models at home minus that of the models compared, mean over the sites;
        ``share`` are the bytes between sites in the period relative to BSP's.
        """
        self.periods.append(ScoutPeriod(clock, self.setting, loss, share))
        following = self._tuner.measured(self._objective.of(loss, share), loss / self._tolerated)
        self._since.append(clock)
        self._in_force.append(following)
        return self.settings[following]

    @property
    def facts(self) -> Facts | None:
        return self._policies[self._in_force[0]].facts

    def state_dict(self) -> dict[str, Any]:
        pairs = [[since, place] for since, place in zip(self._since, self._in_force, strict=True)]
        return {**super().state_dict(), "tuner": self._tuner.state_dict(), "settings": pairs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        told = read(_ScoutState, state)
        super().load_state_dict({"inner": told["inner"]})
        if "tuner" in told and "settings" in told:
            self._tuner.load_state_dict(told["tuner"])
            self._since, self._in_force = ([pair[side] for pair in told["settings"]] for side in (0, 1))


def _knob(inner: SyncPolicy) -> tuple[str, tuple[Setting, ...]]:
    for kind, knob, settings in KNOBS:
        if not isinstance(inner, kind):
            continue
        if inner.facts is not None and inner.facts.pace is not Pace.TOGETHER:
            raise ConfigError(
                f"scout: under {inner!r} workers step at their own pace, so sites have no common step: use geo:bsp"
            )
        return knob, settings
    raise ConfigError(
        f"scout: {inner!r} cannot change the amount that it sends: use geo, sparse-local, topk, local or hierarchical"
    )


def _with(policy: SyncPolicy, knob: str, value: Setting) -> SyncPolicy:
    known = {name: getattr(policy, name) for name in inspect.signature(type(policy)).parameters}
    return type(policy)(**{**known, knob: value})
