"""Each worker's cost curve, learnt while it works.

Γ(x) = max(g, a + b x): a constant part, a part per sample, and below saturation a floor. Position i of every array
belongs to the i-th member. All is elementwise arithmetic in a fixed order, so every rank comes to the same curve.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np

from uneven.policy.balance._fitting import Curve, Points, fit
from uneven.policy.balance._intake import Flags, ReportColumns, pick
from uneven.policy.balance.profiled import Profile
from uneven.policy.core.exact import Floats
from uneven.policy.core.plain import Count, Misfit, PerMember, read

SLOTS = 6
"""Batch sizes at which a worker's times are remembered."""

_SAME_SIZE = 0.04  # relative difference up to which two sizes share a slot
_MEMORY = 128.0  # iterations that a slot is worth at most, so that it follows a drift
_KNOWN = 4.0  # iterations from which a slot is established
_PROFILED = 3.0  # iterations that a size in a profile is worth: established by the first report that bears it out
_CLIP = 3.0  # standard deviations; a lone spike counts as this much and no more
_SURPRISE = 0.6  # relative; so far may the first report of a new size be off before it is held for a spike
_UNCLEAN = 0.5  # what an iteration is worth in a report that is not of one size
_FIRST_SPREAD, _LEAST_SPREAD = 0.1, 0.01  # relative standard deviation of one iteration
_AT_ONCE = 100  # curves that are drawn anew after a report
_SPREAD_WEIGHT = 0.05  # of the newest report in it


_Rows = list[list[float | None]]


class CurvesState(TypedDict):
    """What a checkpoint holds of it."""

    members: list[int]
    points: tuple[_Rows, _Rows, _Rows, _Rows]
    spread: PerMember
    curve: tuple[list[float], list[float], list[float]]
    turn: Count


class Curves:
    """Times at a few batch sizes, and the curve through them, at the speed that each worker had at first.

    What the speed is now is somebody else's affair: a worker that is slowed down takes so many times as long at every
    size, its fixed part included.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._members: tuple[int, ...] = ()
        self.points = Points.none(0)
        self.curve = Curve.none(0)
        self.spread = np.zeros(0)
        self._turn = 0

    def away(self, size: Floats) -> Floats:
        """How far this size is from the nearest one that was measured, relative; nothing is known at infinity."""
        apart = np.maximum(self.points.size / size, size / self.points.size) - 1.0
        found: Floats = apart.min(axis=0, initial=np.inf)
        return found

    @property
    def known(self) -> Flags:
        """Who has a curve."""
        some: Flags = self.points.weight.max(axis=0, initial=0.0) > 0.0
        return some

    def meet(self, members: tuple[int, ...]) -> None:
        """Others take part: what was learnt about those who stay is kept."""
        if members == self._members:
            return
        places = {rank: place for place, rank in enumerate(self._members)}
        old, n = [places.get(rank, -1) for rank in members], len(members)
        sizes, *others = self.points
        self.points = Points(pick_rows(sizes, old, np.inf), *(pick_rows(values, old, 0.0) for values in others))
        self.spread = pick(self.spread, old, np.full(n, _FIRST_SPREAD))
        self._members = members
        self.curve = fit(self.points, self.spread)

    def begin(self, profiles: Mapping[int, Profile]) -> None:
        """Nothing is known but what was measured of each rank before the first iteration, at the largest sizes."""
        self._forget()
        self.meet(tuple(sorted(profiles)))
        for place, rank in enumerate(self._members):
            sizes, seconds = profiles[rank].sizes[-SLOTS:], profiles[rank].rising_s[-SLOTS:]
            slots = slice(len(sizes))
            self.points.size[slots, place], self.points.local_s[slots, place] = sizes, seconds
            self.points.weight[slots, place] = _PROFILED
        self.curve = fit(self.points, self.spread)

    def learn(self, reports: ReportColumns, level: Floats, foretold_s: Floats) -> None:
        """Take in the reports of one look: one that is not clean only if it is near the curve, and for half.

        Args:
            level: how many times as long as on its curve each worker takes now.
            foretold_s: seconds of computing by the predictor's word. It has seen each iteration by itself, so at a
                size that is not known yet the shorter time counts: a lone spike is in the report, but not in its word.
        """
        if not reports.news.any():
            return
        use = reports.news
        reports, foretold_s = reports._replace(local_s=reports.local_s / level), foretold_s / level
        at = np.arange(len(use))
        known = self.known
        told_s = self.curve.seconds(reports.size)
        slot, same = self._slot(reports.size)
        weight = np.where(same, self.points.weight[slot, at], 0.0)
        deviation = self.spread / np.sqrt(reports.iterations)
        established = same & (weight >= _KNOWN)
        doubtful = reports.clean & ~established & (foretold_s > 0.0)
        local_s = np.where(doubtful, np.minimum(reports.local_s, foretold_s), reports.local_s)
        told_s = np.where(known, told_s, local_s)
        off = np.where(use, local_s, told_s) / told_s - 1.0
        reach = np.where(established, _CLIP * deviation, np.maximum(_CLIP * deviation, _SURPRISE))
        use = use & (reports.clean | (known & (np.abs(off) <= reach)))
        clipped = np.minimum(np.maximum(off, -reach), reach)
        iterations = np.where(reports.clean, 1.0, _UNCLEAN) * reports.iterations
        self._put(use, slot, same, reports._replace(iterations=iterations), told_s * (1.0 + clipped), weight)
        self._watch(use & established, off, deviation)
        self._fit(~known)

    def _fit(self, new: Flags) -> None:
        """Draw the curves anew: all of a few workers; of many, a part in turn, unless some had none before."""
        n = len(new)
        if n <= _AT_ONCE or (new & self.known).any():
            self.curve, self._turn = fit(self.points, self.spread), 0
            return
        part = slice(self._turn, self._turn + _AT_ONCE)
        drawn = fit(Points(*(values[:, part] for values in self.points)), self.spread[part])
        curve = Curve(*(values.copy() for values in self.curve))
        for values, news in zip(curve, drawn, strict=True):
            values[part] = news
        self.curve = curve
        self._turn = self._turn + _AT_ONCE if self._turn + _AT_ONCE < n else 0

    def _slot(self, size: Floats) -> tuple[Any, Flags]:
        """Where the times at this size are kept, and whether there are any; else the slot that is worth least."""
        apart = np.abs(self.points.size - size)
        nearest = np.argmin(apart, axis=0)
        same = apart[nearest, np.arange(len(size))] <= _SAME_SIZE * size
        return np.where(same, nearest, np.argmin(self.points.weight, axis=0)), same

    def _put(self, use: Flags, slot: Any, same: Flags, reports: ReportColumns, local_s: Floats, weight: Floats) -> None:
        at = np.arange(len(use))
        new = np.minimum(weight + reports.iterations, _MEMORY)
        part = np.where(same, np.minimum(reports.iterations / new, 1.0), 1.0)
        seen = reports.size, local_s, reports.transfer_s
        points = self.points
        for values, value in zip(points, seen, strict=False):
            old = np.where(same, values[slot, at], value)
            values[slot, at] = np.where(use, old + part * (value - old), values[slot, at])
        points.weight[slot, at] = np.where(use, new, points.weight[slot, at])

    def _watch(self, use: Flags, off: Floats, deviation: Floats) -> None:
        """The spread of one iteration."""
        sign = np.minimum(np.maximum(off / deviation, -_CLIP), _CLIP)
        usual = (sign * self.spread) ** 2
        spread = np.sqrt(self.spread**2 + _SPREAD_WEIGHT * (usual - self.spread**2))
        self.spread = np.where(use, np.maximum(spread, _LEAST_SPREAD), self.spread)

    def state_dict(self) -> dict[str, Any]:
        """The points and the state of the test."""
        return {
            "members": list(self._members),
            "points": [[[None if x == np.inf else x for x in row] for row in rows.tolist()] for rows in self.points],
            "spread": self.spread.tolist(),
            "curve": [values.tolist() for values in self.curve],
            "turn": self._turn,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        saved = read(CurvesState, state)
        n = len(saved["members"])
        if any(len(rows) != SLOTS or any(len(row) != n for row in rows) for rows in saved["points"]):
            raise Misfit(saved["points"], f"{SLOTS} rows of {n}, as many as members", "points")
        if any(len(values) != n for values in saved["curve"]):
            raise Misfit(saved["curve"], f"lists of {n}, as many as members", "curve")
        rows = ([[np.inf if x is None else x for x in row] for row in rows] for rows in saved["points"])
        self._members = tuple(saved["members"])
        self.points = Points(*(np.array(values, np.float64).reshape(SLOTS, n) for values in rows))
        self.spread = np.array(saved["spread"], np.float64)
        self.curve = Curve(*(np.array(values, np.float64) for values in saved["curve"]))
        self._turn = saved["turn"]


def pick_rows(values: Floats, places: list[int], instead: float) -> Floats:
    """:func:`~uneven.policy.balance._intake.pick` for every row, shape (rows, n)."""
    return np.stack([pick(row, places, np.full(len(places), instead)) for row in values])
