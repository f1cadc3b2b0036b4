"""The least time of an ensemble, and the best rounds for a small one: yardsticks that know each member's epochs."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Flotilla
from uneven.policy.core.exact import Floats
from uneven_bench.fleet_plan.simulate import EnsembleWork

MOST_PLANS = 100_000  # flotillas that the exact search looks at; 8 members on 8 devices have 12 869
_HALVINGS = 100


@dataclass(frozen=True)
class BestRounds:
    """The best rounds for a small ensemble."""

    wall_s: float  # of all rounds, one after another
    flotillas: tuple[Flotilla, ...]  # the rounds; their order does not matter


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


def best_rounds(work: EnsembleWork) -> BestRounds:
    """Return the rounds that minimise Σ T(F_k | A_k), where a round ends when all its members have converged (Eq. 1–2).

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
    table = work.rates.table.tolist()
    epochs = [work.epochs[name] for name in members]
    rounds = {}
    for size in range(1, min(len(members), devices) + 1):
        counts = list(_counts(size, devices))
        for subset in itertools.combinations(range(len(members)), size):
            took_s, best = min((_round_s(work, table, epochs, subset, taken), taken) for taken in counts)
            rounds[sum(1 << i for i in subset)] = (took_s, subset, best)
    return _partition(work, rounds)


def round_s(work: EnsembleWork, flotilla: Flotilla) -> float:
    """Return the seconds until all members of a flotilla have converged; infinite if one does not fit."""
    members = list(flotilla.members)
    subset = [work.rates.place(name) for name in members]
    epochs = [work.epochs[name] for name in work.rates.members]
    return _round_s(work, work.rates.table.tolist(), epochs, subset, list(flotilla.members.values()))


def _round_s(
    work: EnsembleWork,
    table: Sequence[Sequence[float]],
    epochs: Sequence[int],
    subset: Sequence[int],
    counts: Sequence[int],
) -> float:
    pool = work.devices * work.prepared_per_s
    total, pace = 0.0, math.inf
    stages: list[tuple[int, float]] = []
    for i, count in sorted(zip(subset, counts, strict=True), key=lambda pair: -epochs[pair[0]]):
        row = table[i]
        pace = min(pace, row[count - 1] if count <= len(row) else 0.0)
        stages.append((epochs[i], min(pace, pool)))  # until this one ends, no later one is faster
    for place, (length, speed) in enumerate(stages):
        after = stages[place + 1][0] if place + 1 < len(stages) else 0
        if length > after:
            total += (length - after) * work.samples / speed if speed > 0.0 else math.inf
    return total


def _partition(work: EnsembleWork, rounds: Mapping[int, tuple[float, Sequence[int], Sequence[int]]]) -> BestRounds:
    """Return the cheapest cover of all members with rounds, over all subsets, smallest first."""
    everybody = (1 << len(work.rates.members)) - 1
    cost, last = [0.0] + [math.inf] * everybody, [0] * (everybody + 1)
    for who in range(1, everybody + 1):
        lowest = who & -who
        part = who
        while part:  # the parts of ``who`` that hold its lowest member
            if part & lowest and part in rounds:
                took_s = cost[who ^ part] + rounds[part][0]
                if took_s < cost[who]:
                    cost[who], last[who] = took_s, part
            part = (part - 1) & who
    if not math.isfinite(cost[everybody]):
        raise ConfigError("some member does not fit on all devices together: give it more memory, or leave it out")
    flotillas, who = [], everybody
    while who:
        _, subset, counts = rounds[last[who]]
        names = [work.rates.members[i] for i in subset]
        flotillas.append(Flotilla(dict(zip(names, counts, strict=True))))
        who ^= last[who]
    return BestRounds(cost[everybody], tuple(flotillas))


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
