"""The interval between reports that the ranks can afford."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from uneven.policy.control.table import Column, ReportTable, weighted_sum

_WARM_UP = 4  # reports at the start that ignore the budget: the first split should come soon

# The same after a sudden change, while they still change the split. If a part of the time is constant, proportional
# shares take several decisions to settle. Only while a report costs at most _CHEAP of an iteration.
_AFTER_CHANGE = 3
_CHEAP = 0.05
_IDLE_GAP = 32  # while nothing changes, reports are up to 32 times rarer than the budget allows …
_GAP_WITHOUT_EARLY_REPORTS = 8  # … or 8 times if workers cannot call for one, so that a change waits for the next
_AIM = 0.6  # part of the budget that is spent, because a short run's measurements scatter around the mean
_STOPPED = 5.0  # a cost this many times the usual one includes a stop of the whole process
_SAVED = 1  # reports that can be saved for later, at most: no burst
_OWED = 4  # reports that can be owed, at most: no long silence


class Gap(NamedTuple):
    """Iterations, at least one, from one report to the next."""

    far: int  # at the earliest, if the caller is far off
    least: int  # at the earliest, if a worker calls
    most: int  # at the latest


_AT_ONCE = Gap(1, 1, 1)


class Spacing:
    """The number of iterations between reports that keeps the loop within its budget. Pure.

    What counts is the loss of the group. The time that a worker spends on deciding is missing for its samples, and the
    balance moves these to others. So costs are weighted by samples. With a tenth of a core a gather takes ten times as
    long, but that worker has few of the samples. One that all wait for, and that has no sample to give away, costs the
    group the full cost.

    The budget holds over time: excess cost is owed, and the next report waits until it is paid back. A report that a
    worker calls for waits for its own cost only: the debt may be the cost of measuring each step, which no gap saves.
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
        """Return the next gap, from reports that are equal on every rank and may have changed the split."""
        self._reports += 1
        no_early, urgent = (bool((table.column(name) > 0.0).any()) for name in ("no_early_reports", "urgent"))
        if changed or (urgent and no_early):
            self._still = 1
        elif not urgent:  # a call without effect is repeated if necessary
            self._still = min(2 * self._still, _GAP_WITHOUT_EARLY_REPORTS if no_early else _IDLE_GAP)
        reported = np.flatnonzero(table.believable() & (table.column("iterations") > 0))
        heard = table if len(reported) == len(table.rows) else ReportTable(table.rows[reported])
        before_s, costs_s = self._cost_s[reported], heard.column("cost_s")
        # Clip a cost that includes a stop of the process, which is not the loop's.
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
        """Return the iterations whose budget pays for a report, and for the debt."""
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
        # The cost on the slowest worker, if it has no sample to give away; otherwise 0.
        iterations, local_s = table.column("iterations"), table.column("local_s")
        last = int(np.argmax((local_s + table.column("transfer_s")) / iterations))
        if table.column("samples")[last] > least[last] * iterations[last]:
            return 0.0
        allowed_s = self._aim * (local_s[last] + table.column("exchange_s")[last]) / iterations[last]
        return float(costs_s[last] / allowed_s) if allowed_s > 0.0 else 0.0


def _whole(iterations: float) -> int:
    return max(1, math.ceil(iterations))
