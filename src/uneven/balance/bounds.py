"""How few and how many samples make sense on a device. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from uneven.balance._intake import Flags
from uneven.balance.profile import Profile
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
        """Flags of shape (n,): which workers have memory for more samples."""
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


def still_held(held: Wholes, shares: Sequence[int], memory: Floats) -> Wholes:
    """The largest share of each worker since its memory has been full, shape (n,); 0 for one that has memory left.

    Whoever was full at some share may come back to it: an allocator keeps what it once had.

    Args:
        held: the answer of the last time.
        shares: now in force.
        memory: use of the memory that a larger batch would fill, 0 … 1, shape (n,); NaN where unknown.
    """
    full = memory > MEMORY_FULL
    if not full.any():  # as nearly always; a thousand shares are not made an array for nothing
        return np.zeros_like(held)
    found: Wholes = np.where(full, np.maximum(held, np.array(shares, np.int64)), 0)
    return found


def not_growing(limits: Limits, held: Wholes) -> Limits:
    """The limits, with those lowered to ``held`` (shape (n,)) whose memory is full, see :func:`still_held`."""
    if not held.any():
        return limits
    rows = zip(limits.lower, limits.upper, held.tolist(), strict=True)
    upper = tuple(max(low, min(high, most)) if most else high for low, high, most in rows)
    return Limits(lower=limits.lower, upper=upper)


def profiled_limits(limits: Limits, profiles: Mapping[int, Profile], total: int) -> Limits:
    """The limits of ranks 0 … n − 1, tightened to what their memory holds.

    Saturation is no limit: fewer samples than x_s gain nothing, but to demand them would hold a worker at too many for
    as long as the run lasts where x_s was measured wrongly. Balancers that use it get it through ``Balancer.profiled``.

    Args:
        limits: as the user gave them.
        profiles: rank → what was measured.
        total: the global batch, samples.

    Raises:
        ConfigError: the workers together cannot hold the global batch.
    """
    most = [profiles[rank].most for rank in range(len(limits.upper))]
    rows = zip(most, limits.lower, limits.upper, strict=True)
    upper = tuple(high if fits is None else max(low, min(high, fits)) for fits, low, high in rows)
    if sum(upper) < total:
        raise ConfigError(
            f"the workers' memory holds {'/'.join(map(str, upper))} samples, together {sum(upper)}, fewer than the "
            f"global batch of {total}: use a batch_size of at most {sum(upper)} and accumulate gradients "
            f"(session.no_sync), or a smaller model"
        )
    return Limits(lower=limits.lower, upper=upper)


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
