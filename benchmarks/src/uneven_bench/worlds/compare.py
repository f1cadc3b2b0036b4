"""A comparison of both worlds' results for a description, and its tables. No process, no file, no clock."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from uneven.policy.core.records import Record, StepRecord

BALANCERS = ("even", "lb-bsp")

TIE = 0.03  # two strategies whose times differ by less are called equally fast
CLOSE = 0.1  # a gain too small for one run each: on a shared machine, two equal runs may differ by as much


TOLD = 3  # races that must all have the same winner, or there is none


class Pair(NamedTuple):
    """Median iteration time of one description in both worlds."""

    simulated_s: float
    emulated_s: float


class Race(NamedTuple):
    """The speed-up of the second balancer over the first in both worlds. The simulated ones run on the same processors;
    the emulated ones run in turn, on processors that may be some percent faster or slower by then."""

    simulated: float
    emulated: float


Compared = dict[str, dict[str, dict[str, Any]]]  # case → balancer → :func:`summary`


def iteration_s(records: list[Record], since: int) -> float:
    """Return the median time of an iteration from ``since`` on, by the end of rank 0's steps."""
    ends_s = {step.iteration: step.ended_at_s for step in records if isinstance(step, StepRecord) and step.rank == 0}
    counted = [ends_s[iteration] for iteration in sorted(ends_s) if iteration >= since - 1]
    return statistics.median(later - earlier for earlier, later in pairwise(counted))


def summary(pairs: list[Pair]) -> dict[str, Any]:
    """Return medians over the repeats; the error is that of the middle pair, since both of a pair ran at the same
    speed."""
    emulated_s = [pair.emulated_s for pair in pairs]
    return {
        "simulated_s": statistics.median(pair.simulated_s for pair in pairs),
        "emulated_s": statistics.median(emulated_s),
        "emulated_range_s": [min(emulated_s), max(emulated_s)],
        "error": abs(statistics.median(pair.simulated_s / pair.emulated_s for pair in pairs) - 1.0),
    }


def summarize(compared: Compared, races: Mapping[str, Sequence[Race]]) -> dict[str, Any]:
    """Return the agreement of the worlds, over all cases and both balancers."""
    errors = [one["error"] for case in compared.values() for one in case.values()]
    agree = [agreed(case) for case in races.values()]
    gains = {name: {world: _gains(case, world) for world in Race._fields} for name, case in races.items()}
    return {
        "cases": compared,
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "rank_agreement": sum(agree) / len(agree),
        "gains": gains,
        "faster": {name: {world: verdict(those) for world, those in each.items()} for name, each in gains.items()},
    }


def _gains(races: Sequence[Race], world: str) -> list[float]:
    return [getattr(race, world) for race in races]


def close(races: Sequence[Race]) -> bool:
    """Return whether the balancers are so near in one of the worlds that a single run may be wrong."""
    return any(abs(statistics.median(_gains(races, world)) - 1.0) < CLOSE for world in Race._fields)


def agreed(races: Sequence[Race]) -> bool:
    """Return whether both worlds call the same balancer faster, or give almost the same gain."""
    first, second = (_gains(races, world) for world in Race._fields)
    return verdict(first) == verdict(second) or abs(statistics.median(first) - statistics.median(second)) < TIE / 2


def verdict(gains: Sequence[float]) -> str:
    """Return the faster balancer, or "neither" within the tie and without a common winner of several races. ``gains``:
    of the second balancer over the first, race by race."""
    middle = statistics.median(gains)
    if abs(middle - 1.0) < TIE or (len(gains) >= TOLD and min(gains) <= 1.0 <= max(gains)):
        return "neither"
    return BALANCERS[middle > 1.0]
