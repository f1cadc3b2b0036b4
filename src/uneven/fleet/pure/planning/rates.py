"""Keep each member's rate on each number of devices: r_i(m) of the FLEET paper."""

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.core.exact import Floats

MOST_BATCHES = 48  # of a profile (section 6.1)

LAST_BATCHES = 20  # of a profile, which give the rate; earlier ones warm up (section 6.1)


def rate_per_s(batch_s: Sequence[float], batch: int, *, median: bool = False) -> float:
    """Return the samples/s over the last 20 batches of a profile.

    `batch_s` are the seconds of at most 48 batches, `batch` the samples of each, summed over the member's devices.
    `median` uses the median batch instead of all 20 (ours, for CPU slots). Raises `ConfigError` for times that are not
    positive.
    """
    if not 1 <= len(batch_s) <= MOST_BATCHES:
        raise ConfigError(f"a profile has 1 … {MOST_BATCHES} batches, not {len(batch_s)}")
    last = batch_s[-LAST_BATCHES:]
    # With the median, a single batch that the operating system interrupted does not lower the rate.
    took_s = len(last) * statistics.median(last) if median else math.fsum(last)
    if not (batch > 0 and min(last) >= 0.0 and 0.0 < took_s < math.inf):
        raise ConfigError(f"{len(last)} batches of {batch} samples in {took_s} s give no rate: give both above 0")
    return len(last) * batch / took_s


def most_profiled(alone_per_s: Mapping[str, float], per_node: int, devices: int) -> int:
    """Return M_t, the largest number of devices on which members are profiled (section 6.1).

    M_a = ⌈max r(1) / min r(1)⌉ are the devices that the slowest would need to match the fastest if it scaled linearly;
    M_b = 2 · G spans two nodes; M_t = max(M_a, M_b), here at most M, which the paper expects to be larger. `per_node`
    is G, `devices` is M. Raises `ConfigError` if there are no members or devices, or a rate is not positive.
    """
    if not alone_per_s or not all(0.0 < rate < math.inf for rate in alone_per_s.values()):
        raise ConfigError("give at least one member, and rates above 0 on one device")
    if per_node < 1 or devices < 1:
        raise ConfigError(f"{devices} devices, {per_node} on a node: give at least one of each")
    reach = math.ceil(max(alone_per_s.values()) / min(alone_per_s.values()))
    return min(devices, max(reach, 2 * per_node))


class Rates:
    """The samples/s of every member on 1, 2, 3, … devices of one kind, if no other member trains and data never lack.

    Args:
        per_s: member → its rates on 1, 2, 3, … devices. Zero means that the member does not fit on this number (its
            memory, for instance); a shorter row means that it cannot use more devices.

    Raises:
        ConfigError: there are no members; a rate is negative or not finite; or a member fits on no number of devices,
            or on some number but not on a larger one.
    """

    __slots__ = ("_place", "members", "most", "table")

    def __init__(self, per_s: Mapping[str, Sequence[float] | Floats]) -> None:
        if not per_s:
            raise ConfigError("an ensemble without members has no rates: name at least one member")
        self.members = tuple(per_s)  # the names, in the order given; among equals, the planner takes the earlier one
        self.most = max(len(row) for row in per_s.values())  # the largest number of devices that some member can use
        self._place = {name: place for place, name in enumerate(self.members)}
        table = np.zeros((len(per_s), self.most))
        for name, row in per_s.items():
            table[self._place[name], : len(row)] = _checked(name, row)
        table.flags.writeable = False
        # shape (members, most), read-only; zero if a member cannot use this number of devices
        self.table: Floats = table

    def place(self, member: str) -> int:
        """Return the member's row in the table. Raises `UnknownNameError` for an unknown member."""
        if member not in self._place:
            raise UnknownNameError("member", member, self.members)
        return self._place[member]

    def per_s(self, member: str, devices: int) -> float:
        """Return the samples/s of a member on a number of devices; zero if it cannot use that number."""
        row = self.table[self.place(member)]
        return float(row[devices - 1]) if 1 <= devices <= self.most else 0.0

    def least(self, member: str) -> int:
        """Return the smallest number of devices that the member fits on."""
        return int(np.argmax(self.table[self.place(member)] > 0.0)) + 1

    def at_least(self, devices: Mapping[str, int]) -> "Rates":
        """Return these rates with zeros below the given smallest numbers of devices."""
        kept = self._lists()
        for name, least in devices.items():
            kept[self.members[self.place(name)]][: least - 1] = [0.0] * (least - 1)
        return Rates(kept)

    def _lists(self) -> dict[str, list[float]]:
        return {name: self.table[place].tolist() for place, name in enumerate(self.members)}


def _checked(name: str, row: Sequence[float] | Floats) -> Floats:
    rates = np.asarray(row, dtype=np.float64)
    bad = ~(np.isfinite(rates) & (rates >= 0.0))
    if bad.any():
        devices = int(np.argmax(bad)) + 1
        raise ConfigError(f"rate of member {name!r} on {devices} devices is {rates[devices - 1]}: give samples/s, or 0")
    fits = np.flatnonzero(rates)
    if len(fits) == 0:
        raise ConfigError(
            f"member {name!r} does not fit on any number of devices: give it more memory, or leave it out"
        )
    if len(fits) != fits[-1] - fits[0] + 1:
        raise ConfigError(
            f"member {name!r} fits on {fits[0] + 1} devices and again on {fits[-1] + 1}, but not on all numbers "
            "between: a member that fits on n devices must fit on more"
        )
    return rates
