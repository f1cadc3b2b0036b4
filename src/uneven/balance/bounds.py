"""How few and how many samples make sense on a device. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from uneven.balance.intake import Flags
from uneven.core.exact import Floats, Wholes
from uneven.core.views import BalanceView, Limits
from uneven.errors import ConfigError

MEMORY_FULL = 0.9
"""Use of the memory from which a worker takes no more. [default] of the specification."""


class Bounds(NamedTuple):
    """Limits of the members, shape (n,), samples.

    Attributes:
        least: x_s, the saturation point, or the least share that is allowed.
        most: x_o, the memory limit, or the greatest share that is allowed.
    """

    least: Wholes
    most: Wholes

    def can_give(self, shares: Wholes) -> Flags:
        """Who would gain by fewer samples."""
        return shares > self.least

    def can_take(self, shares: Wholes, memory: Floats) -> Flags:
        """Who has memory for more."""
        return (shares < self.most) & ~(memory > MEMORY_FULL)


def with_memory(view: BalanceView, most: Sequence[int]) -> BalanceView:
    """The view with each rank's memory limit as its upper one; ranks beyond the known ones keep theirs.

    Raises:
        ConfigError: the devices together cannot hold the global batch.
    """
    if not most:
        return view
    known = zip(view.members, view.limits.lower, view.limits.upper, strict=True)
    upper = tuple(max(low, min(high, most[r])) if r < len(most) else high for r, low, high in known)
    limits = Limits(lower=view.limits.lower, upper=upper)
    limits.check(view.global_batch)
    return replace(view, limits=limits)


def device_bounds(view: BalanceView, saturation: Sequence[int]) -> Bounds:
    """The view's limits, the lower ones raised to each rank's saturation point where it is known."""
    lower, upper = np.array(view.limits.lower, np.int64), np.array(view.limits.upper, np.int64)
    for place, rank in enumerate(view.members if saturation else ()):
        if rank < len(saturation):
            lower[place] = min(upper[place], max(lower[place], saturation[rank]))
    return Bounds(lower, upper)


def whole_numbers(what: str, values: Sequence[int] | int) -> tuple[int, ...]:
    """One number per rank.

    Raises:
        ConfigError: a number that is not whole, or below 1.
    """
    row = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    for value in row:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{what} = {value!r}: give one whole number of samples per rank, at least 1: 8/16/16/32")
    return row
