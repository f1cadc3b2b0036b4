"""Which trials run, and on how many devices each: one each, or FLEET's groups of one pace. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from uneven.errors import ConfigError
from uneven.fleet.planning.allocate import Closeness, create_flotilla
from uneven.fleet.planning.rates import Rates

Placement = tuple[tuple[str, int], ...]
"""Trials in the order in which they were chosen, and how many devices each has."""

Plan = Callable[[Sequence[str], Rates, int], Placement]
"""Who waits, samples/s of each on 1, 2, … devices, and how many devices are free → who runs."""

ANY_PACE = 1.0
"""A trial may be slower than the fastest by so much of its rate: by all of it. What trials share lies on a shelf, so
none holds another one up."""


def one_each(candidates: Sequence[str], rates: Rates, devices: int) -> Placement:
    """The first ones, on one device each.

    Raises:
        ConfigError: fewer than no devices.
    """
    if devices < 0:
        raise ConfigError(f"{devices} devices: give zero or more")
    return tuple((name, 1) for name in candidates[:devices])


def flotilla(candidates: Sequence[str], rates: Rates, devices: int, *, closeness: Closeness | None = None) -> Placement:
    """A group of trials that train at nearly one pace, each on the number of devices that it needs for it.

    FLEET's greedy rule (Algorithm 2): the fastest on one device, the others on as many as bring them nearest to it.

    Args:
        closeness: which rates are near enough.

    Raises:
        ConfigError: devices below zero, or a trial that waits twice.
        UnknownNameError: a trial without rates.
    """
    return tuple(create_flotilla(rates, candidates, devices, closeness=closeness).members.items())


def flotilla_of_all(candidates: Sequence[str], rates: Rates, devices: int, *, least_gain: float = 0.0) -> Placement:
    """The same for trials of which none is to wait: for whom too few devices are left keeps one, and the others share
    the rest. The first ones alone if there are more trials than devices.

    Args:
        least_gain: a device that is left over is used only if a trial gets faster by at least this share.

    Raises:
        ConfigError: devices below zero, or a trial that waits twice.
        UnknownNameError: a trial without rates.
    """
    rule = Closeness(delta_share=ANY_PACE, least_gain=least_gain)
    alone: list[str] = []
    while True:
        others = [name for name in candidates[:devices] if name not in alone]
        placed = flotilla(others, rates, devices - len(alone), closeness=rule) if others else ()
        left_out = [name for name in others if name not in dict(placed)]
        if not left_out:
            return (*placed, *((name, 1) for name in alone))
        alone += left_out
