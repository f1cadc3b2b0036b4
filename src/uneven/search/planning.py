"""Which trials run, and on how many devices each: one each, or FLEET's groups of one pace. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from uneven.errors import ConfigError
from uneven.fleet.planning.allocate import Closeness, create_flotilla
from uneven.fleet.planning.rates import Rates

Placement = tuple[tuple[str, int], ...]
"""Trials in the order in which they were chosen, and how many devices each has."""


def one_each(candidates: Sequence[str], devices: int) -> Placement:
    """The first ones, on one device each.

    Raises:
        ConfigError: fewer than no devices.
    """
    if devices < 0:
        raise ConfigError(f"{devices} devices: give zero or more")
    return tuple((name, 1) for name in candidates[:devices])


def plan(candidates: Sequence[str], rates: Rates, devices: int, *, closeness: Closeness | None = None) -> Placement:
    """A group of trials that share a stream at nearly one pace, by FLEET's greedy rule.

    Args:
        candidates: who waits.
        rates: samples/s of each on 1, 2, … devices.
        devices: how many are free.
        closeness: which rates are near enough.

    Raises:
        ConfigError: devices below zero, or a trial that waits twice.
        UnknownNameError: a trial without rates.
    """
    return tuple(create_flotilla(rates, candidates, devices, closeness=closeness).members.items())
