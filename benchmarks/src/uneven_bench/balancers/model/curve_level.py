"""How fast is each worker now, compared with its curve?"""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np

from uneven.policy.balance._intake import ReportColumns
from uneven.policy.core.exact import Floats, column
from uneven.policy.core.plain import PerMember, read
from uneven_bench.balancers.model.curves import Curves

_STRANGE = 1.5
"""Relative; so far may a prediction be off that was made while the size changed before it counts for nothing: the first
iteration with a new size is not like the others. Ours."""

_FRESH = 0.05
"""Relative; how far a prediction may be off for having been formed at another size and still count by itself. Ours."""

_LEAST, _MOST = 0.02, 50.0
"""Times as long as on its curve that a worker is believed to take. Ours."""

_SHAPE = 1.0
"""How wrong a curve may be at a size that is so far from any that was measured, both relative. Ours."""


class CurveLevelState(TypedDict):
    """What a checkpoint holds of it."""

    members: list[int]
    level: PerMember
    size: PerMember
    formed: PerMember
    there: PerMember
    stale: PerMember


class CurveLevel:
    """The predictor's word, held against the curves.

    Attributes:
        level: how many times as long as on its curve each worker takes now, shape (n,).
    """

    def __init__(self) -> None:
        self._members: tuple[int, ...] = ()
        self.level = np.zeros(0)
        self._size = np.zeros(0)  # that the newest prediction is about
        self._formed = np.zeros(0)  # how far off it was when the size had just changed
        self._there = np.zeros(0)  # iterations since
        self._stale = np.zeros(0)  # how far off it may be now

    def meet(self, members: tuple[int, ...]) -> None:
        """Others take part: they begin on their curves."""
        if members != self._members:
            self._members, self.level = members, np.ones(len(members))
            self._size, self._formed, self._there, self._stale = np.zeros((4, len(members)))

    def listen(self, reports: ReportColumns, curves: Curves, foretold_s: Floats, doubts: tuple[float, ...]) -> Floats:
        """Take in one look.

        A prediction is believed as far as it is further off than it doubts itself, and than the curve is to be doubted
        away from the sizes that were measured. What was formed at another size counts only as far as the report bears
        it out.

        Args:
            foretold_s: seconds of computing in an iteration by the predictor's word; NaN where there is none.
            doubts: of the predictions; empty where nobody can tell.

        Returns:
            ``foretold_s`` of those whose prediction can teach their curve, else 0.
        """
        self._age(reports, curves)
        told = _ratio(foretold_s, curves.curve.seconds(reports.newest_size)) - self.level
        seen = _ratio(reports.local_s, curves.curve.seconds(reports.size)) - self.level
        agreed = np.where(told * seen > 0.0, np.where(np.abs(told) < np.abs(seen), told, seen), 0.0)
        fresh = self._stale < _FRESH
        off = np.where(fresh, told, agreed)
        doubt = column(doubts) if doubts else np.zeros(len(off))
        doubt = np.where(doubt > 0.0, doubt, curves.spread)
        doubt = np.where(fresh, doubt, np.maximum(doubt, curves.spread / np.sqrt(reports.iterations)))
        doubt = doubt + _SHAPE * curves.away(reports.newest_size)
        use = curves.known & (reports.clean | (reports.news & (np.abs(off) < _STRANGE))) & np.isfinite(off)
        square = off * off
        self.level = np.where(use, self.level + off * square / (square + doubt * doubt), self.level)
        return np.where(fresh & (foretold_s > 0.0), foretold_s, 0.0)

    def _age(self, reports: ReportColumns, curves: Curves) -> None:
        """How far off a prediction may be for having been formed at another size, relative.

        Samples per second at one size are not those at another where part of the time is constant. A mean over m
        iterations at this size and what was worth one of them at the size before is off by 1 / (m + 1) of the
        difference.
        """
        size = reports.newest_size
        moved = reports.news & (size != self._size) & (self._size > 0.0)
        here, before = curves.curve.seconds(size) / size, curves.curve.seconds(self._size)
        before = before / np.where(self._size > 0.0, self._size, 1.0)
        apart = np.where(here > 0.0, np.abs(before / np.where(here > 0.0, here, 1.0) - 1.0), 0.0)
        self._formed = np.where(moved, self._stale + apart, self._formed)
        self._there = np.where(moved, 0.0, self._there + np.where(reports.clean, reports.iterations, 0.0))
        self._stale = self._formed / (1.0 + self._there)
        self._size = np.where(reports.news, size, self._size)

    def state_dict(self) -> dict[str, Any]:
        """The level and the age of the predictions."""
        return {
            "members": list(self._members),
            "level": self.level.tolist(),
            "size": self._size.tolist(),
            "formed": self._formed.tolist(),
            "there": self._there.tolist(),
            "stale": self._stale.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        saved = read(CurveLevelState, state)
        self._members = tuple(saved["members"])
        self.level, self._size = np.array(saved["level"], np.float64), np.array(saved["size"], np.float64)
        self._formed, self._there = np.array(saved["formed"], np.float64), np.array(saved["there"], np.float64)
        self._stale = np.array(saved["stale"], np.float64)


def _ratio(seconds: Floats, curve_s: Floats) -> Floats:
    """How many times as long as on the curve, within reason."""
    found: Floats = np.minimum(np.maximum(seconds / np.where(curve_s > 0.0, curve_s, 1.0), _LEAST), _MOST)
    return found
