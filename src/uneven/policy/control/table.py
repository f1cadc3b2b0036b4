"""All workers' reports as columns, so that a thousand are judged in a millisecond."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt

from uneven.policy.control.reporter import Report
from uneven.policy.core.views import Observation

# Ranks must compute the same bits on different machines. So only operations that IEEE 754 defines exactly are used, and
# no sum whose order a machine chooses.
Column = npt.NDArray[np.float64]

_PLACES = {name: place for place, name in enumerate(Report._fields)}
_COUNTS = [_PLACES[name] for name in ("samples", "local_s", "exchange_s", "transfer_s")]
# of the longest local time: a common wait from here on is the link's; noise of 10 % causes far less [default]
_LEAST_WAIT = 0.25

_EVIDENCE = slice(0, _PLACES["transfer_s"] + 1)
_MEASURED = slice(0, _PLACES["cost_s"] + 1)
_SOME = [_PLACES[name] for name in ("iterations", "samples", "local_s")]
_BELIEVABLE = [_PLACES[name] for name in ("iterations", "local_s", "exchange_s", "control_s", "cost_s")]


class ReportTable:
    """One report of each member: ``rows`` has shape (members, fields of a report)."""

    def __init__(self, rows: npt.ArrayLike) -> None:
        self.rows: npt.NDArray[np.float64] = np.asarray(rows, np.float64).reshape(-1, len(_PLACES))

    @cached_property
    def plain(self) -> bool:
        """True if every report has samples and time, with nothing missing, negative or infinite."""
        # The usual case: then no report needs a separate look. After a training step the number of numpy calls matters,
        # not the number of values.
        measured = self.rows[:, _MEASURED]
        if not measured.size:
            return False
        least = measured.min(axis=0).tolist()
        return bool(measured.max() < math.inf) and min(least) >= 0.0 and all(least[place] > 0.0 for place in _SOME)

    def column(self, name: str) -> Column:
        """Return one field of all reports, shape (members,)."""
        return self.rows[:, _PLACES[name]]

    def speeds_per_s(self) -> Column:
        """Return :attr:`Observation.speed_per_s` of all reports, shape (members,); 0 without samples or time."""
        samples, local_s = self.column("samples"), self.column("local_s")
        if self.plain:
            return np.divide(samples, local_s + self.column("transfer_s"))
        sound = (samples > 0) & (local_s > 0) & (self.column("iterations") > 0)
        return np.divide(samples, local_s + self.column("transfer_s"), out=np.zeros(len(samples)), where=sound)

    def hidden_s(self) -> float | None:
        """Return the seconds an iteration that all workers wait for a link; None if a report is empty, as after a
        padded batch."""
        iterations = self.column("iterations")
        if not self.plain:
            if not len(iterations) or not self.sound().all():
                return 0.0
            if not (iterations > 0).all():
                return None
        # The worker that arrives last waits for no other. If even it waits, beyond the longest own side of an exchange,
        # all share a link, as in a ring. Own work during that wait costs no time. Reports are means, in which workers
        # may take turns at being last; so only a wait of a quarter of the longest local time counts.
        waited, own, local = (self.column(name) / iterations for name in ("exchange_s", "transfer_s", "local_s"))
        found = float(waited.min() - own.max())
        return found if found >= _LEAST_WAIT * float(local.max()) else 0.0

    def without(self, hidden_s: float) -> "ReportTable":
        """Return the table with this much less of each own side of an exchange."""
        if hidden_s == 0.0:
            return self
        rows = self.rows.copy()
        own = rows[:, _PLACES["transfer_s"]]
        np.maximum(own - hidden_s * self.column("iterations"), 0.0, out=own)
        return ReportTable(rows)

    def believable(self) -> npt.NDArray[np.bool_]:
        """Return flags of shape (reports,), see :attr:`Report.believable`."""
        if self.plain:
            return np.ones(len(self.rows), np.bool_)
        sound = self._finite(_BELIEVABLE)
        sound &= (self.column("local_s") > 0) | (self.column("iterations") == 0)
        return np.asarray(sound, np.bool_)

    def sound(self) -> npt.NDArray[np.bool_]:
        """Return flags of shape (reports,): reports that are valid on their own, see
        :mod:`uneven.policy.control.referee`."""
        if self.plain:
            return np.ones(len(self.rows), np.bool_)
        sound = self._finite(_COUNTS)
        sound &= np.isfinite(self.column("iteration")) & (self.column("local_s") > 0)
        return np.asarray(sound | (self.column("iterations") == 0), np.bool_)

    def _finite(self, places: Sequence[int]) -> npt.NDArray[np.bool_]:
        # Column by column, which is fastest.
        sound = np.ones(len(self.rows), np.bool_)
        for place in places:
            sound &= (self.rows[:, place] >= 0) & (self.rows[:, place] < math.inf)
        return sound

    def differs(self, other: "ReportTable") -> npt.NDArray[np.bool_]:
        """Return flags of shape (reports,): reports of other iterations or measurements than in ``other``."""
        return np.asarray((self.rows[:, _EVIDENCE] != other.rows[:, _EVIDENCE]).any(axis=1), np.bool_)


class Seen(Sequence[Observation | None]):
    """The believed report of each member, as observations that are created on access."""

    def __init__(self, rows: npt.NDArray[np.float64], known: npt.NDArray[np.bool_]) -> None:
        self._rows = rows
        self._known = known

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
    """Return Σ weight · value, shapes (n,), rounded once and so equal on every machine."""
    return math.fsum((values * weights).tolist())
