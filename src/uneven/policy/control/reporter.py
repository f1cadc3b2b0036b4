"""A worker's side of the slow loop: its measurements since its last report, and the report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from uneven.policy.control.forecast import Forecaster
from uneven.policy.control.reports import Report
from uneven.policy.core.views import Observation


class Load(NamedTuple):
    """Use of the node, 0 … 1: its processors by other processes, its memory in total."""

    cpu: float = math.nan
    memory: float = math.nan


@dataclass(slots=True)
class _Window:
    """The sums over the iterations since the last report."""

    iteration: int = -1
    iterations: int = 0
    samples: int = 0
    local_s: float = 0.0
    exchange_s: float = 0.0
    transfer_s: float = 0.0
    control_s: float = 0.0


class Reporter:
    """Sums up one worker's iterations, passes them to its forecaster, and makes its reports."""

    def __init__(self, forecaster: Forecaster, since: int = 0) -> None:
        self.forecaster = forecaster
        self.called = False  # whether the worker has called for reports since its last one
        self._since = since  # earlier iterations were of a worker of the same rank that has left
        self._warm = False
        self._window = _Window()

    def measured(self, seen: Observation, control_s: float, late: bool = False) -> None:
        """Add one iteration, except the worker's first one, which warms up, and padded batches.

        Args:
            control_s: cost of measuring and deciding in it.
            late: its samples arrived too late to count, or end an epoch; the forecaster ignores it.
        """
        if seen.iteration < self._since:
            return
        warm, self._warm = self._warm, True
        if not warm or seen.samples <= 0:
            return
        window = self._window
        window.iteration = seen.iteration
        window.iterations += 1
        window.samples += seen.samples
        window.local_s += seen.local_s
        window.exchange_s += seen.exchange_s
        window.transfer_s += seen.transfer_s
        window.control_s += control_s
        self.forecaster.observe(seen._replace(samples=0) if late else seen)

    def report(self, load: Load, cost_s: float, control_s: float, *, no_early_reports: bool, split: float) -> Report:
        """Return the report on the iterations since the last one, and start the next.

        Args:
            cost_s: of the last exchange of reports, from giving a report to deciding.
            control_s: of measuring and deciding, if not in the measurements.
            no_early_reports: whether workers cannot call for reports.
            split: fingerprint of the newest split.
        """
        window, self._window = self._window, _Window()
        urgent = self.called or self.forecaster.urgent
        forecast = self.forecaster.tell()
        return Report(
            iteration=window.iteration,
            iterations=window.iterations,
            samples=window.samples,
            local_s=window.local_s,
            exchange_s=window.exchange_s,
            transfer_s=window.transfer_s,
            control_s=window.control_s + control_s,
            cost_s=cost_s,
            cpu=load.cpu,
            memory=load.memory,
            predicted_per_s=forecast.predicted_per_s,
            doubt=forecast.doubt,
            urgent=float(urgent),
            no_early_reports=float(no_early_reports),
            split=split,
        )

    def restart(self, forecaster: Forecaster) -> None:
        """Continue with another forecaster, without the unreported measurements."""
        self.forecaster = forecaster
        self._window = _Window()
        self.called = False
