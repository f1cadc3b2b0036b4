"""The flotilla whose devices do the most useful work: ours, as an alternative to FLEET's rule."""

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Flotilla, hand_out_rest, waiting_places
from uneven.fleet.pure.planning.flotillas import Planner
from uneven.fleet.pure.planning.rates import Rates
from uneven.policy.core.exact import Floats, Wholes

_PACES = 512  # the largest number of paces to try
_COUNTS = 16  # paces are the rates on up to as many devices; on more if there are more for each member
_FILLED = 8  # the number of best paces that are tried with fillers for the gap
_SAME = 1e-9  # share of a rate; rates that differ by less are equal


class DensestPlanner(Planner):
    """A :class:`Planner` whose flotillas are the densest ones; it does not use ``closeness``."""

    def _chosen(self, queue: tuple[str, ...], devices: int, pace_per_s: float | None) -> Flotilla:
        return densest_flotilla(self.rates, queue, devices, pace_per_s=pace_per_s)


def densest_flotilla(
    rates: Rates, waiting: Iterable[str], devices: int, *, pace_per_s: float | None = None
) -> Flotilla:
    """Return the flotilla and pace at which the devices do the most work. Ours; no δ.

    At a common pace p, member i needs m_i devices, the fewest with r_i(m_i) ≥ p, and does work worth p / r_i(1)
    devices: all of m_i if it scales perfectly and keeps exactly this pace, less if it scales badly or could be faster.
    For each pace that is a member's rate, members are taken in order of work per device, while devices last; the pace
    with the most work wins. Leftover devices go to the slowest, as in FLEET's rule. Up to 512 paces are tried; if all
    are, no flotilla does more than twice the work.

    ``waiting``: members that are not trained yet; ``pace_per_s``: a given pace, of the members whose stream newcomers
    join; then no devices are left over. Returns the flotilla; empty if no member waits, or none of those that wait
    fits. Raises ConfigError: devices below zero, or a member that waits twice. UnknownNameError: a member without
    rates.
    """
    places = waiting_places(rates, waiting)
    if devices < 0:
        raise ConfigError(f"a flotilla on {devices} devices cannot be: give zero or more")
    table = rates.table[places, : min(devices, rates.most)]
    if not (table > 0.0).any():
        return Flotilla()
    rising = np.maximum.accumulate(table, axis=1)
    least = np.argmax(table > 0.0, axis=1)
    alone = table[np.arange(len(table)), least] / (least + 1)
    paces = _paces(table, devices) if pace_per_s is None else np.array([pace_per_s])
    chosen = _best(rising, np.where(alone > 0.0, alone, np.inf), paces, devices)
    if pace_per_s is None:
        hand_out_rest(rates.table[places], devices, chosen, 0.0)
    return Flotilla({rates.members[places[row]]: count for row, count in chosen.items()})


def _paces(table: Floats, devices: int) -> Floats:
    """Return the common paces to try, shape (paces,), evenly by rank if there are too many."""
    counts = max(_COUNTS, math.ceil(2 * devices / len(table)))
    found = np.unique(table[:, :counts])
    found = found[found > 0.0]
    if len(found) <= _PACES:
        return found
    thinned: Floats = found[np.linspace(0, len(found) - 1, _PACES).astype(np.int64)]
    return thinned


def _best(rising: Floats, alone: Floats, paces: Floats, devices: int) -> dict[int, int]:
    """Return row → devices of the pace with the most work. ``rising`` (members, counts) is the best rate on at most as
    many devices, ``alone`` (members,) the rate on one device."""
    wanted = paces * (1.0 - _SAME)
    needed: Wholes = np.stack([np.searchsorted(row, wanted) for row in rising]) + 1  # (members, paces)
    able = needed <= rising.shape[1]
    work = np.where(able, paces / alone[:, None], 0.0)
    density = work / needed
    order = np.argsort(-density, axis=0, kind="stable")
    cost = np.take_along_axis(np.where(able, needed, devices + 1), order, axis=0)
    used = np.cumsum(cost, axis=0)
    gained = np.where(used <= devices, np.take_along_axis(work, order, axis=0), 0.0).sum(axis=0)
    best: tuple[float, dict[int, int]] = (0.0, {})
    for place in np.argsort(-np.maximum(gained, work.max(axis=0)), kind="stable")[:_FILLED].tolist():
        single = int(work[:, place].argmax())  # with it, no choice for this pace does more than twice as much
        several = _filled(order[:, place], needed[:, place], able[:, place], devices)
        for chosen in (several, {single: int(needed[single, place])} if able[single, place] else {}):
            total = math.fsum(work[row, place] for row in chosen)
            if total > best[0] * (1.0 + _SAME):
                best = total, chosen
    return best[1]


def _filled(order: npt.NDArray[np.intp], needed: Wholes, able: npt.NDArray[np.bool_], devices: int) -> dict[int, int]:
    """Take members in this order, each that still fits."""
    chosen: dict[int, int] = {}
    left = devices
    for row in order.tolist():
        if able[row] and needed[row] <= left:
            chosen[row] = int(needed[row])
            left -= chosen[row]
        if left == 0:
            break
    return chosen
