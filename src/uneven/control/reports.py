"""What the ranks tell each other in the slow loop, and how often they can afford to."""

from __future__ import annotations

import math
from typing import NamedTuple

from uneven.core.views import Observation

_WARM_UP = 4
"""Gathers at the start that do not mind the budget: the first split should come soon."""

_IDLE_GAP = 32
"""While nothing changes, gathers are up to so many times rarer than the budget would allow …"""

_DEAF_GAP = 8
"""… or so many times where nobody can call for one, and a change is only heard of at the next."""

_AIM = 0.7
"""Part of the budget that is spent: it is a bound, and what a short run measures scatters around the mean."""

_SAVED = 1
_OWED = 4
"""Most that can be saved for later, and that can be owed, in gathers: neither a burst nor a long silence."""

_NO_TIME_S = 1e-9
"""Local time in a report of no samples, which the referee takes for "took part, says nothing"."""


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
    deaf: float  # 1 where nobody can call for a gather
    split: float  # fingerprint of the newest split, which must be the same everywhere

    @property
    def believable(self) -> bool:
        """Whether its times can be reckoned with; the referee has the last word on its speed."""
        times = (self.iterations, self.local_s, self.exchange_s, self.control_s, self.cost_s)
        return all(math.isfinite(time) and time >= 0 for time in times) and (self.local_s > 0 or not self.iterations)

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


class Gap(NamedTuple):
    """Iterations, at least one, from one gather to the next: at the earliest if somebody calls, and at the latest."""

    least: int
    most: int


class Spacing:
    """How many iterations from one gather to the next, so that the loop stays within its budget. Pure.

    What counts is what the group loses. The time that a worker spends on deciding is missing for its samples, and
    the balance hands these to the others: so costs are weighed by samples. On a worker with a tenth of a core a
    gather takes ten times as long as elsewhere, but that worker has few of the samples.

    The share is met over time, as a throttle meets its own: what measuring and deciding took beyond the budget is
    owed, and the next gather waits until it is paid back.

    Args:
        size: number of workers.
        budget: share of the iteration time.
    """

    def __init__(self, size: int, budget: float) -> None:
        self._aim = _AIM * budget
        self._cost_s = [0.0] * size
        self._owed_s = 0.0
        self._gathers = 0
        self._still = 1

    def gap(self, reports: tuple[Report, ...], changed: bool) -> Gap:
        """The next gap, from reports that are the same on every rank, and whether they changed the split."""
        self._gathers += 1
        deaf, urgent = (any(getattr(report, name) > 0.0 for report in reports) for name in ("deaf", "urgent"))
        if changed or (urgent and deaf):
            self._still = 1
        elif not urgent:  # who called and was heard to no effect will call again if need be
            self._still = min(2 * self._still, _DEAF_GAP if deaf else _IDLE_GAP)
        told = [(rank, report) for rank, report in enumerate(reports) if report.believable and report.iterations > 0]
        for rank, report in told:
            # A single cost may be a stop of the whole process that fell into it; the mean is the truth.
            self._cost_s[rank] += (0.2 if self._cost_s[rank] else 1.0) * (report.cost_s - self._cost_s[rank])
        if self._gathers <= _WARM_UP or not told:
            return Gap(1, 1)
        least = self._needed(told)
        return Gap(least, least * self._still)

    def _needed(self, told: list[tuple[int, Report]]) -> int:
        samples = math.fsum(report.samples for _, report in told)
        cost_s = allowed_s = over_s = 0.0
        for rank, report in told:
            weight = report.samples / samples if samples > 0 else 1.0 / len(told)
            budget_s = self._aim * (report.local_s + report.exchange_s)
            cost_s += weight * self._cost_s[rank]
            allowed_s += weight * budget_s / report.iterations
            over_s += weight * (report.control_s - budget_s)
        if self._gathers > _WARM_UP + 1:  # the first report after it still covers iterations of the warm-up
            self._owed_s = min(max(self._owed_s + over_s, -_SAVED * cost_s), _OWED * cost_s)
        return max(1, math.ceil((cost_s + self._owed_s) / allowed_s)) if allowed_s > 0 else 1


def _whole(value: float) -> int:
    """A count; what is no number at all becomes −1, which the referee refuses."""
    return int(value) if math.isfinite(value) else -1
