"""Judges of ``uneven bench elastic``, which check a run with faults from the logs of its workers."""

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
    """Counts of wrongly used samples."""

    lost: int  # samples of finished epochs in no step
    twice: int  # repeated uses of a sample in an epoch
    more: int  # steps of finished epochs beyond the least number


def ledger(steps: Sequence[LoggedStep], samples: int, global_batch: int) -> SampleCounts:
    """Count the samples of a run. ``steps``: its history. The epoch of the last one is not over; ``samples``: of an
    epoch."""
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
    """Return the step numbers that are missing, from 0 on."""
    there = {step.number for step in steps}
    return [number for number in range(max(there, default=-1)) if number not in there]


def disagreements(logs: Sequence[WorkerLog]) -> list[int]:
    """Return the steps that two workers of one life logged with different samples and both continued from."""
    held: dict[tuple[float, int], set[tuple[int, ...]]] = {}
    for log in logs:
        went_on = log.steps if log.digest else log.steps[:-1]
        for step in went_on:
            held.setdefault((log.life, step.number), set()).add((step.epoch, *sorted(step.ids)))
    return sorted({number for (_, number), ids in held.items() if len(ids) > 1})


def unequal(logs: Sequence[WorkerLog]) -> int:
    """Return the number of different final sets of parameters, less one."""
    return max(0, len({log.digest for log in logs if log.digest}) - 1)


def progress(logs: Sequence[WorkerLog], hurt: Iterable[tuple[int, float, float]] = ()) -> list[tuple[float, int]]:
    """Return the moment and the number of each first step of the run as a whole, in the order of time.

    A step counts once every worker of that life that took it had; a repeated step after a restart counted already.

    ``hurt``: process, start and end of its fault. Its steps in between do not count.
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
    """Return the excess of the longest step of a stretch over a usual one; infinite if the run never continued.
    ``moments``: see :func:`progress`; ``since_s``: the moment of the fault; ``until_s``: the end of its consequences;
    the step under way then is the last one. Raises ValueError: less than two steps before it, so the usual time is
    unknown."""
    times_s = [at_s for at_s, _ in moments]
    before_s = [b - a for a, b in pairwise(times_s) if b <= since_s][-SETTLED:]
    if not before_s:
        raise ValueError(f"no two steps before {since_s:.3f} s to compare with")
    during_s = [b - a for a, b in pairwise(times_s) if b > since_s and a < until_s]
    return max(during_s) - median(before_s) if during_s else math.inf


def step_s(moments: Sequence[tuple[float, int]]) -> float:
    """Return the median of a step, NaN without steps. For ``moments`` see :func:`progress`."""
    times_s = [at_s for at_s, _ in moments]
    return median(b - a for a, b in pairwise(times_s)) if len(times_s) > 1 else math.nan


def useful(steps: Iterable[LoggedStep], since_s: float, until_s: float) -> int:
    """Return the samples used in the steps of a stretch of time, each once an epoch."""
    return len({(step.epoch, sample) for step in steps if since_s < step.at_s <= until_s for sample in step.ids})


def capacity(present: Sequence[tuple[float, int]], until_s: float, rate_per_s: Callable[[int], float]) -> float:
    """Return the samples that the present workers could have trained on without any fault. ``present``: moment → number
    of workers from then on, in order of time; ``until_s``: end of the last one; ``rate_per_s``: number of workers →
    samples/s of an undisturbed run."""
    ends_s = [*(at_s for at_s, _ in present[1:]), until_s]
    return math.fsum(rate_per_s(n) * (end_s - begin_s) for (begin_s, n), end_s in zip(present, ends_s, strict=True))


def between(measured: dict[int, float]) -> Callable[[int], float]:
    """Return samples/s by number of workers, linear between the measured numbers and in proportion beyond."""
    counts = sorted(measured)

    def rate_per_s(count: int) -> float:
        low = max((one for one in counts if one <= count), default=counts[0])
        high = min((one for one in counts if one >= count), default=counts[-1])
        if low == high or not low < count < high:
            return measured[low] * count / low if count != low else measured[low]
        part = (count - low) / (high - low)
        return measured[low] + part * (measured[high] - measured[low])

    return rate_per_s
