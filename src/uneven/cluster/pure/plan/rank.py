"""The ranking of simulated combinations."""

from collections.abc import Sequence
from dataclasses import dataclass

from uneven.cluster.pure.plan.plan_figures import CombinationResult
from uneven.cluster.pure.plan.prices import Allowance

_SAME = 0.01  # relative difference below which balancers are shown as one: simulations are not more exact [default]

_PREFERRED = "lb-bsp"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the ranking."""

    result: CombinationResult
    of_limit: float  # samples/s over the limit of all combinations, 0 … 1
    twins: tuple[str, ...] = ()  # other balancers with the same result under the same policy


@dataclass(frozen=True, slots=True)
class Plan:
    """The ranking."""

    rows: tuple[Row, ...]  # all combinations, the best first
    shown: tuple[Row, ...]  # the same, with one row for balancers with the same result
    limit_per_s: float  # the highest of all combinations: all workers always compute, communication is free
    baseline: Row  # even shares under bsp, or the nearest combination, for comparisons

    @property
    def best(self) -> Row:
        return self.shown[0]

    @property
    def best_carried(self) -> Row | None:
        """The first row that a real run supports, and whose exchanges are not further apart than in published runs that
        learned, if there is one."""
        carried = [row for row in self.shown if row.result.refused is None]
        return next((row for row in carried if row.result.unshown is None), next(iter(carried), None))


def ranked(results: Sequence[CombinationResult], allowance: Allowance | None = None) -> Plan:
    """Order results by the time to the goal, or without a training by samples/s, or by samples within ``allowance``.

    Combinations that did not reach the goal come last, the most accurate first, and before them those that reach it
    only outside of ``allowance``.

    Raises:
        ValueError: no results.
    """
    if not results:
        raise ValueError("no combination to rank: give at least one")
    limit = max(result.figures.limit_per_s for result in results)
    ordered = sorted(results, key=lambda result: _order(result, allowance))
    rows = tuple(Row(one, one.figures.samples_per_s / limit if limit > 0 else 0.0) for one in ordered)
    return Plan(rows, _merged(rows), limit, _baseline(rows))


def _order(result: CombinationResult, allowance: Allowance | None) -> tuple[float, float, float, str, str]:
    lesson = result.lesson
    speed = -result.figures.samples_per_s
    if allowance is not None and allowance.limited and lesson is None:
        speed = -allowance.samples(result)
    choice = result.choice.sync, result.choice.balance
    if lesson is None:
        return 0.0, 0.0, speed, *choice
    if lesson.reached_s is not None:
        return 0.5 * (allowance is not None and not allowance.reaches(result)), lesson.reached_s, speed, *choice
    return 2.0 if lesson.diverged else 1.0, -lesson.best, speed, *choice


def _merged(rows: Sequence[Row]) -> tuple[Row, ...]:
    shown: list[Row] = []
    for row in rows:
        for place, known in enumerate(shown):
            if _alike(row.result, known.result):
                shown[place] = _one_row(known, row)
                break
        else:
            shown.append(row)
    return tuple(shown)


def _one_row(known: Row, row: Row) -> Row:
    # The row shows this library's own balancer if it is among them.
    names = [known.result.choice.balance, *known.twins, row.result.choice.balance]
    first = row if row.result.choice.balance.startswith(_PREFERRED) else known
    return Row(first.result, first.of_limit, tuple(name for name in names if name != first.result.choice.balance))


def _alike(one: CombinationResult, other: CombinationResult) -> bool:
    if one.choice.sync != other.choice.sync:
        return False
    pairs = [(one.figures.samples_per_s, other.figures.samples_per_s)]
    if one.lesson is not None and other.lesson is not None:
        times = one.lesson.reached_s, other.lesson.reached_s
        if (times[0] is None) != (times[1] is None):
            return False
        pairs.append((times[0] or one.lesson.best, times[1] or other.lesson.best))
    return all(abs(left - right) <= _SAME * max(left, right) for left, right in pairs)


def _baseline(rows: Sequence[Row]) -> Row:
    # DistributedDataParallel's combination, otherwise the slowest, so that the others do not look better than they are.
    for row in rows:
        if (row.result.choice.balance, row.result.choice.sync) == ("even", "bsp"):
            return row
    return min(rows, key=lambda row: row.result.figures.samples_per_s)
