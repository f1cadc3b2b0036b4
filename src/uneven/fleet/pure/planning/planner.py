"""Define the interface of planners."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from uneven.fleet.pure.planning.allocate import Flotilla


class FlotillaPlanner(Protocol):
    """The planner of a training: which members start on free devices, and when all are stopped and planned again."""

    @property
    def shared(self) -> bool:
        """True if members that run at the same time share one stream of samples, and so one speed."""
        ...

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        """Return the members that start now and their devices; see ``Planner.next_flotilla``."""
        ...

    def round_ends(self, busy_devices: int) -> bool:
        """Return whether the running members are stopped now; see ``Planner.round_ends``."""
        ...
