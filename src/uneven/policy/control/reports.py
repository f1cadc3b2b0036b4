"""The reports that ranks exchange in the slow loop."""

from __future__ import annotations

import math
from typing import NamedTuple

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
