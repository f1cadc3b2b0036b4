"""Which devices a trial gets where some are faster than others, or where there are more of them than trials. Pure.

Whoever waits gets the fastest free device. At a report, if nobody else waits, a trial moves to a faster device that is
free, since pausing costs next to nothing; and where a faster one will be free so soon that the next report comes sooner
there, it waits for that. Where trials may have several devices, those that nobody waits for are shared out by a plan.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from uneven.errors import ConfigError
from uneven.fleet.planning.rates import Rates
from uneven.search.paces import Paces
from uneven.search.planning import Plan, flotilla_of_all, one_each

LEAST_GAIN = 0.15
"""A trial moves only to devices that are faster by so much: it has to load its checkpoint there."""


class Placing(Enum):
    """How devices are given out."""

    FIRST_COME = "first-come"
    """Whoever is next gets the free device of the lowest number, and keeps it."""
    PLANNED = "planned"
    """See the module; a device for each."""
    FLOTILLAS = "flotillas"
    """The same, and devices that nobody waits for help those who train, as FLEET's rule says."""


PLANS: Mapping[Placing, Plan] = {
    Placing.FIRST_COME: one_each,
    Placing.PLANNED: one_each,
    Placing.FLOTILLAS: partial(flotilla_of_all, least_gain=LEAST_GAIN),
}


def placing_named(name: str) -> Placing:
    """The one of this name.

    Raises:
        ConfigError: there is none.
    """
    known = [one.value for one in Placing]
    if name not in known:
        raise ConfigError(f"placing={name!r}: give one of {', '.join(known)}")
    return Placing(name)


@dataclass(slots=True)
class Placer:
    """Says which devices a trial gets.

    Attributes:
        paces: what was measured.
        moves: how often a trial was moved, or made to wait for a faster device.
        alone: trials that cannot be trained on several devices.
    """

    kind: Placing = Placing.PLANNED
    paces: Paces = field(default_factory=Paces)
    moves: int = 0
    alone: set[int] = field(default_factory=set)

    @property
    def looks(self) -> bool:
        """Whether it matters how long devices are busy."""
        return self.kind is not Placing.FIRST_COME

    @property
    def shares_out(self) -> bool:
        """Whether a trial may have several devices."""
        return self.kind is Placing.FLOTILLAS

    def share(self, trial: int, others: Collection[int], devices: int) -> int:
        """How many devices a trial should have; one while more trials wait than there are devices.

        A trial is measured on a device of its own before it gets several.

        Args:
            others: who else runs, or could be started now.
            devices: how many there are.
        """
        if not self.shares_out or trial in self.alone or len(others) + 1 >= devices:
            return 1
        each = sorted(range(devices), key=lambda device: self.paces.unit_s(trial, device))
        rates = {str(one): self._per_s(one, each) for one in (trial, *others)}
        return dict(PLANS[self.kind](tuple(rates), Rates(rates), devices))[str(trial)]

    def _per_s(self, trial: int, devices: Sequence[int]) -> list[float]:
        most = len(devices) if self.paces.knows(trial) and trial not in self.alone else 1
        return [1 / self.paces.unit_s(trial, *devices[:count]) for count in range(1, most + 1)]

    def devices_for(
        self, trial: int, free: Collection[int], busy: Mapping[int, float], here: tuple[int, ...] = (), share: int = 1
    ) -> tuple[int, ...]:
        """The devices on which a trial goes on; one that is busy: it waits for that.

        Args:
            free: devices that nobody uses.
            busy: those it may wait for → seconds until they are free, as far as one can tell.
            here: where it runs; elsewhere it has to load its checkpoint.
            share: how many it should have.
        """
        if self.kind is Placing.FIRST_COME:
            return here or tuple(sorted(free)[:1])
        found = self._together(trial, free, here, share) if share > 1 else self._one(trial, free, busy, here)
        self.moves += bool(here) and set(found) != set(here)
        return found

    def _together(self, trial: int, free: Collection[int], here: tuple[int, ...], share: int) -> tuple[int, ...]:
        best = tuple(sorted({*free, *here}, key=lambda device: (self.paces.unit_s(trial, device), device))[:share])
        gains = not here or self._unit_s(trial, best) < self._unit_s(trial, here) / (1 + LEAST_GAIN)
        return best if gains else here

    def _one(
        self, trial: int, free: Collection[int], busy: Mapping[int, float], here: tuple[int, ...]
    ) -> tuple[int, ...]:
        best, best_s = here, self._unit_s(trial, here) / (1 + LEAST_GAIN)
        if len(here) > 1:  # the others of its devices are for somebody else
            best, best_s = (), math.inf
        for device, wait_s in sorted({**busy, **dict.fromkeys((*free, *here), 0.0)}.items()):
            if wait_s + self.paces.unit_s(trial, device) < best_s:
                best, best_s = (device,), wait_s + self.paces.unit_s(trial, device)
        return best

    def _unit_s(self, trial: int, devices: tuple[int, ...]) -> float:
        return self.paces.unit_s(trial, *devices) if devices else math.inf
