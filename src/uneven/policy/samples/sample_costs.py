"""Divides global batches of samples with unequal costs among workers.

The current split gives each worker's part of a batch's cost. The cost of a part is the sum over its samples (nodes of
graphs, packed sequences) or, with padding to the longest, their number times the greatest cost. Every rank computes the
same division. The batch as a whole follows the epoch's order, and each worker's mean counts by its number of samples.
So the gradient equals that of a single process.

* Sums: the most expensive sample goes to the worker with most room left (longest processing time first, Graham 1969).
* Padded: each worker takes a run of the sorted samples, so that similar ones are together; bisection finds the
  smallest limit at which all runs hold the batch. Both are our choice.
"""

import hashlib
import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uneven.errors import DataError

Values = npt.NDArray[np.float64]

_HALVINGS = 30


@dataclass(frozen=True, slots=True)
class Packed:
    """A divided global batch."""

    places: list[int]  # places in the batch, those of the first worker first
    counts: tuple[int, ...]  # samples of each worker
    works: tuple[int, ...]  # cost of each worker's samples in units of a mean sample of the data set, rounded


class SampleCosts:
    """The cost of each sample of a data set; raises DataError if ``values`` are not finite, above 0 and of shape
    (length,)."""

    def __init__(self, values: npt.ArrayLike, length: int, *, padded: bool = False) -> None:
        found = np.asarray(values, dtype=np.float64)
        if found.shape != (length,):
            raise DataError(f"cost has shape {found.shape}: give one number for each of the {length} samples")
        if not (np.isfinite(found).all() and (found > 0.0).all()):
            wrong = int(np.flatnonzero(~(np.isfinite(found) & (found > 0.0)))[0])
            raise DataError(f"cost of sample {wrong} is {found[wrong]}: give finite numbers above 0")
        # distinguishes these costs from others
        self.digest = hashlib.blake2b(found.tobytes(), digest_size=8).hexdigest() + "padded" * padded
        self._values = found
        self._padded = padded  # whether a part costs its number of samples times the greatest cost
        self._unit = float(found.mean())

    def divide(self, indices: npt.NDArray[np.int64], shares: Sequence[int], lower: int) -> Packed:
        """Divide a batch, by its indices (samples,) int64, so that the workers' costs are in proportion to their
        shares.

        A worker with a share gets at least ``lower`` samples, if there are enough.
        """
        costs = self._values[indices]
        groups = by_runs(costs, shares) if self._padded else by_sum(costs, shares)
        _at_least(groups, costs, shares, lower)
        works = tuple(round(self._cost(costs[group]) / self._unit) for group in groups)
        return Packed([place for group in groups for place in group], tuple(map(len, groups)), works)

    def _cost(self, costs: Values) -> float:
        if not costs.size:
            return 0.0
        return float(costs.max() * costs.size if self._padded else costs.sum())


def by_sum(costs: Values, shares: Sequence[int]) -> list[list[int]]:
    """Return places for each worker, with sums of ``costs``, shape (samples,), in proportion to shares."""
    groups: list[list[int]] = [[] for _ in shares]
    whole = float(costs.sum()) / max(1, sum(shares))
    room = [(-share * whole, worker) for worker, share in enumerate(shares) if share > 0]
    heapq.heapify(room)
    for place, cost in zip((order := np.argsort(-costs, kind="stable")).tolist(), costs[order].tolist(), strict=True):
        left, worker = room[0]
        groups[worker].append(place)
        # `left` is minus the room that is left, because heapq pops the smallest.
        heapq.heapreplace(room, (left + cost, worker))
    return groups


def by_runs(costs: Values, shares: Sequence[int]) -> list[list[int]]:
    """Return places for each worker: the number times the greatest of ``costs``, shape (samples,), is about as its
    share."""
    order = np.argsort(-costs, kind="stable")
    sorted_costs = costs[order].tolist()
    workers = sorted((worker for worker, share in enumerate(shares) if share > 0), key=lambda one: (-shares[one], one))
    parts = [shares[worker] for worker in workers]
    # At this limit the smallest part alone holds all samples.
    low, high = 0.0, (1 + len(sorted_costs)) * sorted_costs[0] / min(parts)
    cuts = _cut(sorted_costs, parts, high)
    assert cuts is not None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        if (found := _cut(sorted_costs, parts, middle)) is None:
            low = middle
        else:
            high, cuts = middle, found
    groups: list[list[int]] = [[] for _ in shares]
    for worker, (start, end) in zip(workers, cuts, strict=True):
        groups[worker] = order[start:end].tolist()
    return groups


def _cut(costs: Sequence[float], parts: Sequence[int], limit: float) -> list[tuple[int, int]] | None:
    """Return runs from the most expensive sample on, each as long as its part of the limit allows; None if samples
    are left."""
    cuts, start = [], 0
    for part in parts:
        end = min(len(costs), start + int(part * limit / costs[start])) if start < len(costs) else start
        cuts.append((start, end))
        start = end
    return cuts if start == len(costs) else None


def _at_least(groups: list[list[int]], costs: Values, shares: Sequence[int], lower: int) -> None:
    for worker, share in enumerate(shares):
        while share > 0 and len(groups[worker]) < lower:
            richest = max(range(len(groups)), key=lambda one: (len(groups[one]), -one))
            if len(groups[richest]) <= lower:
                return
            cheapest = min(groups[richest], key=lambda place: (costs[place], place))
            groups[richest].remove(cheapest)
            groups[worker].append(cheapest)
