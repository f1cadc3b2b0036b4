"""The assignment of parts to workers if a graph has more parts than there are workers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uneven.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Dealt:
    """An assignment: each worker's edges and roots, and its own time per step."""

    edges: tuple[float, ...]
    roots: tuple[float, ...]
    own_s: tuple[float, ...]  # seconds per step, without waiting


def alone_s(local_s: float, local_cpu_s: float, exchange_cpu_s: float) -> float:
    """Return a worker's seconds per step without waiting: local time plus the exchange's processor time, if known."""
    # Converts processor time to seconds at the rate at which the worker gets any.
    found = local_s * (1.0 + exchange_cpu_s / local_cpu_s) if local_cpu_s > 0.0 else math.nan
    return local_s if math.isnan(found) else found


def fitted(seen: Sequence[Dealt], beta: float) -> tuple[float, float]:
    """Fit the cost of a root and the fixed cost of a step, in edges, to past assignments.

    The fit makes each worker's speed, (fixed + edges + β · roots) / seconds, as constant as possible. One assignment
    does not reveal them, so β is then as given and the fixed cost 0.
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
            # prefers the given β, and no fixed cost, unless others fit clearly better
            found = float(away.std(axis=0).mean()) + 1e-3 * (price != beta) + 1e-3 * (share > 0.0)
            if found < least:
                best, least = (float(price), fixed), found
    return best


def grouped(costs: Sequence[float], speeds: Sequence[float], fixed: float = 0.0) -> list[range]:
    """Assign consecutive parts, at least one per worker, such that the last worker finishes as early as possible.

    ``costs`` are per part, ``speeds`` cost per unit of time, ``fixed`` each worker's additional cost. Raises
    :class:`ConfigError` for more workers than parts.
    """
    if not speeds or len(speeds) > len(costs):
        raise ConfigError(f"{len(speeds)} workers, but {len(costs)} parts: partition again with more parts")
    if not all(0.0 < one < float("inf") for one in speeds):
        raise ConfigError(f"speeds = {tuple(speeds)}: each must be a number above 0")
    low, high = 0.0, 2.0 * (fixed + sum(costs)) / min(speeds)
    best: list[range] = []
    for _ in range(61):  # bisection; its first time suffices for the slowest worker alone
        middle = (low + high) / 2.0
        if found := _within(costs, speeds, middle, fixed):
            best, high = found, middle
        else:
            low = middle
    return best


def _within(costs: Sequence[float], speeds: Sequence[float], time: float, fixed: float) -> list[range] | None:
    """Let each worker take what it can do in ``time``; return None if parts are left over."""
    found, place = [], 0
    for number, speed in enumerate(speeds):
        # `last` leaves one part for each later worker
        # The factor tolerates rounding errors of the bisection.
        begin, room, last = place, speed * time * (1.0 + 1e-12) - fixed, len(costs) - (len(speeds) - 1 - number)
        while place < last and costs[place] <= room:
            room -= costs[place]
            place += 1
        if place == begin:
            return None
        found.append(range(begin, place))
    return found if place == len(costs) else None


def done_in(costs: Sequence[float], speeds: Sequence[float], groups: Sequence[range], fixed: float = 0.0) -> float:
    return max((fixed + sum(costs[p] for p in one)) / speed for one, speed in zip(groups, speeds, strict=True))
