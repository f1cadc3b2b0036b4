"""Ours: every worker's cost learnt while it works, and the exact split for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

import numpy as np

from uneven.errors import ConfigError
from uneven.policy.balance._fitting import Curve
from uneven.policy.balance._intake import Intake, IntakeState
from uneven.policy.balance._minmax import CostLines, Costs, earliest_end
from uneven.policy.balance.balancer import Balancer, check_predictor, standing
from uneven.policy.balance.bounds import whole_numbers, with_memory
from uneven.policy.balance.even import Even
from uneven.policy.balance.hysteresis import DEFAULT_FRACTION
from uneven.policy.balance.presume import DEFAULT_MARGIN
from uneven.policy.balance.profiled import Profile
from uneven.policy.core.actions import Split
from uneven.policy.core.apportion import proportional
from uneven.policy.core.exact import column, exact_sum
from uneven.policy.core.plain import Count, Range, inside, read
from uneven.policy.core.views import BalanceView, Limits
from uneven_bench.balancers.model.curve_level import CurveLevel, CurveLevelState
from uneven_bench.balancers.model.curves import Curves, CurvesState
from uneven_bench.balancers.model.overlap import Overlap, OverlapState

_CHANCE_SHARE = 0.1
"""Part of the gain that chance alone would promise that a move is asked for on top, as in Hysteresis."""

_REACH = 4.0
"""A share becomes at most so many times as large or as small in one move; a small one may always become half the mean
share. A spike at a size that was never seen looks like a slow worker. Ours."""

_SMALL, _LEAST_PART = 0.1, 0.25
"""Gain below which a move back is halved, and the least part of the way. Ours."""

_STEEP = 0.5
"""Beyond the largest batch seen, a sample is believed to cost at least so much of the mean sample so far. Ours.

A worker below its saturation point looks as if more samples cost nothing; where it saturates is not known before it
has been there. No curve with a constant part is steeper than the mean sample, so half of it goes wrong by little."""


class _ModelState(TypedDict):
    intake: IntakeState
    curves: CurvesState
    overlap: OverlapState
    pace: CurveLevelState
    alike: Count
    way: list[float]
    part: Annotated[float, Range(0.0, 1.0)]


class Model(Balancer):
    """Fits Γ_i(x) = max(g, a + b x) and the communication beside it, and solves the integer min-max exactly.

    In simulations it is a little ahead of ``lb-bsp``; in the real runs that were measured it was not faster
    (docs/measurements/predictors.md, "which is the default"). So it is here and not in the library.

    ::

        reports ──► Curves: Γ_i, lasting changes told from spikes ──┐
                ──► Overlap: communication, and what hides of it ───┼─► earliest_end ─► worth it? ─► Split
        predictions ──► level: how fast each worker is right now ───┘

    Proportional shares come to the same in the end where workers keep their speed, for they too end where all finish
    together. But on the way there, and after every change, they take the whole time for proportional to the batch. A
    worker whose time is nine tenths constant is then given a tenth of what it could take. And they follow the noise at
    the present size only, where the curve has all that was measured at any size.

    The present speed is the predictor's word, as far as it is further from the curve than its own doubt. So the curve
    goes through what is measured at the present split, whatever its shape, and every solution is a numerical step from
    there; where steps go back and forth, they are halved.

    Equal workers keep equal shares, and a move must be worth it, by the same margins as in
    :class:`~uneven.policy.balance.lb_bsp.LbBsp`, but with the times of the curves.

    Args:
        predictor: specification of the predictor.
        hysteresis: predicted gain from which a change is worth it, 0 … 1.
        margin: predicted gain over equal shares from which workers count as unequal, 0 … 1.
        most: largest batch that each rank can hold, samples, from a profile; none is no limit but the view's.

    Raises:
        UnknownNameError: no such predictor.
        ConfigError: an option out of range.
    """

    partial_updates = True

    def __init__(
        self,
        *,
        predictor: str = "steady",
        hysteresis: float = DEFAULT_FRACTION,
        margin: float = DEFAULT_MARGIN,
        most: Sequence[int] | int = (),
    ) -> None:
        if not (0.0 <= hysteresis < 1.0 and 0.0 <= margin < 1.0):
            raise ConfigError(f"model: hysteresis = {hysteresis!r} and margin = {margin!r} must be at least 0, below 1")
        self.predictor = check_predictor(predictor)
        self._fraction, self._margin = hysteresis, margin
        self._most = whole_numbers("model: most", most)
        self._intake = Intake()
        self._curves = Curves()
        self._overlap = Overlap()
        self._level = CurveLevel()
        self._even: tuple[int, Limits, tuple[int, ...]] | None = None  # the last answer, for n may be large
        self._way, self._part = np.zeros(0), 1.0  # samples of the last move, and the part of the way that was gone
        self._alike = 0  # looks in a row at which the workers were so

    def split(self, view: BalanceView) -> Split:
        """Learn, solve, and move if it is worth it."""
        view = with_memory(view, self._most)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # who has not reported has no numbers
            self._learn(view)
        present = standing(view)
        if present != view.shares:
            return Split(present, "model: starting from the nearest split that fits")
        if not view.ready:
            return Split(present, "model: waiting for a first report")
        costs = self._costs(view)
        return self._worth(view, costs, self._solved(view, costs))

    def _solved(self, view: BalanceView, costs: Costs) -> tuple[int, ...]:
        """The best split within reach of the present one: far from where it was seen, a curve is not to be trusted."""
        lower, upper, here = column(view.limits.lower), column(view.limits.upper), column(view.shares)
        least = np.maximum(lower, np.floor(here / _REACH))
        most = np.minimum(upper, np.maximum(_REACH * here, math.ceil(0.5 * view.global_batch / len(here))))
        return earliest_end(costs, view.global_batch, least, np.maximum(most, here), view.shares)

    def _learn(self, view: BalanceView) -> None:
        reports = self._intake.take(view)
        for part in (self._curves, self._overlap, self._level):
            part.meet(view.members)
        self._curves.points = self._overlap.learn(reports, self._curves.points)
        foretold_s = reports.newest_size / column(view.predicted_per_s) - self._overlap.seconds(reports.local_s)
        foretold_s = self._level.listen(reports, self._curves, foretold_s, view.doubts)
        self._curves.learn(reports, self._level.level, foretold_s)

    def _costs(self, view: BalanceView) -> Costs:
        """Seconds of an iteration as a function of the share, as far as is known."""
        predicted = column(view.predicted_per_s)
        known, curve = self._curves.known, self._curves.curve
        curve = Curve(
            np.where(known, curve.floor_s, 0.0),
            np.where(known, curve.overhead_s, 0.0),
            np.where(known, curve.per_sample_s, 1.0 / predicted),
        )
        floor_s, a, b = (self._level.level * part for part in curve)
        hidden, late_s, least_s = self._overlap.hidden, self._overlap.level_s, self._overlap.least_s
        shown = 1.0 - hidden
        lines = (
            [CostLines(a + least_s, b), CostLines(shown * a + late_s, shown * b)]
            if hidden.any()
            else [CostLines(a + late_s, b)]
        )
        costs = Costs(np.maximum(floor_s + least_s, shown * floor_s + late_s), tuple(lines))
        sizes = self._curves.points.size
        largest = np.where(known, np.where(sizes < np.inf, sizes, 0.0).max(axis=0, initial=1.0), 1.0)
        there_s = costs.seconds(largest)
        steep = _STEEP * there_s / largest
        steep = np.where(known & (steep > b), steep, 0.0)
        further = CostLines(np.where(steep > 0.0, there_s - steep * largest, costs.lines[0].start_s),
                       np.where(steep > 0.0, steep, costs.lines[0].slope_s))  # fmt: skip
        return Costs(costs.floor_s, (*costs.lines, further))

    def _worth(self, view: BalanceView, costs: Costs, proposed: tuple[int, ...]) -> Split:
        even = self._even_shares(view)
        even_s, present_s, proposed_s = (
            float(costs.seconds(column(shares)).max()) for shares in (even, view.shares, proposed)
        )
        chance = self._chance(view)
        alike = 1.0 - proposed_s / even_s <= self._margin + chance
        self._alike = self._alike + 1 if alike else 0
        if self._alike > 1 or (alike and view.shares == even):  # a lone spike can make anybody look alike
            return Split(even, f"model, even: the workers differ too little to gain {self._margin + chance:.1%}")
        gain, needed = 1.0 - proposed_s / present_s, self._fraction + _CHANCE_SHARE * chance
        if gain > needed:
            return self._move(view, proposed, gain, f"predicted iteration {present_s:.4g} s → {proposed_s:.4g} s")
        return Split(view.shares, f"model, kept: a change would gain {gain:.1%}, less than {needed:.1%}")

    def _move(self, view: BalanceView, proposed: tuple[int, ...], gain: float, words: str) -> Split:
        """All the way, or half as far as before where a small gain lies back the way it came: as in LB-BSP on GPUs."""
        here = column(view.shares)
        way = column(proposed) - here
        back = len(way) == len(self._way) and exact_sum(way * self._way) < 0.0
        self._part = max(_LEAST_PART, 0.5 * self._part) if back and gain < _SMALL else 1.0
        self._way = way
        if self._part == 1.0:
            return Split(proposed, f"model, solved: {words}")
        shares = proportional((here + self._part * way).tolist(), view.global_batch, view.limits)
        return Split(shares, f"model, fine-tune: {self._part:.0%} of the way; {words}")

    def _even_shares(self, view: BalanceView) -> tuple[int, ...]:
        if self._even is None or self._even[0] != view.global_batch or self._even[1] is not view.limits:
            self._even = view.global_batch, view.limits, Even().split(view).shares
        return self._even[2]

    def _chance(self, view: BalanceView) -> float:
        """Gain that equal workers would promise by chance alone: the largest of n errors of σ is near σ √(2 ln n)."""
        n = len(view.members)
        if n < 2:
            return 0.0
        weight = np.maximum(self._curves.points.weight.max(axis=0, initial=0.0), 1.0)
        errors = self._curves.spread * self._curves.spread / weight
        return math.sqrt(exact_sum(errors) / n * 2.0 * _logarithm(n))

    def profiled(self, profiles: Mapping[int, Profile]) -> None:
        """The curves begin with what was measured."""
        self._curves.begin(profiles)

    def state_dict(self) -> dict[str, Any]:
        """Curves, communication, and what was seen."""
        return {
            "intake": self._intake.state_dict(),
            "curves": self._curves.state_dict(),
            "overlap": self._overlap.state_dict(),
            "pace": self._level.state_dict(),
            "alike": self._alike,
            "way": self._way.tolist(),
            "part": self._part,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = read(_ModelState, state)
        with inside("curves"):
            self._curves.load_state_dict(state["curves"])
        self._intake.load_state_dict(state["intake"])
        self._overlap.load_state_dict(state["overlap"])
        self._level.load_state_dict(state["pace"])
        self._alike = saved["alike"]
        self._way, self._part = np.array(saved["way"], np.float64), saved["part"]


def _logarithm(n: int) -> float:
    """ln n within 6 %, straight between the powers of two: the same to the last bit in every mathematics library."""
    power = n.bit_length() - 1
    return 0.6931471805599453 * (power + n / float(1 << power) - 1.0)
