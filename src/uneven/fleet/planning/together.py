"""All members at once, where devices are slots of a processor that all of them share anyway: ours, beside FLEET. Pure.

FLEET's devices are each a member's own, so members of unlike speed leave devices idle; its rule looks for like ones.
A processor's cores are nobody's: who waits for a sample leaves its core to whoever has work, preprocessors among them.
So unlike speeds cost nothing while there is work for all cores, and the more members share the stream, the fewer
samples are prepared. With members that need c_i seconds of a core for a sample, preprocessing that needs c_0, and C
cores, the stream moves at::

    min( C / (c_0 + Σ c_i),  min_i 1 / c_i )

The first term is all cores at work; only where the second one is smaller, because one member alone keeps a core busy
while others have nothing left to do, is anything to be gained by giving that member more than one slot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from uneven.errors import ConfigError
from uneven.fleet.planning.allocate import Flotilla, hand_out_rest, waiting_places
from uneven.fleet.planning.rates import Rates
from uneven.fleet.planning.rounds import ALPHA

LEAST_GAIN = 0.1
"""A slot left over goes to the slowest member only if its rate grows by at least this share. Data-parallel training
costs every core it uses more than training alone, and the preprocessors have use for one that is left."""

MEMORY_SHARE = 0.8
"""Part of the free memory that members which train at once may take."""


class Together:
    """Plans as :class:`~uneven.fleet.planning.rounds.Planner` does, for members that take turns on a processor's slots.

    Everybody who fits is started; where memory does not hold all, the slowest first, so that those who share a stream
    are of like speed. Only where members are fewer than slots do slots go to the slowest, as in FLEET.

    Args:
        rates: of all members on 1, 2, … slots; on one slot is enough, and then nobody gets a second one.
        slots: of the processor.
        places: members that may run at once, more than ``slots`` or not.
        alpha: a round ends when fewer than α · ``slots`` are used.
        least_gain: of a slot left over, see ``Closeness``.

    Raises:
        ConfigError: no slot, or no place.
    """

    shared: ClassVar[bool] = True

    def __init__(
        self, rates: Rates, slots: int, places: int, *, alpha: float = ALPHA, least_gain: float = LEAST_GAIN
    ) -> None:
        if slots < 1 or places < 1:
            raise ConfigError(f"{places} members at once on {slots} slots: give at least one of each")
        self._rates = rates
        self._slots = slots
        self._places = places
        self._alpha, self._least_gain = alpha, least_gain

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        """Who starts now; see ``Planner.next_flotilla``. ``free_devices`` is not asked: slots are shared."""
        rows = sorted(waiting_places(self._rates, waiting), key=lambda row: self._rates.table[row, 0])
        chosen = dict.fromkeys(rows[: self._places - len(running.members)], 1)
        if not running.members and len(chosen) < self._slots:
            hand_out_rest(self._rates.table, self._slots, chosen, self._least_gain)
        return Flotilla({self._rates.members[row]: count for row, count in chosen.items()})

    def round_ends(self, busy_devices: int) -> bool:
        """Whether those who still run are stopped and planned anew: fewer than α · slots are used."""
        return busy_devices < self._alpha * self._slots


def places_for(members: int, slots: int, member_bytes: int, free_bytes: int) -> int:
    """How many members may run at once: all of them if memory holds them, and one at least.

    Args:
        member_bytes: of the largest member's process; zero if it is not known, which limits nothing.
        free_bytes: memory that is free before any of them is started.

    Raises:
        ConfigError: no members or no slots.
    """
    if members < 1 or slots < 1:
        raise ConfigError(f"{members} members on {slots} slots: give at least one of each")
    fit = int(MEMORY_SHARE * free_bytes / member_bytes) if member_bytes > 0 else members
    return max(1, min(members, fit))


def takes_turns(slots: int, cores: int) -> bool:
    """Whether CPU slots are no devices of their own: there are no more cores than slots, so none is left for others.

    With fewer slots than cores, each slot has a core, and so has a preprocessor: FLEET's devices.
    """
    return slots >= cores
