"""Which worker takes which parts of a graph that was cut into more parts than there are workers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from uneven.errors import ConfigError


def grouped(costs: Sequence[float], speeds: Sequence[float]) -> list[range]:
    """Parts that follow each other to each worker, at least one, so that the last is done as soon as can be.

    Args:
        costs: of each part, above 0.
        speeds: cost that each worker does in a second, or in any other time.

    Raises:
        ConfigError: more workers than parts, or a speed that is not above 0.
    """
    if not speeds or len(speeds) > len(costs):
        raise ConfigError(
            f"{len(speeds)} workers and {len(costs)} parts: a part cannot be split; partition again with more parts"
        )
    if not all(0.0 < one < float("inf") for one in speeds):
        raise ConfigError(f"speeds = {tuple(speeds)}: each must be a number above 0")
    low, high = 0.0, sum(costs) / min(speeds)
    for _ in range(60):
        middle = (low + high) / 2.0
        if _within(costs, speeds, middle) is None:
            low = middle
        else:
            high = middle
    found = _within(costs, speeds, high)
    assert found is not None  # within the time in which the slowest does all, each does one and the last the rest
    return found


def _within(costs: Sequence[float], speeds: Sequence[float], time: float) -> list[range] | None:
    """Each worker takes what it can do in ``time``; None if that leaves parts over."""
    found, place = [], 0
    for number, speed in enumerate(speeds):
        begin, room, last = place, speed * time * (1.0 + 1e-12), len(costs) - (len(speeds) - 1 - number)
        while place < last and costs[place] <= room:
            room -= costs[place]
            place += 1
        if place == begin:
            return None
        found.append(range(begin, place))
    return found if place == len(costs) else None


def done_in(costs: Sequence[float], speeds: Sequence[float], groups: Sequence[range]) -> float:
    """When the last worker is done."""
    return max(sum(costs[p] for p in one) / speed for one, speed in zip(groups, speeds, strict=True))
