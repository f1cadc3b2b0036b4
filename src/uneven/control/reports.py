"""What the ranks tell each other in the slow loop. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from uneven.core.records import ForecastRecord
from uneven.core.views import Observation

_NO_TIME_S = 1e-9
"""Local time in a report of no samples, which says "took part, says nothing"."""


class Report(NamedTuple):
    """What one rank tells the others: one row of the gathered table. Sums over the iterations since the last."""

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
    predicted_per_s: float  # its own word on its next iteration; NaN if it has none yet
    doubt: float
    urgent: float  # 1 if its speed has left what it last foretold
    no_early_reports: float  # 1 where nobody can call for a gather
    split: float  # fingerprint of the newest split, which must be the same everywhere

    @property
    def believable(self) -> bool:
        """Whether its times can be reckoned with; the referee has the last word on its speed."""
        times = (self.iterations, self.local_s, self.exchange_s, self.control_s, self.cost_s)
        return all(math.isfinite(time) and time >= 0 for time in times) and (self.local_s > 0 or not self.iterations)

    def forecast(self, rank: int, iteration: int) -> ForecastRecord:
        """What a worker foretells with it, from ``iteration`` on."""
        return ForecastRecord(rank=rank, iteration=iteration, predicted_per_s=self.predicted_per_s, doubt=self.doubt)

    def observation(self) -> Observation:
        """As predictors see it.

        No finished iteration (only a padded batch, or the device has not got that far) is no fault of the rank.
        """
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


SILENT = Report(
    iteration=0, iterations=0, samples=0, local_s=0, exchange_s=0, transfer_s=0, control_s=0, cost_s=0, cpu=math.nan,
    memory=math.nan, predicted_per_s=math.nan, doubt=math.nan, urgent=0, no_early_reports=0, split=math.nan,
)  # fmt: skip
"""Stands for a worker that says nothing: what was believed of it before stands."""


def _whole(value: float) -> int:
    """A count; what is no number at all becomes −1, which the referee refuses."""
    return int(value) if math.isfinite(value) else -1
