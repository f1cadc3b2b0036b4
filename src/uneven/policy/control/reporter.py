"""A worker's side of the slow loop: its measurements since its last report, and the report."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from uneven.policy.control.forecast import Forecaster
from uneven.policy.core.records import ForecastRecord
from uneven.policy.core.views import Observation

_NO_TIME_S = 1e-9  # local time in a report without samples, which is valid but contains no speed


class Report(NamedTuple):
    """One rank's row of the gathered table: sums over the iterations since the last report."""

    iteration: float  # the newest one covered
    iterations: float
    samples: float
    local_s: float
    exchange_s: float
    transfer_s: float
    control_s: float
    cost_s: float  # of the last exchange of reports
    cpu: float
    memory: float
    predicted_per_s: float  # its own forecast of its next iteration; NaN if it has none yet
    doubt: float
    urgent: float  # 1 if its speed has left its last forecast
    no_early_reports: float  # 1 if workers cannot call for reports
    split: float  # fingerprint of the newest split, which must be equal on all ranks

    @property
    def believable(self) -> bool:
        """True if its times are valid; the referee decides on its speed."""
        times = (self.iterations, self.local_s, self.exchange_s, self.control_s, self.cost_s)
        return all(math.isfinite(time) and time >= 0 for time in times) and (self.local_s > 0 or not self.iterations)

    def forecast(self, rank: int, iteration: int) -> ForecastRecord:
        return ForecastRecord(rank=rank, iteration=iteration, predicted_per_s=self.predicted_per_s, doubt=self.doubt)

    def observation(self) -> Observation:
        # No finished iteration (only a padded batch, or the device is not yet that far) is valid, but has no speed.
        return Observation(
            iteration=_whole(self.iteration),
            samples=_whole(self.samples) if self.iterations else 0,
            local_s=self.local_s if self.iterations else _NO_TIME_S,
            iterations=max(_whole(self.iterations), 1),
            exchange_s=self.exchange_s,
            transfer_s=self.transfer_s,
            cpu=self.cpu,
            memory=self.memory,
        )


# A report without content: what was believed of the worker before still holds.
SILENT = Report(
    iteration=0, iterations=0, samples=0, local_s=0, exchange_s=0, transfer_s=0, control_s=0, cost_s=0, cpu=math.nan,
    memory=math.nan, predicted_per_s=math.nan, doubt=math.nan, urgent=0, no_early_reports=0, split=math.nan,
)  # fmt: skip


def _whole(value: float) -> int:
    # NaN or infinity becomes −1, which the referee rejects.
    return int(value) if math.isfinite(value) else -1


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
