"""Run all members at the same time on CPU slots, which share the processor's cores: our alternative to FLEET.

Each of FLEET's devices belongs to one member, so members of different speeds leave devices idle; its rule looks for
equal speeds. A core belongs to no member: one that waits for a sample leaves its core to any process with work. So
different speeds cost nothing while all cores have work, and fewer samples are prepared the more members share the
stream. If members need c_i core-seconds per sample, preprocessing needs c_0, and there are C cores, the stream moves
at::

    min( C / (c_0 + Σ c_i),  min_i 1 / c_i )

The first term is all cores at work. A second slot for one member gains something only if the second term is smaller,
because that member keeps its core busy while others are idle.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Flotilla, hand_out_rest, waiting_places
from uneven.fleet.pure.planning.flotillas import ALPHA
from uneven.fleet.pure.planning.rates import Rates

# Data-parallel training costs more on each core than single-process training, and preprocessors can use a free core.
# So a left-over slot must raise the slowest member's rate by at least this share.
LEAST_GAIN = 0.1

MEMORY_SHARE = 0.8  # part of the free memory that members may take together


class Together:
    """A planner like :class:`~uneven.fleet.pure.planning.flotillas.Planner` for members that take turns on a
    processor's
    slots.

    Args:
        rates: of all members on 1, 2, … slots; with rates on one slot only, no member gets a second one.
        places: members that may run at the same time; may exceed ``slots``.

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
        self._alpha = alpha
        self._least_gain = least_gain

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        """Return the members that start now; see ``Planner.next_flotilla``. Slots are shared, so none is ever taken."""
        # If memory does not hold all, the slowest start first, so that members on one stream have similar speeds.
        rows = sorted(waiting_places(self._rates, waiting), key=lambda row: self._rates.table[row, 0])
        chosen = dict.fromkeys(rows[: self._places - len(running.members)], 1)
        if not running.members and len(chosen) < self._slots:
            hand_out_rest(self._rates.table, self._slots, chosen, self._least_gain)
        return Flotilla({self._rates.members[row]: count for row, count in chosen.items()})

    def round_ends(self, busy_devices: int) -> bool:
        """Return whether the running members are stopped and planned again: fewer than α · slots are used."""
        return busy_devices < self._alpha * self._slots


def places_for(members: int, slots: int, member_bytes: int, free_bytes: int) -> int:
    """Return how many members may run at the same time: all if memory holds them, at least one.

    `member_bytes` is the memory of the largest member's process; zero, if unknown, sets no limit. `free_bytes` is the
    free memory before any member starts. Raises `ConfigError` for no members or no slots.
    """
    if members < 1 or slots < 1:
        raise ConfigError(f"{members} members on {slots} slots: give at least one of each")
    fit = int(MEMORY_SHARE * free_bytes / member_bytes) if member_bytes > 0 else members
    return max(1, min(members, fit))


def takes_turns(slots: int, cores: int) -> bool:
    """Return whether CPU slots share cores: there are at least as many slots as cores.

    With fewer slots than cores, each slot and a preprocessor have a core, as with FLEET's devices.
    """
    return slots >= cores
