"""The delay of predictors behind a competing process that starts or ends at a known moment."""

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from uneven.cluster.pure.describe.trace import Trace
from uneven_bench.predictors.cases import Floats

FOLLOWED = 0.9  # part of a step that counts as following it
WITHIN = 9  # iterations after the first of a step that count
_FELT = 0.5  # part of a step from which on an iteration counts as the first of the new level
_FELT_WITHIN = 4  # iterations after the moment
_SETTLED_AFTER = 2  # iterations after the moment from which on the level is taken
_LEAST_STEP = 0.2  # of the larger level; smaller ones are like noise
_LEAST_ITERATIONS = 6  # of a level


class SpeedChange(NamedTuple):
    """One change of a worker's speed."""

    worker: int  # its number
    first: int  # the first iteration with half of it or more
    end: int  # the iteration of the next change
    before_per_s: float  # median speed of the old level
    after_per_s: float  # median speed of the new level


def find(speeds_per_s: Floats, ends_s: Floats, loads: Sequence[Trace]) -> list[SpeedChange]:
    """Return the steps of a run under these loads, one for each worker. ``speeds_per_s``: ``(workers, iterations)``,
    measured; ``ends_s``: ``(iterations,)``, their ends, in seconds since the description began to hold."""
    found = []
    for worker, (speeds, load) in enumerate(zip(speeds_per_s, loads, strict=True)):
        at = [0, *np.searchsorted(ends_s, changes_s(load, float(ends_s[-1]))).tolist(), len(ends_s)]
        levels = [(start, end, _level(speeds[start + _SETTLED_AFTER : end])) for start, end in pairwise(at)]
        for (_, _, before), (start, end, after) in pairwise(levels):
            if abs(after - before) > _LEAST_STEP * max(after, before):  # False if one of them is NaN
                felt = (speeds[start : start + _FELT_WITHIN + 1] - before) / (after - before) >= _FELT
                first = start + int(felt.argmax()) if felt.any() else start + 1
                found.append(SpeedChange(worker, first, end, before, after))
    return found


def response(told_per_s: Floats, steps: Sequence[SpeedChange]) -> list[float]:
    """Return the predicted part of a step for its first iteration, its second, and so on: medians over the steps, as
    one iteration is mostly noise. ``told_per_s`` is (workers, iterations)."""
    found: list[float] = []
    for late in range(WITHIN + 1):
        told = [(told_per_s[one.worker, one.first + late], one) for one in steps if one.first + late < one.end]
        if not told:
            break
        parts = ((speed - one.before_per_s) / (one.after_per_s - one.before_per_s) for speed, one in told)
        found.append(statistics.median(map(float, parts)))
    return found


def delay(responses: Sequence[float]) -> int:
    """Return iterations until nine tenths are followed: 0 if in time for the first; the window plus one if never."""
    return next((late for late, part in enumerate(responses) if part >= FOLLOWED), len(responses))


def changes_s(trace: Trace, until_s: float) -> list[float]:
    """Return the moments at which a trace changes its value, up to ``until_s``."""
    found: list[float] = []
    now_s = trace.next_change_s(0.0)
    value = trace.at(0.0)
    while now_s < until_s:
        if trace.at(now_s) != value:
            found.append(now_s)
            value = trace.at(now_s)
        now_s = trace.next_change_s(now_s)
    return found


def _level(speeds: Floats) -> float:
    return float(np.median(speeds)) if len(speeds) >= _LEAST_ITERATIONS - _SETTLED_AFTER else float("nan")
