"""The conversion of journal records to points of curves, also during a run."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from uneven.journal.pure.apart import Places
from uneven.journal.pure.metrics import PHASES, Iteration, Join
from uneven.journal.pure.refreshes import Refreshes
from uneven.journal.pure.summary import Summary
from uneven.journal.report.pure.chart_series import one_each
from uneven.policy.core.printable import printable
from uneven.policy.core.records import Record, RunRecord, ScalarRecord

_NEVER = -1

Plain = int | float | str | bool | None  # types of settings


class LoggedValue(NamedTuple):
    """A value of a curve."""

    name: str  # the part before a slash is its group
    value: float
    step: int  # an iteration (or global batch), an epoch, or the progress of a trial
    at_s: float  # Unix time


class PointStream:
    """The measured and logged values of a session, by iteration.

    ``user/…`` are values that the script logged (the weighted mean over workers), ``run/…`` the iteration's duration
    and throughput, ``rank N/…`` a worker's share, speed and time in each phase. For asynchronous workers, an
    iteration is a piece as large as the global batch (``journal.pure.apart``).

    Attributes:
        settings: of the run, from rank 0's record.
        rewound: a resumed run repeats earlier points: feed a new stream from the beginning.
    """

    def __init__(self, after: int = _NEVER) -> None:
        self.settings: dict[str, Plain] = {}
        self._join = Join()
        self._refreshes = Refreshes()
        self._logged: dict[int, dict[str, list[ScalarRecord]]] = {}
        self._unplaced: list[ScalarRecord] = []  # from steps of incomplete pieces
        self._places = Places()
        self._seen: set[int] = set()
        self._after = after
        self.newest = after

    @property
    def rewound(self) -> bool:
        return self._join.rewound

    def feed(self, records: Iterable[Record], *, final: bool = False) -> list[LoggedValue]:
        """Add new records (``final``: the last ones); return the points that are now complete, by step."""
        for record in records:
            self._join.add(record)
            if isinstance(record, RunRecord) and record.rank == 0:
                self.settings = {key: _plain(value) for key, value in record.settings.items()}
            elif isinstance(record, ScalarRecord) and not self._refreshes.add(record):
                if self._join.apart:
                    self._unplaced.append(record)
                else:
                    self._keep(record.iteration, record)
        found: list[LoggedValue] = []
        for one in self._join.take(final=final):
            # Values of an iteration follow one iteration later, when all workers have had time to log them.
            found += self._of_iterations_before(one.iteration)
            found += _measured(one, self._seen)
            self.newest = max(self.newest, one.iteration)
            if one.apart:
                self._place(one)
        if final:
            for record in self._unplaced:
                self._keep(max(self.newest, 0), record)
            self._unplaced = []
            found += self._of_iterations_before(math.inf)
        return [point for point in found if point.step > self._after and math.isfinite(point.value)]

    def _keep(self, iteration: int, record: ScalarRecord) -> None:
        self._logged.setdefault(iteration, {}).setdefault(record.name, []).append(record)

    def _place(self, piece: Iteration) -> None:
        """Assign values that were logged in the steps of this piece, or of earlier ones."""
        for rank, timing in piece.timings.items():
            self._places.add((rank, self._join.life(piece.ended_at_s)), timing.newest, piece.iteration)
        left = []
        for record in self._unplaced:
            place = self._places.of((record.rank, self._join.life(record.at_s)), record.iteration)
            if place is None:
                left.append(record)
            else:
                self._keep(place, record)
        self._unplaced = left

    def _of_iterations_before(self, iteration: float) -> list[LoggedValue]:
        found = []
        for ready in sorted(one for one in self._logged if one < iteration):
            for name, rows in self._logged.pop(ready).items():
                kept = [row for row in rows if not self._join.superseded(row.iteration, row.at_s)]
                whole = one_each(replace(row, iteration=ready) for row in kept)
                found += [LoggedValue(f"user/{printable(name)}", row.value, ready, row.at_s) for row in whole]
        return found


def results(summary: Summary) -> Mapping[str, float]:
    usual = "mean" if summary.apart else "median"
    values = {
        f"run/{usual}_iteration_s": summary.iteration_s,
        f"run/{usual}_samples_per_s": summary.samples_per_s,
        "run/wait_share": summary.wait_share,
        "run/of_limit": summary.fraction_of_limit,
    }
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _measured(one: Iteration, seen: set[int]) -> list[LoggedValue]:
    at = (one.iteration, one.ended_at_s)
    found = []
    if one.duration_s == one.duration_s:
        found.append(LoggedValue("run/iteration_s", one.whole_s, *at))
        found.append(LoggedValue("run/samples_per_s", one.global_batch / one.duration_s, *at))
    for rank, timing in one.timings.items():
        columns = {"share": float(timing.batch), "speed_per_s": timing.speed_per_s}
        columns |= {f"{phase}_s": getattr(timing, f"{phase}_s") / timing.steps for phase in PHASES}
        found += [LoggedValue(f"rank {rank}/{column}", value, *at) for column, value in columns.items()]
    if one.apart:  # a known worker without a step in this piece has share 0
        found += [LoggedValue(f"rank {rank}/share", 0.0, *at) for rank in sorted(seen - one.timings.keys())]
        seen.update(one.timings)
    return found


def _plain(value: object) -> Plain:
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)
