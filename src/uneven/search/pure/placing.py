"""Choose devices for trials if some are faster than others, or if there are more devices than trials.

A waiting trial gets the fastest free device. At a report, if no other trial waits, a trial moves to a faster free
device, because a pause costs little; if a faster one will be free so soon that the next report comes sooner there, the
trial waits for it. If trials may have several devices, devices that no trial waits for are shared out by a plan.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.rates import Rates
from uneven.search.pure.paces import Paces
from uneven.search.pure.planning import Plan, flotilla_of_all, one_each

LEAST_GAIN = 0.15  # least gain for a move, because the trial has to load its checkpoint there


class Placing(Enum):
    """The rule for giving out devices."""

    FIRST_COME = "first-come"
    """The next trial gets the free device with the lowest number, and keeps it."""
    PLANNED = "planned"
    """One device per trial, chosen by speed; see the module."""
    FLOTILLAS = "flotillas"
    """As planned, and devices that no trial waits for help running trials, by FLEET's rule."""


PLANS: Mapping[Placing, Plan] = {
    Placing.FIRST_COME: one_each,
    Placing.PLANNED: one_each,
    Placing.FLOTILLAS: partial(flotilla_of_all, least_gain=LEAST_GAIN),
}


def placing_named(name: str) -> Placing:
    """Return the rule of this name. Raises `ConfigError` if there is none."""
    known = [one.value for one in Placing]
    if name not in known:
        raise ConfigError(f"placing={name!r}: give one of {', '.join(known)}")
    return Placing(name)


@dataclass(slots=True)
class Placer:
    """The choice of devices for trials."""

    kind: Placing = Placing.PLANNED
    paces: Paces = field(default_factory=Paces)  # the measurements
    moves: int = 0  # how often a trial was moved, or made to wait for a faster device
    alone: set[int] = field(default_factory=set)  # trials that cannot be trained on several devices

    @property
    def looks(self) -> bool:
        return self.kind is not Placing.FIRST_COME

    @property
    def shares_out(self) -> bool:
        return self.kind is Placing.FLOTILLAS

    def share(self, trial: int, others: Collection[int], devices: int) -> int:
        """Return how many of `devices` devices a trial should have; one while more trials wait than there are devices.

        `others` are the other trials that run or could start now.
        """
        if not self.shares_out or trial in self.alone or len(others) + 1 >= devices:
            return 1
        each = sorted(range(devices), key=lambda device: self.paces.unit_s(trial, device))
        rates = {str(one): self._per_s(one, each) for one in (trial, *others)}
        return dict(PLANS[self.kind](tuple(rates), Rates(rates), devices))[str(trial)]

    def _per_s(self, trial: int, devices: Sequence[int]) -> list[float]:
        # A trial is measured on one device before it gets several, because a plan needs its rate.
        most = len(devices) if self.paces.knows(trial) and trial not in self.alone else 1
        return [1 / self.paces.unit_s(trial, *devices[:count]) for count in range(1, most + 1)]

    def devices_for(
        self, trial: int, free: Collection[int], busy: Mapping[int, float], here: tuple[int, ...] = (), share: int = 1
    ) -> tuple[int, ...]:
        """Return the devices on which a trial continues, `share` of them if possible; it waits for one that is busy.

        `busy` are devices that it may wait for → estimated seconds. On devices other than `here` it must load its
        checkpoint.
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
        if len(here) > 1:  # its other devices are for another trial, so it moves in any case
            best, best_s = (), math.inf
        for device, wait_s in sorted({**busy, **dict.fromkeys((*free, *here), 0.0)}.items()):
            if wait_s + self.paces.unit_s(trial, device) < best_s:
                best, best_s = (device,), wait_s + self.paces.unit_s(trial, device)
        return best

    def _unit_s(self, trial: int, devices: tuple[int, ...]) -> float:
        return self.paces.unit_s(trial, *devices) if devices else math.inf
