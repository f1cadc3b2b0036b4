"""What whoever carries out a plan asks a planner. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from uneven.fleet.planning.allocate import Flotilla


class FlotillaPlanner(Protocol):
    """Who starts when devices are free, and when all who run are stopped and planned anew."""

    @property
    def shared(self) -> bool:
        """Whether those who run at the same time share one stream of samples, and so one pace."""
        ...

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        """Who starts now, and on how many of the free devices; see ``Planner.next_flotilla``."""
        ...

    def round_ends(self, busy_devices: int) -> bool:
        """Whether those who still run are stopped now; see ``Planner.round_ends``."""
        ...
