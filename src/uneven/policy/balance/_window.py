"""The median time of each worker over several reports."""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np

from uneven.policy.balance._intake import ReportColumns
from uneven.policy.core.exact import Floats
from uneven.policy.core.plain import Amount, Misfit, read

LEAST_REPORTS = 3  # of each worker in a window: the median of three ignores one random delay [default]
_MOST_REPORTS = 64  # kept while some worker's are missing [default]


class WindowState(TypedDict):
    """The checkpoint of a :class:`Window`."""

    rows: list[list[float | None]]
    iterations: list[Amount]
    counts: list[Amount]


class Window:
    """A number of iterations to observe, so that one random delay does not matter (specification §1.8)."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._rows: list[Floats] = []  # seconds of an iteration, shape (n,) each; NaN without a report
        self._iterations = np.zeros(0)  # covered by each worker's reports, which sum several
        self._counts = np.zeros(0)  # of each worker's reports

    def add(self, reports: ReportColumns) -> None:
        # Other members: their old rows have another length.
        if len(self._iterations) != len(reports.clean):
            self._rows = []
            self._iterations, self._counts = np.zeros(len(reports.clean)), np.zeros(len(reports.clean))
        if not reports.clean.any():
            return
        self._rows = [*self._rows[1 - _MOST_REPORTS :], np.where(reports.clean, reports.seconds, np.nan)]
        self._iterations = self._iterations + np.where(reports.clean, reports.iterations, 0.0)
        self._counts = self._counts + reports.clean

    def watched(self) -> int:
        """Return the iterations covered for the worker with the fewest."""
        return int(self._iterations.min()) if len(self._iterations) else 0

    def full(self, iterations: int) -> bool:
        """Return whether every worker has reported this many iterations, in three reports or more."""
        return self.watched() >= iterations and int(self._counts.min()) >= LEAST_REPORTS

    def median_s(self) -> Floats:
        """Return the median seconds of an iteration of each worker, shape (n,); NaN without reports."""
        ordered = np.sort(np.stack(self._rows), axis=0)  # sorts NaN last
        present = np.count_nonzero(~np.isnan(ordered), axis=0)
        at = np.arange(ordered.shape[1])
        low = ordered[np.maximum(present - 1, 0) // 2, at]
        high = ordered[np.minimum(present // 2, len(ordered) - 1), at]
        middle: Floats = low + (high - low) * 0.5
        return middle

    def state_dict(self) -> dict[str, Any]:
        return {
            "rows": [[None if t != t else t for t in row.tolist()] for row in self._rows],
            "iterations": self._iterations.tolist(),
            "counts": self._counts.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = read(WindowState, state)
        workers = len(saved["iterations"])
        if len(saved["counts"]) != workers or any(len(row) != workers for row in saved["rows"]):
            raise Misfit(saved["rows"], f"rows of {workers}, as many as iterations and counts", "rows")
        if any(saved["counts"]) and not saved["rows"]:
            raise Misfit(saved["rows"], "the reports that counts tells of", "rows")
        self._rows = [np.array([np.nan if t is None else t for t in row], np.float64) for row in saved["rows"]]
        self._iterations = np.array(saved["iterations"], np.float64)
        self._counts = np.array(saved["counts"], np.float64)
