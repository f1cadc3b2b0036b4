"""Plan which trials run on how many devices: one each, or FLEET's groups of equal speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Closeness, create_flotilla
from uneven.fleet.pure.planning.rates import Rates

Placement = tuple[tuple[str, int], ...]
"""The trials in the order in which they were chosen, and their numbers of devices."""

Plan = Callable[[Sequence[str], Rates, int], Placement]
"""Waiting trials, samples/s of each on 1, 2, … devices, and the number of free devices → running trials."""


# δ as a share of the fastest rate: any rate fits. Shared samples stay in a cache, so no trial slows another down.
ANY_PACE = 1.0


def one_each(candidates: Sequence[str], rates: Rates, devices: int) -> Placement:
    """Return the first candidates with one device each. Raises `ConfigError` if ``devices`` is negative."""
    if devices < 0:
        raise ConfigError(f"{devices} devices: give zero or more")
    return tuple((name, 1) for name in candidates[:devices])


def flotilla(candidates: Sequence[str], rates: Rates, devices: int, *, closeness: Closeness | None = None) -> Placement:
    """Return a group of trials of nearly equal speed, each with the number of devices for it: FLEET's Algorithm 2.

    Raises `ConfigError` if ``devices`` is negative or a trial waits twice, and `UnknownNameError` if one has no rates.
    """
    return tuple(create_flotilla(rates, candidates, devices, closeness=closeness).members.items())


def flotilla_of_all(candidates: Sequence[str], rates: Rates, devices: int, *, least_gain: float = 0.0) -> Placement:
    """Return a group in which every trial has a device, or the first candidates if there are more trials than devices.

    A left-over device is used only if a trial gets faster by at least the share `least_gain`. Raises as
    :func:`flotilla`.
    """
    rule = Closeness(delta_share=ANY_PACE, least_gain=least_gain)
    alone: list[str] = []
    while True:
        # A trial for which too few devices are left keeps one, and the other trials share the rest.
        others = [name for name in candidates[:devices] if name not in alone]
        placed = flotilla(others, rates, devices - len(alone), closeness=rule) if others else ()
        left_out = [name for name in others if name not in dict(placed)]
        if not left_out:
            return (*placed, *((name, 1) for name in alone))
        alone += left_out
