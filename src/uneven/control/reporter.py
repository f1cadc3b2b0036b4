"""One worker's side of the slow loop: what it has measured since its last report, and the report itself. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from uneven.control.forecast import Forecaster
from uneven.control.reports import Report
from uneven.core.views import Observation


class Load(NamedTuple):
    """Use of the node, 0 … 1, as it goes into a report: its processors by others, its memory by everybody."""

    cpu: float = math.nan
    memory: float = math.nan


@dataclass(slots=True)
class _Window:
    """Sums over the iterations since the last report."""

    iteration: int = -1
    iterations: int = 0
    samples: int = 0
    local_s: float = 0.0
    exchange_s: float = 0.0
    transfer_s: float = 0.0
    control_s: float = 0.0


class Reporter:
    """Sums up one worker's iterations, shows them to its forecaster, and fills in its reports.

    Args:
        forecaster: the worker's own.
        since: the worker takes part from this iteration on. What is measured of an earlier one belongs to a worker of
            the same rank that has left.

    Attributes:
        called: whether the worker has called for reports since it last gave one.
    """

    def __init__(self, forecaster: Forecaster, since: int = 0) -> None:
        self.forecaster = forecaster
        self.called = False
        self._since = since
        self._warm = False
        self._window = _Window()

    def measured(self, seen: Observation, control_s: float, late: bool = False) -> None:
        """Take in one iteration. The worker's first one warms up and does not count; neither does a padded batch.

        Args:
            control_s: what measuring and deciding cost in it.
            late: its samples came too late to count, or were the few that end an epoch. The forecaster ignores it.
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
        """The report on the iterations since the last one; the next begins afresh.

        Args:
            cost_s: what the last exchange of reports cost, from giving a report to deciding.
            control_s: what measuring and deciding have cost beyond what came with each measurement.
            no_early_reports: whether nobody can call for reports.
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
        """Go on with another forecaster; what was measured and not reported is forgotten."""
        self.forecaster, self._window, self.called = forecaster, _Window(), False
