"""How fast each member of an ensemble trains on how many devices: r_i(m) of the FLEET paper. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from uneven.core.exact import Floats
from uneven.errors import ConfigError, UnknownNameError


class Rates:
    """Samples/s of every member on 1, 2, 3, … devices of the same kind, alone and with all the data it wants.

    Args:
        per_s: member → its rates on 1, 2, 3, … devices. Zero means that the member does not fit on so few (its
            memory, for instance); a row that ends early means that it can use no more devices than that.

    Attributes:
        members: the names, in the order given; among equals, the planner takes the earlier one.
        most: the largest number of devices that some member can use.
        table: shape (members, most), read-only; zero where a member cannot use so many devices, or so few.

    Raises:
        ConfigError: no members, a rate that is negative or not finite, a member that fits on no number of devices, or
            one that fits on some number and not on a larger one.
    """

    __slots__ = ("_place", "members", "most", "table")

    def __init__(self, per_s: Mapping[str, Sequence[float] | Floats]) -> None:
        if not per_s:
            raise ConfigError("an ensemble without members has no rates: name at least one member")
        self.members = tuple(per_s)
        self.most = max(len(row) for row in per_s.values())
        self._place = {name: place for place, name in enumerate(self.members)}
        table = np.zeros((len(per_s), self.most))
        for name, row in per_s.items():
            table[self._place[name], : len(row)] = _checked(name, row)
        table.flags.writeable = False
        self.table: Floats = table

    def place(self, member: str) -> int:
        """Its row in the table.

        Raises:
            UnknownNameError: nobody of that name.
        """
        if member not in self._place:
            raise UnknownNameError("member", member, self.members)
        return self._place[member]

    def per_s(self, member: str, devices: int) -> float:
        """Samples/s of a member on so many devices; zero if it cannot use so many, or so few."""
        row = self.table[self.place(member)]
        return float(row[devices - 1]) if 1 <= devices <= self.most else 0.0

    def least(self, member: str) -> int:
        """The smallest number of devices that it fits on."""
        return int(np.argmax(self.table[self.place(member)] > 0.0)) + 1

    def at_least(self, devices: Mapping[str, int]) -> Rates:
        """The same rates, where these members do not fit on fewer than so many devices."""
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
        raise ConfigError(
            f"rate of member {name!r} on {devices} devices is {rates[devices - 1]}: it must be samples/s, zero if it "
            f"does not fit"
        )
    fits = np.flatnonzero(rates)
    if len(fits) == 0:
        raise ConfigError(f"member {name!r} fits on no number of devices: give it more memory or leave it out")
    if len(fits) != fits[-1] - fits[0] + 1:
        raise ConfigError(
            f"member {name!r} fits on {fits[0] + 1} devices and again on {fits[-1] + 1}, but not on all between: "
            f"who fits on some number fits on a larger one"
        )
    return rates
