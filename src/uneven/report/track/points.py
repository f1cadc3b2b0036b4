"""The records of a session's journal as points of curves, also while it is being written. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from uneven.core.records import Record, RunRecord, ScalarRecord
from uneven.core.text import printable
from uneven.journal.metrics import Iteration, Join
from uneven.journal.refreshes import Refreshes
from uneven.journal.summary import Summary
from uneven.report.series import one_each

_NEVER = -1

Plain = int | float | str | bool | None
"""What a setting may be."""


class LoggedValue(NamedTuple):
    """A value of a curve.

    Attributes:
        name: of the curve; what stands before a slash groups it.
        step: an iteration, an epoch, or how much a trial has been trained.
        at_s: Unix time.
    """

    name: str
    value: float
    step: int
    at_s: float


class PointStream:
    """What a session has measured and logged, iteration by iteration.

    ``user/…`` is what the script logged (the mean over workers, by what their batches count), ``run/…`` the iteration's
    duration and throughput, ``rank N/…`` share, speed, compute, wait and communicate of a worker.

    Attributes:
        settings: of the run, once rank 0 has said them.
        rewound: a resumed run repeats what was given out already: feed a new stream from the beginning.
    """

    def __init__(self, after: int = _NEVER) -> None:
        self.settings: dict[str, Plain] = {}
        self._join, self._refreshes = Join(), Refreshes()
        self._logged: dict[int, dict[str, list[ScalarRecord]]] = {}
        self._after, self.newest = after, after

    @property
    def rewound(self) -> bool:
        """See the attributes."""
        return self._join.rewound

    def feed(self, records: Iterable[Record], *, final: bool = False) -> list[LoggedValue]:
        """Take in new records.

        Args:
            final: nothing more is to come.

        Returns:
            What is complete now, by ascending steps. What was logged in an iteration comes one iteration later, when
            all workers have had the time to log it.
        """
        for record in records:
            self._join.add(record)
            if isinstance(record, RunRecord) and record.rank == 0:
                self.settings = {key: _plain(value) for key, value in record.settings.items()}
            elif isinstance(record, ScalarRecord) and not self._refreshes.add(record):
                self._logged.setdefault(record.iteration, {}).setdefault(record.name, []).append(record)
        found: list[LoggedValue] = []
        for one in self._join.take(final=final):
            found += self._of_iterations_before(one.iteration)
            found += _measured(one)
            self.newest = max(self.newest, one.iteration)
        if final:
            found += self._of_iterations_before(math.inf)
        return [point for point in found if point.step > self._after and math.isfinite(point.value)]

    def _of_iterations_before(self, iteration: float) -> list[LoggedValue]:
        found = []
        for ready in sorted(one for one in self._logged if one < iteration):
            for name, rows in self._logged.pop(ready).items():
                kept = [row for row in rows if not self._join.superseded(row.iteration, row.at_s)]
                found += [LoggedValue(f"user/{printable(name)}", row.value, ready, row.at_s) for row in one_each(kept)]
        return found


def results(summary: Summary) -> Mapping[str, float]:
    """The run in a few numbers."""
    values = {
        "run/median_iteration_s": summary.iteration_s,
        "run/median_samples_per_s": summary.samples_per_s,
        "run/wait_share": summary.wait_share,
        "run/of_limit": summary.fraction_of_limit,
    }
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _measured(one: Iteration) -> list[LoggedValue]:
    at = (one.iteration, one.ended_at_s)
    found = []
    if one.duration_s == one.duration_s:
        found.append(LoggedValue("run/iteration_s", one.duration_s, *at))
        found.append(LoggedValue("run/samples_per_s", one.global_batch / one.duration_s, *at))
    for rank, timing in one.timings.items():
        columns = {
            "share": float(timing.batch),
            "speed_per_s": timing.speed_per_s,
            "compute_s": timing.compute_s,
            "wait_s": timing.wait_s,
            "communicate_s": timing.communicate_s,
        }
        found += [LoggedValue(f"rank {rank}/{column}", value, *at) for column, value in columns.items()]
    return found


def _plain(value: object) -> Plain:
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)
