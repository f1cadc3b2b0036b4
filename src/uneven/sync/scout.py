"""SkewScout: the knob of a policy follows what models lose away from home. Pure."""

from __future__ import annotations

import inspect
import math
from bisect import bisect_right
from typing import Any, NamedTuple, NotRequired, TypedDict

from uneven.core.actions import StepPlan
from uneven.core.plain import read
from uneven.core.views import SyncView
from uneven.errors import ConfigError
from uneven.skew import Objective, Tuner, tuners
from uneven.sync._parts import number, whole
from uneven.sync.base import Facts, Pace, SyncPolicy, WrappingPolicy
from uneven.sync.geo import Geo
from uneven.sync.hierarchical import Hierarchical
from uneven.sync.local import LocalSGD
from uneven.sync.sparse import SparseLocal

Setting = float | int

KNOBS: tuple[tuple[type[SyncPolicy], str, tuple[Setting, ...]], ...] = (
    (Geo, "threshold", (0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.0)),
    (SparseLocal, "density", (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)),
    (Hierarchical, "every", (64, 32, 16, 8, 4, 2, 1)),
    (LocalSGD, "every", (64, 32, 16, 8, 4, 2, 1)),
)
"""Policy, its knob, and what the knob is tried at, from what sends least; subclasses count. The last one of geo, of
local and of hierarchical is BSP, and sends what it sends."""

JUDGES = {"mean": 0.2, "copies": 0.05}
"""What is compared with a site's model at home, and what it may lose by default: the mean of all models, which is the
one to deliver, or the model itself at the next site."""


class _ScoutState(TypedDict):
    inner: dict[str, Any]
    tuner: NotRequired[dict[str, Any]]
    settings: NotRequired[list[list[int]]]


class ScoutPeriod(NamedTuple):
    """What was found in a period: the step at which the next one begins, the setting, accuracy lost, and bytes as a
    part of BSP's."""

    until: int
    setting: Setting
    loss: float
    share: float


class Scout(WrappingPolicy):
    """Tunes the inner policy's knob, by models that visit other sites (SkewScout, Hsieh et al. 2020).

    Every ``period`` steps each site's model is tried on samples of its own site, and so is the mean of all sites'
    models, which is the one to deliver. What the mean loses, and what was sent meanwhile as a part of what BSP sends,
    make the objective (:class:`~uneven.skew.Objective`), by which a tuner chooses the setting of the next period.
    Copies are tried; no models are swapped, so nothing of what a site holds back is lost.

    SkewScout itself compares a site's model at home with the same one at the next site (``judge="copies"``). That is
    the measure where every site keeps its own model. A mean can be as good as BSP's model though copies lose a quarter
    of what they can do when they travel, as each knows its own labels best.

    The knob is ``threshold`` of geo, ``density`` of sparse-local and topk, ``every`` of local and hierarchical.

    Args:
        inner: whose knob is tuned.
        period: steps from one visit to the next.
        sample: of each site's training data, on which models are tried.
        judge: "mean" or "copies".
        tolerance: accuracy that may be lost, below 1; 0 stands for 0.2 of means and 0.05 of copies.
        loss_weight, bytes_weight: of the objective.
        start: place of the first setting among all, from the loosest; −1 is the middle.
        tuner: climb, stochastic or annealing.

    Attributes:
        settings: of the knob, from what sends least.
        periods: what was found so far.

    Raises:
        ConfigError: an argument out of range, or a policy without a knob.
    """

    def __init__(
        self, inner: str | SyncPolicy = "geo", *, period: int = 500, sample: int = 500, judge: str = "mean",
        tolerance: float = 0.0, loss_weight: float = 50.0, bytes_weight: float = 1.0, start: int = 0,
        tuner: str = "climb",
    ) -> None:  # fmt: skip
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
        self.knob, self.settings = _knob(self.inner)
        self._policies = [_with(self.inner, self.knob, value) for value in self.settings]
        self._tolerated = self.tolerance or JUDGES[judge]
        self._objective = Objective(self._tolerated, self.loss_weight, self.bytes_weight)
        first = len(self.settings) // 2 if start == -1 else start
        tightest = self.bytes_weight if self.settings[-1] in (0, 1) else math.inf  # BSP, whose bytes are known
        self._tuner: Tuner = tuners[tuner](len(self.settings), first, tightest=tightest)
        self._since, self._in_force = [0], [first]  # from which step on, which setting
        self.periods: list[ScoutPeriod] = []

    def plan(self, view: SyncView) -> StepPlan:
        """That of the inner policy, at the setting that is in force at this step."""
        return self._policies[self._in_force[bisect_right(self._since, view.clock) - 1]].plan(view)

    @property
    def setting(self) -> Setting:
        """The newest one."""
        return self.settings[self._in_force[-1]]

    def heard(self, clock: int, *, loss: float, share: float) -> Setting:
        """Models have visited; the setting from step ``clock`` on, which nobody has planned yet. The same on all.

        Args:
            loss: accuracy of sites' models at home less that of what they are compared with, mean over the sites.
            share: bytes between sites in the period that has ended, as a part of what BSP sends.
        """
        self.periods.append(ScoutPeriod(clock, self.setting, loss, share))
        following = self._tuner.measured(self._objective.of(loss, share), loss / self._tolerated)
        self._since.append(clock)
        self._in_force.append(following)
        return self.settings[following]

    @property
    def facts(self) -> Facts | None:
        """The inner policy's, at the setting that it began with."""
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
                f"scout: under {inner!r} workers take steps at their own pace, so there is no step after which the "
                f"models of all sites could visit each other: use geo:bsp"
            )
        return knob, settings
    raise ConfigError(
        f"scout: {inner!r} has no knob that says how much it sends: use geo, sparse-local, topk, local or hierarchical"
    )


def _with(policy: SyncPolicy, knob: str, value: Setting) -> SyncPolicy:
    """The same policy at another setting."""
    known = {name: getattr(policy, name) for name in inspect.signature(type(policy)).parameters}
    return type(policy)(**{**known, knob: value})
