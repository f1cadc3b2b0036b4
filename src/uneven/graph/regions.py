"""Which worker takes which parts of a graph that was cut into more parts than there are workers. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uneven.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Dealt:
    """What each worker had, and how long it needed for that by itself.

    Attributes:
        edges, roots: of each worker.
        own_s: seconds in a step.
    """

    edges: tuple[float, ...]
    roots: tuple[float, ...]
    own_s: tuple[float, ...]


def alone_s(local_s: float, local_cpu_s: float, exchange_cpu_s: float) -> float:
    """Seconds that a worker needs for a step if it never waits: exchanges take it processor time, too, and no less on a
    small part, at the rate at which it gets any. Without that time known, what it does outside of them."""
    found = local_s * (1.0 + exchange_cpu_s / local_cpu_s) if local_cpu_s > 0.0 else math.nan
    return local_s if math.isnan(found) else found


def fitted(seen: Sequence[Dealt], beta: float) -> tuple[float, float]:
    """What a root costs, and what a step costs that has neither, both in edges, so that the speeds of workers are most
    alike from one dealing to the next: (fixed + edges + β · roots) / seconds. A worker's time tells nothing about these
    as long as it has had one share of the graph only; then β is as given, and nothing is fixed.

    Args:
        beta: to begin with; another one has to explain better.
    """
    if len({one.edges for one in seen}) < 2:
        return beta, 0.0
    edges, roots, own_s = (np.array([getattr(one, name) for one in seen]) for name in ("edges", "roots", "own_s"))
    best, least = (beta, 0.0), math.inf
    for price in (beta, *np.geomspace(1.0, 1e5, 31)):
        cost = edges + price * roots
        for share in (0.0, *np.geomspace(0.005, 2.0, 33)):
            fixed = float(share * cost.mean())
            away = np.log((fixed + cost) / own_s)
            found = float(away.std(axis=0).mean()) + 1e-3 * (price != beta) + 1e-3 * (share > 0.0)
            if found < least:
                best, least = (float(price), fixed), found
    return best


def grouped(costs: Sequence[float], speeds: Sequence[float], fixed: float = 0.0) -> list[range]:
    """Parts that follow each other to each worker, at least one, so that the last is done as soon as can be.

    Args:
        costs: of each part, above 0.
        speeds: cost that each worker does in a second, or in any other time.
        fixed: cost that each worker has beside its parts.

    Raises:
        ConfigError: more workers than parts, or a speed that is not above 0.
    """
    if not speeds or len(speeds) > len(costs):
        raise ConfigError(
            f"{len(speeds)} workers and {len(costs)} parts: a part cannot be split; partition again with more parts"
        )
    if not all(0.0 < one < float("inf") for one in speeds):
        raise ConfigError(f"speeds = {tuple(speeds)}: each must be a number above 0")
    low, high = 0.0, 2.0 * (fixed + sum(costs)) / min(speeds)
    best: list[range] = []
    for _ in range(61):  # first, the time in which the slowest does all: there each does one and the last the rest
        middle = (low + high) / 2.0
        if found := _within(costs, speeds, middle, fixed):
            best, high = found, middle
        else:
            low = middle
    return best


def _within(costs: Sequence[float], speeds: Sequence[float], time: float, fixed: float) -> list[range] | None:
    """Each worker takes what it can do in ``time``; None if that leaves parts over."""
    found, place = [], 0
    for number, speed in enumerate(speeds):
        begin, room, last = place, speed * time * (1.0 + 1e-12) - fixed, len(costs) - (len(speeds) - 1 - number)
        while place < last and costs[place] <= room:
            room -= costs[place]
            place += 1
        if place == begin:
            return None
        found.append(range(begin, place))
    return found if place == len(costs) else None


def done_in(costs: Sequence[float], speeds: Sequence[float], groups: Sequence[range], fixed: float = 0.0) -> float:
    """When the last worker is done."""
    return max((fixed + sum(costs[p] for p in one)) / speed for one, speed in zip(groups, speeds, strict=True))
