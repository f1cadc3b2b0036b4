"""The records of a session's journal as points of curves, also while it is being written. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from uneven.core.records import Record, RunRecord, ScalarRecord
from uneven.core.text import printable
from uneven.journal.apart import Places
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
        step: an iteration (a global batch where each worker takes steps of its own), an epoch, or how much a trial has
            been trained.
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

    Where each worker takes steps of its own, an iteration is a piece as large as the global batch (``journal.apart``):
    values that were logged in the steps that ended in it, its rate, and each worker's share of its samples and means
    over its steps.

    Attributes:
        settings: of the run, once rank 0 has said them.
        rewound: a resumed run repeats what was given out already: feed a new stream from the beginning.
    """

    def __init__(self, after: int = _NEVER) -> None:
        self.settings: dict[str, Plain] = {}
        self._join, self._refreshes = Join(), Refreshes()
        self._logged: dict[int, dict[str, list[ScalarRecord]]] = {}
        self._unplaced: list[ScalarRecord] = []  # in steps that are in no piece yet
        self._places = Places()
        self._seen: set[int] = set()
        self._after, self.newest = after, after

    @property
    def rewound(self) -> bool:
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
                if self._join.apart:
                    self._unplaced.append(record)
                else:
                    self._keep(record.iteration, record)
        found: list[LoggedValue] = []
        for one in self._join.take(final=final):
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
        """Sort in what was logged in the steps of this piece, or of one before it."""
        for rank, timing in piece.timings.items():
            self._places.add(rank, timing.newest, piece.iteration)
        left = []
        for record in self._unplaced:
            place = self._places.of(record.rank, record.iteration)
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
    """The run in a few numbers."""
    usual = "mean" if summary.apart else "median"
    values = {
        f"run/{usual}_iteration_s": summary.iteration_s,
        f"run/{usual}_samples_per_s": summary.samples_per_s,
        "run/wait_share": summary.wait_share,
        "run/of_limit": summary.fraction_of_limit,
    }
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _measured(one: Iteration, seen: set[int]) -> list[LoggedValue]:
    """What one iteration took; where each takes steps of its own, whoever else was seen before has no share in it."""
    at = (one.iteration, one.ended_at_s)
    found = []
    if one.duration_s == one.duration_s:
        found.append(LoggedValue("run/iteration_s", one.whole_s, *at))
        found.append(LoggedValue("run/samples_per_s", one.global_batch / one.duration_s, *at))
    for rank, timing in one.timings.items():
        columns = {
            "share": float(timing.batch),
            "speed_per_s": timing.speed_per_s,
            "compute_s": timing.compute_s / timing.steps,
            "wait_s": timing.wait_s / timing.steps,
            "communicate_s": timing.communicate_s / timing.steps,
        }
        found += [LoggedValue(f"rank {rank}/{column}", value, *at) for column, value in columns.items()]
    if one.apart:
        found += [LoggedValue(f"rank {rank}/share", 0.0, *at) for rank in sorted(seen - one.timings.keys())]
        seen |= one.timings.keys()
    return found


def _plain(value: object) -> Plain:
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)
