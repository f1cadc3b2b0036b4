"""Judges of ``uneven bench elastic``: what the logs of the workers say about a run with faults."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from uneven_bench.elastic.cases import SETTLED
from uneven_bench.elastic.logs import LoggedStep, WorkerLog


@dataclass(frozen=True, slots=True)
class SampleCounts:
    """How often samples were used.

    Attributes:
        lost: samples of epochs that are over which are in no step.
        twice: how many times a sample was used once too often in its epoch.
        more: steps of epochs that are over beyond the least that they take.
    """

    lost: int
    twice: int
    more: int


def ledger(steps: Sequence[LoggedStep], samples: int, global_batch: int) -> SampleCounts:
    """Count the samples of a run.

    Args:
        steps: its history. The epoch of the last one is not over.
        samples: of an epoch.
    """
    over = max((step.epoch for step in steps), default=0)
    used: dict[int, Counter[int]] = {epoch: Counter() for epoch in range(over)}
    taken: Counter[int] = Counter()
    for step in steps:
        used.setdefault(step.epoch, Counter()).update(step.ids)
        taken[step.epoch] += 1
    lost = sum(samples - len(used[epoch]) for epoch in range(over))
    twice = sum(count - 1 for counts in used.values() for count in counts.values())
    least = -(-samples // global_batch)
    return SampleCounts(lost, twice, sum(max(0, taken[epoch] - least) for epoch in range(over)))


def gaps(steps: Sequence[LoggedStep]) -> list[int]:
    """Numbers that are missing among the steps, from 0 on."""
    there = {step.number for step in steps}
    return [number for number in range(max(there, default=-1)) if number not in there]


def disagreements(logs: Sequence[WorkerLog]) -> list[int]:
    """Steps that two workers of one life wrote down with different samples and both went on from."""
    held: dict[tuple[float, int], set[tuple[int, ...]]] = {}
    for log in logs:
        went_on = log.steps if log.digest else log.steps[:-1]
        for step in went_on:
            held.setdefault((log.life, step.number), set()).add((step.epoch, *sorted(step.ids)))
    return sorted({number for (_, number), ids in held.items() if len(ids) > 1})


def unequal(logs: Sequence[WorkerLog]) -> int:
    """How many different sets of parameters the workers ended with, less one."""
    return max(0, len({log.digest for log in logs if log.digest}) - 1)


def progress(
    logs: Sequence[WorkerLog], hurt: Iterable[tuple[int, float, float]] = ()
) -> list[tuple[float, int]]:
    """When the run as a whole had first taken each step, in the order of time: the moment and the step's number.

    A step counts once every worker of that life that took it had; one that is taken again after a restart counted
    already.

    Args:
        hurt: a process, and since and until when it was hurt. What it did meanwhile does not count.
    """
    times_s: dict[int, list[tuple[float, float]]] = {}
    for pid, since_s, until_s in hurt:
        times_s.setdefault(pid, []).append((since_s, until_s))
    ends_s: dict[tuple[float, int], float] = {}
    for log in logs:
        for step in log.steps:
            if any(since_s < step.at_s <= until_s for since_s, until_s in times_s.get(log.pid, ())):
                continue
            key = (log.life, step.number)
            ends_s[key] = max(step.at_s, ends_s.get(key, -math.inf))
    first_s: dict[int, float] = {}
    for (_, number), at_s in ends_s.items():
        first_s[number] = min(at_s, first_s.get(number, math.inf))
    reached, found = -1, []
    for at_s, number in sorted((at_s, number) for number, at_s in first_s.items()):
        if number > reached:
            reached = number
            found.append((at_s, number))
    return found


def pause_s(moments: Sequence[tuple[float, int]], since_s: float, until_s: float) -> float:
    """How much longer the longest step of a stretch took than a usual one; infinite if the run never went on.

    Args:
        moments: see :func:`progress`.
        since_s: when something happened.
        until_s: until when its consequences count; the step under way then is the last one.

    Raises:
        ValueError: less than two steps before it, so that nobody knows the usual time.
    """
    times_s = [at_s for at_s, _ in moments]
    before_s = [b - a for a, b in pairwise(times_s) if b <= since_s][-SETTLED:]
    if not before_s:
        raise ValueError(f"no two steps before {since_s:.3f} s to compare with")
    during_s = [b - a for a, b in pairwise(times_s) if b > since_s and a < until_s]
    return max(during_s) - median(before_s) if during_s else math.inf


def step_s(moments: Sequence[tuple[float, int]]) -> float:
    """The median of a step; NaN where there are none.

    Args:
        moments: see :func:`progress`.
    """
    times_s = [at_s for at_s, _ in moments]
    return median(b - a for a, b in pairwise(times_s)) if len(times_s) > 1 else math.nan


def useful(steps: Iterable[LoggedStep], since_s: float, until_s: float) -> int:
    """Samples that were used, each once an epoch, in the steps of a stretch of time."""
    return len({(step.epoch, sample) for step in steps if since_s < step.at_s <= until_s for sample in step.ids})


def capacity(
    present: Sequence[tuple[float, int]], until_s: float, rate_per_s: Callable[[int], float]
) -> float:
    """Samples that the workers that were there could have trained on, were nothing ever disturbed.

    Args:
        present: from when on so many were there, in order of time.
        until_s: end of the last one.
        rate_per_s: samples/s of an undisturbed run of so many workers.
    """
    ends_s = [*(at_s for at_s, _ in present[1:]), until_s]
    return math.fsum(
        rate_per_s(count) * (end_s - begin_s) for (begin_s, count), end_s in zip(present, ends_s, strict=True)
    )


def between(measured: dict[int, float]) -> Callable[[int], float]:
    """Samples/s of any number of workers, linear between the numbers that were measured and in proportion beyond."""
    counts = sorted(measured)

    def rate_per_s(count: int) -> float:
        low = max((one for one in counts if one <= count), default=counts[0])
        high = min((one for one in counts if one >= count), default=counts[-1])
        if low == high or not low < count < high:
            return measured[low] * count / low if count != low else measured[low]
        part = (count - low) / (high - low)
        return measured[low] + part * (measured[high] - measured[low])

    return rate_per_s
