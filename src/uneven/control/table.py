"""Everybody's reports as columns, so that a thousand of them are judged in a millisecond. Pure.

Single entries are reckoned the same on every machine: only operations that IEEE 754 fixes to the last bit are used, no
sums in an order that a machine chooses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt

from uneven.control.reports import Report
from uneven.core.views import Observation

Column = npt.NDArray[np.float64]

_PLACES = {name: place for place, name in enumerate(Report._fields)}
_COUNTS = [_PLACES[name] for name in ("samples", "local_s", "exchange_s", "transfer_s")]
_LEAST_WAIT = 0.25
"""Part of the longest local time: from here on a wait of all is a link's; noise of a tenth makes far less. Ours."""

_EVIDENCE = slice(0, _PLACES["transfer_s"] + 1)
_MEASURED = slice(0, _PLACES["cost_s"] + 1)
_SOME = [_PLACES[name] for name in ("iterations", "samples", "local_s")]
_BELIEVABLE = [_PLACES[name] for name in ("iterations", "local_s", "exchange_s", "control_s", "cost_s")]


class ReportTable:
    """One report of each member.

    Args:
        rows: reports by position of the member, or the same numbers, shape (members, fields of a report).
    """

    def __init__(self, rows: npt.ArrayLike) -> None:
        self.rows: npt.NDArray[np.float64] = np.asarray(rows, np.float64).reshape(-1, len(_PLACES))

    @cached_property
    def plain(self) -> bool:
        """Whether each is of some samples in some time, with nothing missing, negative or infinite. That is so nearly
        always, and then nobody's report has to be looked at by itself: right after a step of the training, what counts
        is how many operations there are, not of how many numbers."""
        measured = self.rows[:, _MEASURED]
        if not measured.size:
            return False
        least = measured.min(axis=0).tolist()
        return bool(measured.max() < math.inf) and min(least) >= 0.0 and all(least[place] > 0.0 for place in _SOME)

    def column(self, name: str) -> Column:
        """One field of all reports."""
        return self.rows[:, _PLACES[name]]

    def speeds_per_s(self) -> Column:
        """As :attr:`Observation.speed_per_s`; 0 where there is nothing to divide."""
        samples, local_s = self.column("samples"), self.column("local_s")
        if self.plain:
            return np.divide(samples, local_s + self.column("transfer_s"))
        sound = (samples > 0) & (local_s > 0) & (self.column("iterations") > 0)
        return np.divide(samples, local_s + self.column("transfer_s"), out=np.zeros(len(samples)), where=sound)

    def hidden_s(self) -> float | None:
        """What everybody waits for in an exchange, beyond the longest time that anybody's own side of it takes: a link.

        In every iteration somebody comes last and waits for nobody to come. So what even that one waits, and no
        worker's own work explains, passes on a link that all share, as in a ring; and meanwhile own work costs nobody
        time. Reports hold means over several iterations, in which workers may take turns at being last, and then all
        have waited without a link. So a wait counts from a quarter of the longest time that anybody computes.

        Returns:
            Seconds an iteration; None where somebody says nothing, as after a padded batch.
        """
        iterations = self.column("iterations")
        if not self.plain:
            if not len(iterations) or not self.sound().all():
                return 0.0
            if not (iterations > 0).all():
                return None
        waited, own, local = (self.column(name) / iterations for name in ("exchange_s", "transfer_s", "local_s"))
        found = float(waited.min() - own.max())
        return found if found >= _LEAST_WAIT * float(local.max()) else 0.0

    def without(self, hidden_s: float) -> ReportTable:
        """The same, but so much of each own side of an exchange counts as nothing."""
        if hidden_s == 0.0:
            return self
        rows = self.rows.copy()
        own = rows[:, _PLACES["transfer_s"]]
        np.maximum(own - hidden_s * self.column("iterations"), 0.0, out=own)
        return ReportTable(rows)

    def believable(self) -> npt.NDArray[np.bool_]:
        """Flags of shape (reports,), each as :attr:`Report.believable`."""
        if self.plain:
            return np.ones(len(self.rows), np.bool_)
        sound = self._finite(_BELIEVABLE)
        sound &= (self.column("local_s") > 0) | (self.column("iterations") == 0)
        return np.asarray(sound, np.bool_)

    def sound(self) -> npt.NDArray[np.bool_]:
        """Flags of shape (reports,): which can be an observation by themselves, see :mod:`uneven.control.referee`."""
        if self.plain:
            return np.ones(len(self.rows), np.bool_)
        sound = self._finite(_COUNTS)
        sound &= np.isfinite(self.column("iteration")) & (self.column("local_s") > 0)
        return np.asarray(sound | (self.column("iterations") == 0), np.bool_)

    def _finite(self, places: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Where all of these fields are numbers, and not negative; column by column, which is the quickest."""
        sound = np.ones(len(self.rows), np.bool_)
        for place in places:
            sound &= (self.rows[:, place] >= 0) & (self.rows[:, place] < math.inf)
        return sound

    def differs(self, other: ReportTable) -> npt.NDArray[np.bool_]:
        """Flags of shape (reports,): which report other iterations, or other measurements, than in ``other``."""
        return np.asarray((self.rows[:, _EVIDENCE] != other.rows[:, _EVIDENCE]).any(axis=1), np.bool_)


class Seen(Sequence[Observation | None]):
    """What is believed of each member, made only for those who are looked at."""

    def __init__(self, rows: npt.NDArray[np.float64], known: npt.NDArray[np.bool_]) -> None:
        self._rows, self._known = rows, known

    def __len__(self) -> int:
        return len(self._known)

    @overload
    def __getitem__(self, place: int) -> Observation | None: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Observation | None, ...]: ...
    def __getitem__(self, place: int | slice) -> Observation | tuple[Observation | None, ...] | None:
        if isinstance(place, slice):
            return tuple(self[one] for one in range(*place.indices(len(self))))
        return Report(*self._rows[place].tolist()).observation() if self._known[place] else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def weighted_sum(values: Column, weights: Column) -> float:
    """Σ weight · value, rounded once, and so the same on every machine."""
    return math.fsum((values * weights).tolist())
