"""The least and greatest number of samples for a device."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from uneven.errors import ConfigError
from uneven.policy.balance._intake import Flags
from uneven.policy.balance.profiled import Profile
from uneven.policy.core.exact import Floats, Wholes
from uneven.policy.core.views import BalanceView, Limits

MEMORY_FULL = 0.9  # use of the memory above which a worker's share does not grow [default, specification]


class Bounds(NamedTuple):
    """The limits of the members in samples, shape (n,)."""

    least: Wholes  # x_s, the saturation point, or the least share allowed
    most: Wholes  # x_o, the memory limit, or the greatest share allowed

    def can_give(self, shares: Wholes) -> Flags:
        """Return flags (n,): workers that would gain by fewer samples."""
        return shares > self.least

    def can_take(self, shares: Wholes, memory: Floats) -> Flags:
        """Return flags (n,): workers that have memory for more samples."""
        # Negated, because an unknown use is NaN and compares False: such a worker may take samples.
        return (shares < self.most) & ~(memory > MEMORY_FULL)


def with_memory(view: BalanceView, most: Sequence[int]) -> BalanceView:
    """Return the view with upper limits from each rank's memory; ranks without an entry keep theirs.

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
    """Return the largest share of each worker since its memory became full, shape (n,); 0 if memory is left.

    ``held`` is the previous result; ``memory`` (n,) is the use of the memory that a larger batch would fill, NaN if
    unknown.
    """
    full = memory > MEMORY_FULL
    if not full.any():  # the usual case: skip converting a thousand shares
        return np.zeros_like(held)
    # A worker that was full at some share may return to it: an allocator keeps the memory it once had.
    found: Wholes = np.where(full, np.maximum(held, np.array(shares, np.int64)), 0)
    return found


def not_growing(limits: Limits, held: Wholes) -> Limits:
    """Return the limits, lowered to ``held`` (n,) for workers whose memory is full, see :func:`still_held`."""
    if not held.any():
        return limits
    rows = zip(limits.lower, limits.upper, held.tolist(), strict=True)
    upper = tuple(max(low, min(high, most)) if most else high for low, high, most in rows)
    return Limits(lower=limits.lower, upper=upper)


def profiled_limits(limits: Limits, profiles: Mapping[int, Profile], total: int) -> Limits:
    """Return the user's limits of ranks 0 … n − 1, tightened to their memory.

    Raises:
        ConfigError: the workers together cannot hold the global batch of ``total`` samples.
    """
    # Saturation is not a limit here: a wrongly measured x_s would force too many samples on a worker for the whole run.
    most = [profiles[rank].most for rank in range(len(limits.upper))]
    rows = zip(most, limits.lower, limits.upper, strict=True)
    upper = tuple(high if fits is None else max(low, min(high, fits)) for fits, low, high in rows)
    if sum(upper) < total:
        raise ConfigError(
            f"the workers' memory fits {'/'.join(map(str, upper))} samples, {sum(upper)} in total, less than the "
            f"global batch of {total}: use at most {sum(upper)} and accumulate gradients (session.no_sync)"
        )
    return Limits(lower=limits.lower, upper=upper)


def device_bounds(view: BalanceView, saturation: Sequence[int]) -> Bounds:
    """Return the view's limits, with the lower ones raised to each rank's known saturation point."""
    lower, upper = np.array(view.limits.lower, np.int64), np.array(view.limits.upper, np.int64)
    for place, rank in enumerate(view.members if saturation else ()):
        if rank < len(saturation):
            lower[place] = min(upper[place], max(lower[place], saturation[rank]))
    return Bounds(lower, upper)


def whole_numbers(what: str, values: Sequence[int] | int) -> tuple[int, ...]:
    """Return one integer per rank; raise ``ConfigError`` for a number that is not one, or below 1."""
    row = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    for value in row:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{what} = {value!r}: give one number of samples per rank, at least 1, as in 8/16/16/32")
    return row
