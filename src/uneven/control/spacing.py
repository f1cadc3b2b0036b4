"""How often the ranks can afford to report. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from uneven.control.table import Column, ReportTable, weighted_sum

_WARM_UP = 4
"""Reports at the start that do not mind the budget: the first split should come soon."""

_AFTER_CHANGE = 3
"""The same after a report of a sudden change, as long as they change the split further: where a part of the time
is constant, shares in proportion to speed take several decisions to get there …"""

_CHEAP = 0.05
"""… and where a report costs at most this part of an iteration. It is then less than what a wrong split loses."""

_IDLE_GAP = 32
"""While nothing changes, reports are up to so many times rarer than the budget would allow …"""

_GAP_WITHOUT_EARLY_REPORTS = 8
"""… or so many times where nobody can call for one, and a change is only heard of at the next."""

_AIM = 0.6
"""Part of the budget that is spent: it is a bound, and what a short run measures scatters around the mean."""

_STOPPED = 5.0
"""Where a cost is so many times the usual one, the rest was a stop of the whole process, which fell into it."""

_SAVED = 1
_OWED = 4
"""Most that can be saved for later, and that can be owed, in reports: neither a burst nor a long silence."""


class Gap(NamedTuple):
    """Iterations, at least one, from one report to the next.

    Attributes:
        far: at the earliest, if who calls is far off.
        least: at the earliest, if somebody calls.
        most: at the latest.
    """

    far: int
    least: int
    most: int


_AT_ONCE = Gap(1, 1, 1)


class Spacing:
    """How many iterations from one report to the next, so that the loop stays within its budget. Pure.

    What counts is what the group loses. The time that a worker spends on deciding is missing for its samples, and
    the balance hands these to the others: so costs are weighed by samples. On a worker with a tenth of a core a
    gather takes ten times as long as elsewhere, but that worker has few of the samples. One that has no sample to hand
    over, and that all wait for, costs the group what deciding costs it.

    The share is met over time, as a throttle meets its own: what measuring and deciding took beyond the budget is
    owed, and the next report waits until it is paid back. One that is called for waits for its own price alone: most of
    what is owed may be what measuring each step costs, which is saved by no silence.

    Args:
        size: number of workers.
        budget: share of the iteration time.
        least: samples that each worker has at least.
    """

    def __init__(self, size: int, budget: float, least: Sequence[int] | None = None) -> None:
        self._aim = _AIM * budget
        self._least = np.zeros(size) if least is None else np.array(least, np.float64)
        self._cost_s = np.zeros(size)
        self._owed_s = 0.0
        self._reports = 0
        self._still = 1
        self._free = 0

    def gap(self, table: ReportTable, changed: bool, sudden: bool = False) -> Gap:
        """The next gap, from reports that are the same on every rank.

        Args:
            changed: whether they changed the split.
            sudden: whether some speed is quite another one than before.
        """
        self._reports += 1
        no_early, urgent = (bool((table.column(name) > 0.0).any()) for name in ("no_early_reports", "urgent"))
        if changed or (urgent and no_early):
            self._still = 1
        elif not urgent:  # who called and was heard to no effect will call again if need be
            self._still = min(2 * self._still, _GAP_WITHOUT_EARLY_REPORTS if no_early else _IDLE_GAP)
        reported = np.flatnonzero(table.believable() & (table.column("iterations") > 0))
        heard = table if len(reported) == len(table.rows) else ReportTable(table.rows[reported])
        before_s, costs_s = self._cost_s[reported], heard.column("cost_s")
        costs_s = np.where(before_s > 0.0, np.minimum(costs_s, _STOPPED * before_s), costs_s)
        now_s = before_s + np.where(before_s > 0.0, 0.2, 1.0) * (costs_s - before_s)
        self._cost_s[reported] = now_s
        self._free = (_AFTER_CHANGE if sudden else self._free) if changed else 0
        if self._reports <= _WARM_UP or not len(reported):
            return _AT_ONCE
        price, owed = self._price(heard, now_s)
        cheap = price * self._aim <= _CHEAP
        if self._free and cheap:
            self._free -= 1
            return _AT_ONCE
        price = max(price, self._price_of_last(heard, now_s, self._least[reported]))
        most = _whole(price + owed) * self._still
        least = min(_whole(price), most)
        return Gap(1 if cheap else least, least, most)

    def _price(self, table: ReportTable, costs_s: Column) -> tuple[float, float]:
        """In iterations whose budget pays for it: a report, and what is owed."""
        iterations, samples = table.column("iterations"), table.column("samples")
        total = math.fsum(samples.tolist())
        weights = samples / total if total > 0 else np.full(len(samples), 1.0 / len(samples))
        budget_s = self._aim * (table.column("local_s") + table.column("exchange_s"))
        cost_s = weighted_sum(costs_s, weights)
        allowed_s = weighted_sum(budget_s / iterations, weights)
        over_s = weighted_sum(table.column("control_s") - budget_s, weights)
        if self._reports > _WARM_UP + 1:  # the first report after it still covers iterations of the warm-up
            self._owed_s = min(max(self._owed_s + over_s, -_SAVED * cost_s), _OWED * cost_s)
        return (cost_s / allowed_s, self._owed_s / allowed_s) if allowed_s > 0 else (1.0, 0.0)

    def _price_of_last(self, table: ReportTable, costs_s: Column, least: Column) -> float:
        """The price of a report on the worker that takes longest, where it has no sample to hand over; else 0."""
        iterations, local_s = table.column("iterations"), table.column("local_s")
        last = int(np.argmax((local_s + table.column("transfer_s")) / iterations))
        if table.column("samples")[last] > least[last] * iterations[last]:
            return 0.0
        allowed_s = self._aim * (local_s[last] + table.column("exchange_s")[last]) / iterations[last]
        return float(costs_s[last] / allowed_s) if allowed_s > 0.0 else 0.0


def _whole(iterations: float) -> int:
    return max(1, math.ceil(iterations))
