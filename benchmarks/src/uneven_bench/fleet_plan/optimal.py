"""The least time of an ensemble, and the best rounds for a small one: yardsticks that know each member's epochs."""

import itertools
import math
from collections.abc import Mapping

import numpy as np

from uneven.errors import ConfigError
from uneven.policy.core.exact import Floats
from uneven_bench.fleet_plan.simulate import EnsembleWork

MOST_PLANS = 100_000  # flotillas that the exact search looks at; 8 members on 8 devices have 12 869
_HALVINGS = 100


def least_wall_s(work: EnsembleWork) -> float:
    """Return a lower bound of any plan's seconds. O(n · M) for n members on M devices. Over a training of T seconds, a
    member of W samples moves at W / T on average, and for that needs on average at least r̂⁻¹(W / T) devices, where r̂
    is the least concave function above its rates and 0. Together they cannot need more than M. T is the smallest such
    time, found by halving. Waiting, checkpoints and the shared pace are free, so the bound is below any reachable time.
    No member moves faster than the processors of all devices prepare samples."""
    hulls = [_hull(row[: work.devices]) for row in work.rates.table]
    samples = np.array([work.epochs[name] * work.samples for name in work.rates.members], dtype=np.float64)
    top = np.array([min(rates[-1], work.devices * work.prepared_per_s) for _, rates in hulls])
    low = float((samples / top).max())

    def needed(wall_s: float) -> float:
        wanted = samples / wall_s
        return math.fsum(np.interp(want, rates, devices) for want, (devices, rates) in zip(wanted, hulls, strict=True))

    if needed(low) <= work.devices:
        return low
    high = 2.0 * low
    while needed(high) > work.devices:
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        middle = low + (high - low) / 2
        low, high = (low, middle) if needed(middle) <= work.devices else (middle, high)
        if high - low <= 1e-12 * high:
            break
    return low


def best_rounds_s(work: EnsembleWork) -> float:
    """Return the least Σ T(F_k | A_k) of rounds that end when all their members have converged (Eq. 1–2), seconds.

    Exact: every flotilla of every subset with every number of devices, then the best partition into subsets.
    Checkpoints are free, as no member is stopped. Rounds that FLEET stops early may be shorter; :func:`least_wall_s`
    bounds them too.

    Raises ConfigError: too many flotillas to search.
    """
    members, devices = work.rates.members, work.devices
    plans = math.comb(len(members) + devices, devices) - 1
    if plans > MOST_PLANS:
        raise ConfigError(
            f"{len(members)} members on {devices} devices have {plans} flotillas, more than {MOST_PLANS}: ask "
            f"least_wall_s for a bound instead"
        )
    rounds_s: dict[int, float] = {}
    for size in range(1, min(len(members), devices) + 1):
        counts = list(_counts(size, devices))
        for subset in itertools.combinations(range(len(members)), size):
            names = [members[i] for i in subset]
            took_s = min(round_s(work, dict(zip(names, taken, strict=True))) for taken in counts)
            rounds_s[sum(1 << i for i in subset)] = took_s
    return _partition_s(len(members), rounds_s)


def round_s(work: EnsembleWork, flotilla: Mapping[str, int]) -> float:
    """Return the seconds until all members of a flotilla have converged; infinite if one does not fit. ``flotilla``:
    member → devices."""
    pool = work.devices * work.prepared_per_s
    total, pace = 0.0, math.inf
    stages: list[tuple[int, float]] = []
    for name in sorted(flotilla, key=lambda name: -work.epochs[name]):
        pace = min(pace, work.rates.per_s(name, flotilla[name]))
        stages.append((work.epochs[name], min(pace, pool)))  # until this one ends, no later one is faster
    for place, (length, speed) in enumerate(stages):
        after = stages[place + 1][0] if place + 1 < len(stages) else 0
        if length > after:
            total += (length - after) * work.samples / speed if speed > 0.0 else math.inf
    return total


def _partition_s(members: int, rounds_s: Mapping[int, float]) -> float:
    """Return the cheapest cover of all members with rounds, over all subsets, smallest first."""
    whole = (1 << members) - 1
    cost_s = [0.0] + [math.inf] * whole
    for who in range(1, whole + 1):
        lowest = who & -who
        part = who
        while part:  # the parts of ``who`` that hold its lowest member
            if part & lowest and part in rounds_s:
                cost_s[who] = min(cost_s[who], cost_s[who ^ part] + rounds_s[part])
            part = (part - 1) & who
    if not math.isfinite(cost_s[whole]):
        raise ConfigError("some member does not fit on all devices together: give it more memory, or leave it out")
    return cost_s[whole]


def _counts(size: int, devices: int) -> list[tuple[int, ...]]:
    """Return all ways to give ``size`` members one device or more each, together at most ``devices``."""
    cuts = itertools.combinations(range(1, devices + 1), size)
    return [tuple(b - a for a, b in itertools.pairwise((0, *cut))) for cut in cuts]


def _hull(row: Floats) -> tuple[Floats, Floats]:
    """Return devices and rates at the corners of the least concave function above (0, 0) and the rates, to its top."""
    corners: list[tuple[float, float]] = [(0.0, 0.0)]
    for count, rate in enumerate(row[: int(np.argmax(row)) + 1].tolist(), 1):
        if rate <= 0.0:
            continue
        while len(corners) > 1 and _below(corners[-2], corners[-1], (count, rate)):
            corners.pop()
        corners.append((float(count), rate))
    devices, rates = zip(*corners, strict=True)
    return np.array(devices), np.array(rates)


def _below(one: tuple[float, float], two: tuple[float, float], three: tuple[float, float]) -> bool:
    """Return whether the second point lies on or below the line through the first and the third."""
    return (two[1] - one[1]) * (three[0] - one[0]) <= (three[1] - one[1]) * (two[0] - one[0])
