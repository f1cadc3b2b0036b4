"""The referee, which decides which reports are believed.

Missing or absurd reports never reach a balancer; the last good one replaces them, and the journal gets a complaint.
Every rank judges the same reports, so all believe the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from uneven.policy.control.reporter import SILENT, Report
from uneven.policy.control.table import Column, ReportTable, Seen
from uneven.policy.core.plain import Misfit, read, whole_key

ABSURD_FACTOR = 1e6  # a speed this many times above or below the median of the others is not believed

_TIMES = ("local_s", "exchange_s", "transfer_s")
_NOTHING = np.full(len(Report._fields), math.nan)


@dataclass(frozen=True, slots=True)
class Complaint:
    """The reason why a report was not believed."""

    rank: int
    iteration: int  # in which it was judged
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one round of reports; position i belongs to the i-th member."""

    observed: Seen  # what is believed; None before a member's first good report
    fresh: npt.NDArray[np.bool_]  # whether that is new
    speeds_per_s: Column  # of the accepted reports; 0 without
    complaints: tuple[Complaint, ...]  # one for each rejected report


class RefereeState(TypedDict):
    """The checkpoint of a :class:`Referee`."""

    last: dict[str, list[float | None]]


class Referee:
    """Accepts or rejects reports and stores the last good one of each rank."""

    def __init__(self) -> None:
        self._members: tuple[int, ...] = ()
        self._last = ReportTable(np.empty((0, len(_NOTHING))))
        self._speeds_per_s = np.empty(0)

    def judge(self, members: Sequence[int], table: ReportTable, *, iteration: int) -> Verdict:
        """Judge the newest report of each member; ``iteration`` is for the complaints.

        It rejects a time or number of samples that is zero, negative or not finite. It also rejects a speed more than a
        million times above or below the others' median. A worker without samples, or without a finished iteration,
        reports no
        speed: its last good report is reused, without a complaint.
        """
        last, past = self._of(tuple(members))
        speeds = table.speeds_per_s()
        # The usual case takes no look at single reports: this runs between two training steps.
        if table.plain and _alike(speeds, past):
            self._last, self._speeds_per_s = table, speeds
            return Verdict(Seen(table.rows, speeds > 0), table.differs(last), speeds, ())
        faulty, known = ~table.sound(), past > 0
        # The others count with their last good reports, so that one absurd report does not discredit the rest. Between
        # two workers without a past either may be wrong; then both reports are rejected.
        standing = np.where(known, past, np.where(faulty, 0.0, speeds))
        low, high = _middles(standing)
        strange = ~faulty & (speeds > 0) & ~np.isnan(low)
        strange &= (speeds < low / ABSURD_FACTOR) | (speeds > high * ABSURD_FACTOR)
        good = ~faulty & ~strange & (speeds > 0)
        fresh = good & table.differs(last)
        rows = np.where(good[:, None], table.rows, last.rows)
        self._last, self._speeds_per_s = ReportTable(rows), np.where(good, speeds, past)
        seen = Seen(rows, known | good)
        complaints = []
        for place in np.flatnonzero(faulty | strange).tolist():
            fault = _fault(table, place) if faulty[place] else _strangeness(speeds[place], low[place])
            complaints.append(Complaint(members[place], iteration, f"{fault}; {_substitute(seen, place)}"))
        return Verdict(seen, fresh, self._speeds_per_s, tuple(complaints))

    def standing(self, members: Sequence[int]) -> ReportTable:
        """Return each member's last good report as if it were reported again; silent without one."""
        last, past = self._of(tuple(members))
        return ReportTable(np.where(past[:, None] > 0.0, last.rows, SILENT))

    def _of(self, members: tuple[int, ...]) -> tuple[ReportTable, Column]:
        # The last good reports and speeds, NaN and 0 without; workers that have left are forgotten.
        if members != self._members:
            known = dict(zip(self._members, self._last.rows, strict=True))
            self._members, self._last = members, ReportTable([known.get(rank, _NOTHING) for rank in members])
            self._speeds_per_s = self._last.speeds_per_s()
        return self._last, self._speeds_per_s

    def state_dict(self) -> dict[str, Any]:
        rows = zip(self._members, self._last.rows.tolist(), strict=True)
        return {"last": {str(rank): [x if math.isfinite(x) else None for x in row] for rank, row in rows}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        last = {whole_key(rank, "last"): row for rank, row in read(RefereeState, state)["last"].items()}
        if any(len(row) != len(_NOTHING) for row in last.values()):
            raise Misfit(last, f"a report of {len(_NOTHING)} numbers for each rank", "last")
        self._members = tuple(sorted(last))
        rows = [[math.nan if x is None else x for x in last[rank]] for rank in self._members]
        self._last = ReportTable(np.reshape(np.array(rows, np.float64), (len(rows), len(_NOTHING))))
        self._speeds_per_s = self._last.speeds_per_s()


def _alike(speeds: Column, past: Column) -> bool:
    # Sufficient, not necessary: all speeds are within the factor of all past ones, so of any median of them.
    least, most = float(past.min()), float(past.max())
    return least > 0.0 and speeds.min() >= most / ABSURD_FACTOR and speeds.max() <= least * ABSURD_FACTOR


def _fault(table: ReportTable, place: int) -> str:
    for name in ("samples", *_TIMES):
        value = float(table.column(name)[place])
        if not math.isfinite(value) or value < 0:
            return f"{name} = {value:g}"
    if not math.isfinite(table.column("iteration")[place]):
        return f"iteration = {table.column('iteration')[place]}"
    return f"{table.column('samples')[place]:g} samples in 0 s"


def _middles(standing: Column) -> tuple[Column, Column]:
    """Return the two middle values of the others' speeds for each member; NaN without any."""
    ordered = np.sort(standing[standing > 0])
    others = len(ordered) - (standing > 0)
    if not len(ordered):
        return np.full(len(standing), math.nan), np.full(len(standing), math.nan)
    # One sort for all members: the middle of the others is that of all, shifted past the member's own place.
    left_out = np.where(standing > 0, np.searchsorted(ordered, standing), len(ordered))
    low, high = np.maximum(others - 1, 0) // 2, others // 2
    last = len(ordered) - 1
    low_s = ordered[np.minimum(low + (low >= left_out), last)]
    high_s = ordered[np.minimum(high + (high >= left_out), last)]
    return np.where(others > 0, low_s, math.nan), np.where(others > 0, high_s, math.nan)


def _strangeness(speed: float, middle: float) -> str:
    return f"{speed:.3g} samples/s, but the others' median is {middle:.3g}"


def _substitute(seen: Seen, place: int) -> str:
    last = seen[place]
    if last is None:
        return "nothing is known of this rank yet, so the shares stay"
    return f"its report of iteration {last.iteration} ({last.speed_per_s:.4g} samples/s) serves"
