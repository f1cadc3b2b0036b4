"""Who trains together, and on how many devices each: FLEET's flotillas. Pure.

A flotilla is a group of members that share one stream of prepared samples. Sharing holds all of them to the pace
of the slowest; so a flotilla is made of members that can reach nearly the same rate, each on its own number of
devices. For a whole training, ask a :class:`uneven.fleet.planning.rounds.Planner`, which says when to plan again::

    rates = Rates({"wide": (40.0, 75.0, 105.0), "small": (100.0, 190.0, 270.0)})
    flotilla = create_flotilla(rates, waiting=("wide", "small"), devices=4)
    flotilla.members                                  # {"small": 1, "wide": 3}
    assign_devices(flotilla, nodes=((0, 1), (2, 3)))  # {"wide": (0, 1, 2), "small": (3,)}; see planning.assign
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError
from uneven.fleet.planning.rates import Rates

DELTA_PER_S = 20.0
"""δ of the paper's experiments, samples/s: how far a member's rate may be from the fastest one's."""


@dataclass(frozen=True, slots=True)
class Flotilla:
    """Members that train together on shared data, and how many devices each has.

    Attributes:
        members: name → devices, in the order in which they were chosen; empty if nobody fits.
    """

    members: Mapping[str, int] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """Devices of all members together."""
        return sum(self.members.values())

    def per_s(self, rates: Rates) -> dict[str, float]:
        """What each member could train alone on its devices, samples/s."""
        return {name: rates.per_s(name, count) for name, count in self.members.items()}

    def pace_per_s(self, rates: Rates) -> float:
        """Samples/s at which the shared stream moves: the rate of the slowest member.

        Raises:
            ConfigError: an empty flotilla has no pace.
        """
        if not self.members:
            raise ConfigError("an empty flotilla has no pace: ask only when it has members")
        return min(self.per_s(rates).values())


@dataclass(frozen=True, slots=True)
class Closeness:
    """Which rates are near enough to share a stream, and what becomes of devices left over.

    Attributes:
        delta_per_s: δ: the rate may differ from the reference by at most so many samples/s (*at most*, not *less*).
        delta_share: δ as a share of the reference instead; ours, for ensembles whose rates span orders of magnitude.
        least_gain: a left-over device goes to the slowest member only if its rate grows by at least this share of
            itself; else handing out ends, since nobody else can raise the pace. Zero, the default, refuses only what
            makes the member slower. ``None`` hands out all devices, as the paper does: where extrapolated rates turn
            down, the slowest member then gets slower with each, and so all the others too.
        falling: whether numbers of devices are considered where a smaller one is as fast, as printed. A rate that turns
            down comes near the reference a second time, and may then be taken there, with ten times as many devices.
    """

    delta_per_s: float = DELTA_PER_S
    delta_share: float | None = None
    least_gain: float | None = 0.0
    falling: bool = False

    def __post_init__(self) -> None:
        for name in ("delta_per_s", "delta_share"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise ConfigError(f"{name} is {value}: a distance of rates is zero or positive")

    def delta(self, reference_per_s: float) -> float:
        """δ at this reference, samples/s."""
        return self.delta_per_s if self.delta_share is None else self.delta_share * reference_per_s


def create_flotilla(
    rates: Rates,
    waiting: Iterable[str],
    devices: int,
    *,
    closeness: Closeness | None = None,
    reference_per_s: float | None = None,
) -> Flotilla:
    """The next flotilla, by the paper's greedy rule (Algorithm 2). O(n log n) for n rates within δ.

    The fastest waiting member on its smallest number of devices (one, where memory allows) is the reference. Then,
    again and again, the member and number of devices whose rate is nearest to the reference join, if the distance is
    at most δ and the devices suffice. Devices left over go one by one to whoever is slowest at that moment.

    Two things differ from the printed rule, and only for rates that turn down, as Eq. 5 does in the end; see
    ``Closeness.falling`` and ``Closeness.least_gain``, which also say how to get the printed rule.

    The paper leaves ties open. Ours: of equal distances the fewer devices, then the earlier member; of equally slow
    members the earlier one. A member that cannot use another device is passed over when some are left.

    Args:
        rates: of all members.
        waiting: who is not trained yet.
        devices: how many may be used.
        closeness: what is near enough, and what becomes of left-over devices.
        reference_per_s: a rate to stay near to instead of the fastest member's: the pace of those who run, when a
            newcomer shall join their stream. Then nobody joins who is further away than δ.

    Returns:
        The flotilla; empty if nobody waits, or if none of those who wait fits on so few devices.

    Raises:
        ConfigError: devices below zero, or a member that waits twice.
        UnknownNameError: a member without rates.
    """
    rule = closeness or Closeness()
    places = waiting_places(rates, waiting)
    if devices < 0:
        raise ConfigError(f"a flotilla on {devices} devices cannot be: give zero or more")
    table = rates.table[places, : min(devices, rates.most)]
    fits = table > 0.0
    if not fits.any():
        return Flotilla()
    chosen: dict[int, int] = {}  # row of ``table`` → devices
    reference = reference_per_s
    if reference is None:
        first, chosen[first] = _fastest(table, fits)
        reference = float(table[first, chosen[first] - 1])
    useful = fits if rule.falling else _rising(table)
    _gather(np.where(useful, np.abs(table - reference), np.inf), rule.delta(reference), devices, chosen)
    hand_out_rest(rates.table[places], devices, chosen, rule.least_gain)
    return Flotilla({rates.members[places[row]]: count for row, count in chosen.items()})


def waiting_places(rates: Rates, waiting: Iterable[str]) -> list[int]:
    """The rows of those who wait, in the order of the table.

    Raises:
        ConfigError: a member that waits twice.
        UnknownNameError: a member without rates.
    """
    places = sorted(rates.place(name) for name in waiting)
    for one, other in pairwise(places):
        if one == other:
            raise ConfigError(f"member {rates.members[one]!r} waits twice: name each member once")
    return places


def _fastest(table: npt.NDArray[np.float64], fits: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """The row that is fastest on its smallest number of devices, and that number."""
    least = np.argmax(fits, axis=1)
    alone = np.where(fits.any(axis=1), table[np.arange(len(table)), least], -1.0)
    row = int(np.argmax(alone))
    return row, int(least[row]) + 1


def _rising(table: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Where one device more gave a higher rate than any smaller number: nobody wants more devices for less."""
    before = np.zeros_like(table)
    np.maximum.accumulate(table[:, :-1], axis=1, out=before[:, 1:])
    return table > before


def _gather(gaps: npt.NDArray[np.float64], delta: float, devices: int, chosen: dict[int, int]) -> None:
    """Add the nearest rates within δ while devices last.

    The reference stays, so all distances are known beforehand, and what does not fit now never will: one walk over
    the sorted distances finds what the paper's search of the minimum finds again and again.
    """
    left = devices - sum(chosen.values())
    rows, columns = np.nonzero(gaps <= delta)
    for place in np.lexsort((rows, columns, gaps[rows, columns])).tolist():
        row, count = int(rows[place]), int(columns[place]) + 1
        if row not in chosen and count <= left:
            chosen[row] = count
            left -= count
        if left == 0:
            return


def hand_out_rest(
    table: npt.NDArray[np.float64], devices: int, chosen: dict[int, int], least_gain: float | None
) -> None:
    """Give each device left over to the member that is slowest at that moment.

    Args:
        table: shape (members, counts); zero where a member does not fit.
        devices: all that may be used.
        chosen: row of the table → devices; changed in place.
        least_gain: see ``Closeness``.
    """
    left = devices - sum(chosen.values())
    slowest = [(float(table[row, count - 1]), row) for row, count in chosen.items()]
    heapq.heapify(slowest)
    while left and slowest:
        rate, row = slowest[0]
        count = chosen[row]
        more = float(table[row, count]) if count < table.shape[1] else 0.0
        if more == 0.0:  # it can use no more
            heapq.heappop(slowest)
            continue
        if least_gain is not None and more - rate < least_gain * rate:
            return
        chosen[row], left = count + 1, left - 1
        heapq.heapreplace(slowest, (more, row))
