"""Samples that cost unequally: who takes which of a global batch.

The split in force says which part of a batch's cost each worker takes. A part's cost is the sum over its samples (nodes
of graphs, sequences that are packed), or, where all are padded to the longest, their number times the greatest. Which
samples make a part is decided by every rank alike; the batch as a whole stays what the epoch's order says, and each
worker's mean counts by its number of samples, so the gradient stays that of one process.

* Sums: the dearest sample goes to whoever has most of its part left (longest processing time first, Graham 1969).
* Padded: samples are sorted, and each worker takes a run of them, so that likes lie with likes; the limit that just
  lets all runs hold the batch is found by bisection. Both are our choice.
"""

from __future__ import annotations

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
    """A global batch, divided.

    Attributes:
        places: places in the batch, those of the first worker first.
        counts: samples of each worker.
        works: what each worker's samples cost, in those of a mean sample of the data set, rounded.
    """

    places: list[int]
    counts: tuple[int, ...]
    works: tuple[int, ...]


class SampleCosts:
    """What each sample of a data set costs.

    Args:
        values: one for each, above 0, finite; in any unit.
        padded: see above.

    Attributes:
        digest: tells them from others.

    Raises:
        DataError: they are not.
    """

    def __init__(self, values: npt.ArrayLike, length: int, *, padded: bool = False) -> None:
        found = np.asarray(values, dtype=np.float64)
        if found.shape != (length,):
            raise DataError(f"cost has shape {found.shape}: give one number for each of the {length} samples")
        if not (np.isfinite(found).all() and (found > 0.0).all()):
            wrong = int(np.flatnonzero(~(np.isfinite(found) & (found > 0.0)))[0])
            raise DataError(f"cost of sample {wrong} is {found[wrong]}: give finite numbers above 0")
        self.digest = hashlib.blake2b(found.tobytes(), digest_size=8).hexdigest() + "padded" * padded
        self._values, self._padded = found, padded
        self._unit = float(found.mean())

    def divide(self, indices: npt.NDArray[np.int64], shares: Sequence[int], lower: int) -> Packed:
        """Divide a batch so that each worker's cost is as its share.

        Args:
            indices: of the batch's samples.
            shares: of the cost, one for each worker.
            lower: least samples of a worker that has any share, where there are enough.
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
    """Places for each worker, so that sums of costs are as shares."""
    groups: list[list[int]] = [[] for _ in shares]
    whole = float(costs.sum()) / max(1, sum(shares))
    room = [(-share * whole, worker) for worker, share in enumerate(shares) if share > 0]
    heapq.heapify(room)
    for place, cost in zip((order := np.argsort(-costs, kind="stable")).tolist(), costs[order].tolist(), strict=True):
        left, worker = room[0]
        groups[worker].append(place)
        heapq.heapreplace(room, (left + cost, worker))
    return groups


def by_runs(costs: Values, shares: Sequence[int]) -> list[list[int]]:
    """Places for each worker, so that numbers times greatest costs are about as shares."""
    order = np.argsort(-costs, kind="stable")
    sorted_costs = costs[order].tolist()
    workers = sorted((worker for worker, share in enumerate(shares) if share > 0), key=lambda one: (-shares[one], one))
    parts = [shares[worker] for worker in workers]
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
    """Runs from the dearest on, each as long as its part of the limit lets it be; None if some samples are left."""
    cuts, start = [], 0
    for part in parts:
        end = min(len(costs), start + int(part * limit / costs[start])) if start < len(costs) else start
        cuts.append((start, end))
        start = end
    return cuts if start == len(costs) else None


def _at_least(groups: list[list[int]], costs: Values, shares: Sequence[int], lower: int) -> None:
    """Move the cheapest samples of whoever has most to those that have too few."""
    for worker, share in enumerate(shares):
        while share > 0 and len(groups[worker]) < lower:
            richest = max(range(len(groups)), key=lambda one: (len(groups[one]), -one))
            if len(groups[richest]) <= lower:
                return
            cheapest = min(groups[richest], key=lambda place: (costs[place], place))
            groups[richest].remove(cheapest)
            groups[worker].append(cheapest)
