"""The formula of LB-BSP's 2018 poster: piecewise linear costs, and all workers finish together."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from uneven.errors import ConfigError
from uneven.policy.balance._fitting import Curve, Points, fit
from uneven.policy.balance._intake import Intake, IntakeState, Window, WindowState
from uneven.policy.balance.balancer import Balancer, standing
from uneven.policy.balance.bounds import whole_numbers, with_memory
from uneven.policy.balance.profiled import Profile
from uneven.policy.core.actions import Split
from uneven.policy.core.exact import Floats, Wholes, column
from uneven.policy.core.plain import Amount, Count, Misfit, inside, read
from uneven.policy.core.views import BalanceView

_CLOSE = 1e-12  # relative width of the bracket within which times count as equal


def earliest_end(costs: Curve, total: int, lower: Floats, upper: Floats, start: Sequence[int]) -> tuple[int, ...]:
    """Return the shares that sum to ``total`` with which the last worker finishes as early as possible.

    This is the exact integer min-max (specification, §1.5); slopes must be positive. Surplus samples, if several
    workers finish at the same T, are taken from the higher ranks. ``lower`` and ``upper`` have shape (n,); ``start`` is
    any split within them.
    """
    early_s, late_s = 0.0, float(costs.seconds(column(start)).max()) * (1.0 + 1e-9)
    # Search the least time T by which all workers together finish ``total`` samples, until the bracket holds one split.
    few, many = lower, _by(costs, late_s, lower, upper)
    short, over = total - int(few.sum()), int(many.sum()) - total
    rounds = 0
    while short > 0 and over > 0 and late_s - early_s > _CLOSE * late_s:
        # Interpolation hits on straight lines; halving every third time bounds the search otherwise.
        part = 0.5 if rounds % 3 == 2 else min(max((short + 0.5) / (short + over), 0.02), 0.98)
        middle_s, rounds = early_s + part * (late_s - early_s), rounds + 1
        shares = _by(costs, middle_s, lower, upper)
        more = int(shares.sum()) - total  # integers, so the sum is exact in any order
        if more < 0:
            early_s, few, short = middle_s, shares, -more
        else:
            late_s, many, over = middle_s, shares, more
    if short == 0:
        many, over = few, 0
    return _without(few.astype(np.int64), many.astype(np.int64), total)


def _by(costs: Curve, time_s: float, lower: Floats, upper: Floats) -> Floats:
    # The integer number of samples that each worker can finish by the time, within its limits.
    shares = np.minimum(upper, (time_s - costs.overhead_s) / costs.per_sample_s)
    shares = np.where(costs.floor_s <= time_s, np.floor(shares), lower)
    found: Floats = np.maximum(shares, lower)
    return found


def _without(few: Wholes, many: Wholes, total: int) -> tuple[int, ...]:
    # Take the surplus of ``many`` from the higher ranks, none below ``few``.
    over = int(many.sum()) - total
    loose = (many - few)[::-1]
    before = np.cumsum(loose) - loose
    taken = np.clip(over - before, 0, loose)
    return tuple((many - taken[::-1]).tolist())


_WINDOWS = 6  # to fit, each at other shares than the one before
_STIR = 0.1  # part of the mean share that moves, to measure a second size
_SPREAD = 0.05  # relative noise of an iteration that the fit assumes


class _AnalyticState(TypedDict):
    members: list[int]
    rows: list[tuple[list[Amount], list[Amount]]]
    off: Count
    watched: WindowState
    intake: IntakeState


class Analytic(Balancer):
    """Fits Γ_i(x) = max(g, a + b x) per worker and solves for the least common end (LB-BSP's poster, 2018).

    ::

        watch a window ─► one size known: move a tenth of the mean share between neighbors
                       ─► two or more:    fit, solve, move if the gain exceeds ``rest``
                       ─► far off the curves twice in a row: discard them and start again

    The shares are x_i(T) = clamp((T − a) / b), with the least T that yields enough samples. The authors replaced this
    by numerical steps in their paper; it serves as a comparison. The form of the curve is the specification's (§1.8);
    the windows, the small moves and all numbers are ours. A worker's own communication is part of a.

    Args:
        window: iterations to watch, at least 1.
        rest: predicted gain below which the shares stay, at least 0, below 1.
        restart: relative distance from the curve that, twice in a row, discards what is known, above 0.
        profile: (g, a, b) of each rank, seconds and seconds per sample, if measured before; it decides the first split.
        most: largest batch of each rank, samples; without it only the view's limits hold.
    """

    predictor = "last"

    def __init__(
        self,
        *,
        window: int = 5,
        rest: float = 0.03,
        restart: float = 0.15,
        profile: Sequence[Sequence[float]] = (),
        most: Sequence[int] | int = (),
    ) -> None:
        if not (window >= 1 and 0.0 <= rest < 1.0 and restart > 0.0):
            raise ConfigError(
                f"analytic: window = {window!r} must be at least 1, rest = {rest!r} at least 0 and below 1, and "
                f"restart = {restart!r} above 0"
            )
        self._window = window
        self._rest = rest
        self._restart = restart
        self._profile = tuple(_checked(rank, row) for rank, row in enumerate(profile))
        self._most = whole_numbers("analytic: most", most)
        self._intake = Intake()
        self._watched = Window()
        self._members: tuple[int, ...] = ()
        # At least two different shares are needed for a slope, so windows are kept with the shares they were measured
        # at.
        self._rows: list[tuple[Floats, Floats]] = []  # shares, and seconds of an iteration: oldest first
        self._off = 0  # windows in a row that were far off the curves

    def split(self, view: BalanceView) -> Split:
        view = with_memory(view, self._most)
        reports = self._intake.take(view)
        present = standing(view)
        if view.members != self._members or present != view.shares:
            began = bool(self._members)
            self._members, self._rows, self._off = view.members, [], 0
            self._watched.clear()
            if not began and view.members[-1] < len(self._profile):
                return self._told(self._solved(view, self._curve_of(view.members), present), "from the profile")
            if present != view.shares:
                return self._told(present, "starting from the nearest split that fits")
        self._watched.add(reports)
        if not self._watched.full(self._window):
            return self._told(present, f"watching, {self._watched.watched()} of {self._window} iterations")
        shares, times_s = column(view.shares), self._watched.median_s()
        self._watched.clear()
        return self._decide(view, shares, times_s)

    def _decide(self, view: BalanceView, shares: Floats, times_s: Floats) -> Split:
        if self._changed_for_good(shares, times_s):
            self._rows = []
        if self._rows and (self._rows[-1][0] == shares).all():
            # The same shares as in the last window: average both, as two points at one size give no slope.
            times_s = self._rows[-1][1] + 0.5 * (times_s - self._rows[-1][1])
            self._rows.pop()
        self._rows = [*self._rows[1 - _WINDOWS :], (shares, times_s)]
        if len(self._rows) == 1:
            return self._told(self._stirred(view), "a small move, to learn each worker's times at a second size")
        curve = self._curve()
        solved = self._solved(view, curve, view.shares)
        now_s, then_s = float(curve.seconds(shares).max()), float(curve.seconds(column(solved)).max())
        gain = 1.0 - then_s / now_s
        if gain <= self._rest:
            return self._told(view.shares, f"kept: a change would gain {gain:.1%}")
        return self._told(solved, f"solved: predicted iteration {now_s:.4g} s → {then_s:.4g} s")

    def _changed_for_good(self, shares: Floats, times_s: Floats) -> bool:
        if len(self._rows) < 2:
            return False
        apart = np.abs(times_s / self._curve().seconds(shares) - 1.0)
        self._off = self._off + 1 if float(apart.max()) > self._restart else 0
        # One window can be off by chance.
        if self._off < 2:
            return False
        self._off = 0
        return True

    def _curve(self) -> Curve:
        size, seconds = (np.stack(column_of) for column_of in zip(*self._rows, strict=True))
        weight = np.full(size.shape, float(self._window))
        return fit(Points(size, seconds, weight), np.full(size.shape[1], _SPREAD))

    def _curve_of(self, members: tuple[int, ...]) -> Curve:
        rows = [self._profile[rank] for rank in members]
        return Curve(*(column(values) for values in zip(*rows, strict=True)))

    def _solved(self, view: BalanceView, curve: Curve, start: tuple[int, ...]) -> tuple[int, ...]:
        lower, upper = column(view.limits.lower), column(view.limits.upper)
        return earliest_end(curve, view.global_batch, lower, upper, start)

    def _stirred(self, view: BalanceView) -> tuple[int, ...]:
        # Neighbors exchange samples; the last of an odd number has no partner and keeps its share.
        shares, lower, upper = list(view.shares), view.limits.lower, view.limits.upper
        for left in range(0, len(shares) - 1, 2):
            right = left + 1
            n = max(1, round(_STIR * view.global_batch / len(shares)))
            up = min(n, upper[left] - shares[left], shares[right] - lower[right])
            n = up or -min(n, shares[left] - lower[left], upper[right] - shares[right])
            shares[left], shares[right] = shares[left] + n, shares[right] - n
        return tuple(shares)

    def _told(self, shares: tuple[int, ...], words: str) -> Split:
        return Split(shares, f"analytic: {words}")

    def profiled(self, profiles: Mapping[int, Profile]) -> None:
        if not self._profile and tuple(sorted(profiles)) == tuple(range(len(profiles))):
            self._profile = tuple(profiles[rank].cost for rank in range(len(profiles)))
            self._members = ()

    def state_dict(self) -> dict[str, Any]:
        return {
            "members": list(self._members),
            "rows": [[shares.tolist(), times_s.tolist()] for shares, times_s in self._rows],
            "off": self._off,
            "watched": self._watched.state_dict(),
            "intake": self._intake.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = read(_AnalyticState, state)
        n = len(saved["members"])
        if any(len(shares) != n or len(times_s) != n for shares, times_s in saved["rows"]):
            raise Misfit(saved["rows"], f"pairs of lists of {n}, as many as members", "rows")
        self._members = tuple(saved["members"])
        self._rows = [(np.array(x, np.float64), np.array(t, np.float64)) for x, t in saved["rows"]]
        self._off = saved["off"]
        with inside("watched"):
            self._watched.load_state_dict(state["watched"])
        self._intake.load_state_dict(state["intake"])


def _checked(rank: int, row: Sequence[float]) -> tuple[float, float, float]:
    if len(row) != 3 or not all(value >= 0.0 for value in row) or not row[2] > 0.0:
        raise ConfigError(
            f"analytic: the profile of rank {rank} is {row!r}: give (floor_s, overhead_s, per_sample_s), the "
            "last above 0"
        )
    return float(row[0]), float(row[1]), float(row[2])
