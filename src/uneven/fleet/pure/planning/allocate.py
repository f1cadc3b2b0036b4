"""Choose the members that train together and their numbers of devices: FLEET's flotillas.

A flotilla is a group of members that share one stream of prepared samples, so all of them move at the speed of the
slowest. It therefore consists of members that reach nearly the same rate, each on its own number of devices. For a
whole training use a :class:`uneven.fleet.pure.planning.flotillas.Planner`, which decides when to plan again::

    rates = Rates({"wide": (40.0, 75.0, 105.0), "small": (100.0, 190.0, 270.0)})
    flotilla = create_flotilla(rates, waiting=("wide", "small"), devices=4)
    flotilla.members                                  # {"small": 1, "wide": 3}
    assign_devices(flotilla, nodes=((0, 1), (2, 3)))  # {"wide": (0, 1, 2), "small": (3,)}; see planning.assign
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.rates import Rates

DELTA_PER_S = 20.0  # δ of the paper's experiments, samples/s: largest difference to the fastest member's rate


@dataclass(frozen=True, slots=True)
class Flotilla:
    """Members that train together on shared data."""

    # name → devices, in the order in which they were chosen; empty if no member fits
    members: Mapping[str, int] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """The number of devices of all members."""
        return sum(self.members.values())

    def per_s(self, rates: Rates) -> dict[str, float]:
        """Return the samples/s of each member on its devices if it trained without the others."""
        return {name: rates.per_s(name, count) for name, count in self.members.items()}

    def pace_per_s(self, rates: Rates) -> float:
        """Return the samples/s of the shared stream: the slowest rate. Raises `ConfigError` if there is no member."""
        if not self.members:
            raise ConfigError("an empty flotilla has no rate: add members first")
        return min(self.per_s(rates).values())


@dataclass(frozen=True, slots=True)
class Closeness:
    """The rule for rates that are close enough to share a stream, and for left-over devices.

    Attributes:
        delta_per_s: δ, the largest difference to the reference rate, samples/s (*at most*, not *less than*).
        delta_share: δ as a share of the reference instead; ours, for ensembles whose rates span orders of magnitude.
        least_gain: the slowest member gets a left-over device only if its rate grows by at least this share. Zero, the
            default, rejects devices that make the member slower. ``None`` gives out all devices, as the paper does.
        falling: consider numbers of devices that are not faster than a smaller number, as printed in the paper.

    Raises:
        ConfigError: a difference or share is negative.
    """

    delta_per_s: float = DELTA_PER_S
    delta_share: float | None = None
    least_gain: float | None = 0.0
    falling: bool = False

    def __post_init__(self) -> None:
        for name in ("delta_per_s", "delta_share"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise ConfigError(f"{name} is {value}: give 0 or more")

    def delta(self, reference_per_s: float) -> float:
        """Return δ for a reference rate ``reference_per_s``, both in samples/s."""
        return self.delta_per_s if self.delta_share is None else self.delta_share * reference_per_s


def create_flotilla(
    rates: Rates,
    waiting: Iterable[str],
    devices: int,
    *,
    closeness: Closeness | None = None,
    reference_per_s: float | None = None,
) -> Flotilla:
    """Return the next flotilla by the paper's greedy rule (Algorithm 2). O(n log n) for n rates within δ.

    The reference is the fastest waiting member on its smallest number of devices (one, if memory allows). Then members
    join, each with a number of devices: always the pair whose rate is nearest to the reference, while the distance is
    at most δ and the devices suffice. Left-over devices go one by one to the slowest member at that moment.

    It differs from the printed rule only for rates that fall with more devices, as Eq. 5 eventually does; ``Closeness``
    (``falling``, ``least_gain``) can restore the printed rule. The paper leaves ties open. Ours: among equal distances
    fewer devices, then the earlier member; among equally slow members the earlier one.

    Args:
        reference_per_s: a reference rate instead of the fastest member's, such as the rate of running members whose
            stream newcomers join. Only members within δ of it join.

    Returns:
        The flotilla; empty if no member waits or fits on ``devices`` devices.

    Raises:
        ConfigError: ``devices`` is negative, or a member waits twice.
        UnknownNameError: a member has no rates.
    """
    rule = closeness or Closeness()
    places = waiting_places(rates, waiting)
    if devices < 0:
        raise ConfigError(f"a flotilla on {devices} devices: give 0 or more")
    table = rates.table[places, : min(devices, rates.most)]
    fits = table > 0.0
    if not fits.any():
        return Flotilla()
    chosen: dict[int, int] = {}  # row of ``table`` → devices
    reference = reference_per_s
    if reference is None:
        first, chosen[first] = _fastest(table, fits)
        reference = float(table[first, chosen[first] - 1])
    # A rate that falls comes near the reference a second time, with perhaps ten times the devices; the printed rule may
    # choose that number.
    useful = fits if rule.falling else _rising(table)
    _gather(np.where(useful, np.abs(table - reference), np.inf), rule.delta(reference), devices, chosen)
    hand_out_rest(rates.table[places], devices, chosen, rule.least_gain)
    return Flotilla({rates.members[places[row]]: count for row, count in chosen.items()})


def waiting_places(rates: Rates, waiting: Iterable[str]) -> list[int]:
    """Return the rows of the waiting members, in the order of the table.

    Raises `ConfigError` if a member waits twice, and `UnknownNameError` if one has no rates.
    """
    places = sorted(rates.place(name) for name in waiting)
    for one, other in pairwise(places):
        if one == other:
            raise ConfigError(f"member {rates.members[one]!r} is in the queue twice: name each member once")
    return places


def _fastest(table: npt.NDArray[np.float64], fits: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Return the row that is fastest on its smallest number of devices, and that number."""
    least = np.argmax(fits, axis=1)
    alone = np.where(fits.any(axis=1), table[np.arange(len(table)), least], -1.0)
    row = int(np.argmax(alone))
    return row, int(least[row]) + 1


def _rising(table: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return where a number of devices gives a higher rate than all smaller numbers."""
    before = np.zeros_like(table)
    np.maximum.accumulate(table[:, :-1], axis=1, out=before[:, 1:])
    return table > before


def _gather(gaps: npt.NDArray[np.float64], delta: float, devices: int, chosen: dict[int, int]) -> None:
    """Add the nearest rates within δ while devices last."""
    left = devices - sum(chosen.values())
    rows, columns = np.nonzero(gaps <= delta)
    # One walk over the sorted distances equals the paper's repeated search of the minimum. The reference and so the
    # distances are constant, and a member that does not fit now never fits.
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
    """Give each left-over one of `devices` to the slowest member at that moment; changes `chosen` (row → devices).

    `table` has shape (members, counts), with zeros if a member does not fit; `least_gain` is that of ``Closeness``.
    """
    left = devices - sum(chosen.values())
    slowest = [(float(table[row, count - 1]), row) for row, count in chosen.items()]
    heapq.heapify(slowest)
    while left and slowest:
        rate, row = slowest[0]
        count = chosen[row]
        more = float(table[row, count]) if count < table.shape[1] else 0.0
        if more == 0.0:  # it cannot use another device, but the next slowest may
            heapq.heappop(slowest)
            continue
        # The slowest member sets the speed of the stream, so a device for any other member would not raise it.
        if least_gain is not None and more - rate < least_gain * rate:
            return
        chosen[row], left = count + 1, left - 1
        heapq.heapreplace(slowest, (more, row))
