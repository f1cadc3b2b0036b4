"""What FLEET is compared with, as planners: one pipeline per member, homogeneous sharing, one after another.

They answer the same two questions as :class:`uneven.fleet.pure.planning.flotillas.Planner`, so that whatever plays or
carries
out one of them carries out all: see :class:`uneven.fleet.pure.planning.planner.FlotillaPlanner`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Flotilla
from uneven.fleet.pure.planning.rates import Rates


class OnePerDevice:
    """Each member alone on one device with a pipeline of its own; a free device takes a random one of those left.

    The paper's Baseline (section 6.1).

    Args:
        seed: of the order.
    """

    shared = False

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        """As many as there are free devices."""
        queue = sorted(waiting)
        return Flotilla(dict.fromkeys(self._random.sample(queue, min(free_devices, len(queue))), 1))

    def round_ends(self, busy_devices: int) -> bool:
        """Nobody is stopped."""
        return busy_devices == 0


class Homogeneous(OnePerDevice):
    """A random M members share one stream, one device each; the next ones follow when all of them have finished.

    What the paper compares with as the sharing of its predecessor (Pittman et al., SC 2018; section 6.1).

    Args:
        seed: of the order.
    """

    shared = True

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        """Nobody until all have finished."""
        return Flotilla() if running.members else super().next_flotilla(waiting, free_devices, running)


class OneAfterAnother:
    """One member at a time on all devices that it can use. With perfect scaling nothing would be faster (footnote 3).

    Args:
        rates: of all members.
        devices: M. A member whose rate turns down gets the number at which it is fastest.
    """

    shared = False

    def __init__(self, rates: Rates, devices: int) -> None:
        if devices < 1:
            raise ConfigError(f"an ensemble cannot be trained on {devices} devices: give at least one")
        self._best = {name: int(rates.table[place, :devices].argmax()) + 1 for place, name in enumerate(rates.members)}

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        """The first in the order of the rates, when nobody runs."""
        queue = set(waiting)
        first = next((name for name in self._best if name in queue), None)
        return Flotilla() if running.members or first is None else Flotilla({first: self._best[first]})

    def round_ends(self, busy_devices: int) -> bool:
        """When its member has finished."""
        return busy_devices == 0
