"""Which device a trial gets where some are faster than others. Pure.

Seconds for a unit of training are taken to be a trial's cost times a device's slowness; both are fitted to what was
measured, in logarithms, and pulled towards the average as long as little is known. Whoever waits gets the fastest
free device. At a report, if nobody else waits, a trial moves to a faster device that is free, since pausing costs next
to nothing; and where a faster one will be free so soon that the next report comes sooner there, it waits for that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from uneven.errors import ConfigError

_SWEEPS = 3
_REMEMBERED = 64
"""Pairs of trial and device that are looked at; older ones are forgotten."""

LEAST_GAIN = 0.15
"""A trial moves only to a device that is faster by so much: it has to load its checkpoint there."""


class Placing(Enum):
    """How devices are given out."""

    FIRST_COME = "first-come"
    """Whoever is next gets the free device of the lowest number, and keeps it."""
    PLANNED = "planned"
    """See the module."""


def placing_named(name: str) -> Placing:
    """The one of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in [one.value for one in Placing]:
        raise ConfigError(f'placing={name!r}: give "planned" or "first-come"')
    return Placing(name)


@dataclass(slots=True)
class Paces:
    """What was measured.

    Attributes:
        seen_s: trial and device → seconds for a unit of training, the last time.
    """

    seen_s: dict[tuple[int, int], float] = field(default_factory=dict)
    _slowness: dict[int, float] = field(default_factory=dict)
    _cost: dict[int, float] = field(default_factory=dict)
    _mean: float = 0.0
    _stale: bool = False

    def measured(self, trial: int, device: int, units: float, seconds: float) -> None:
        """A trial took so long on a device for so much training."""
        if not units > 0 or not seconds > 0:
            return
        self.seen_s.pop((trial, device), None)
        self.seen_s[trial, device] = seconds / units
        while len(self.seen_s) > _REMEMBERED:
            del self.seen_s[next(iter(self.seen_s))]
        self._stale = True

    def unit_s(self, trial: int, device: int) -> float:
        """Seconds for a unit of training there; 1 before anything is known."""
        if self._stale:
            self._mean, self._cost, self._slowness = fitted(self.seen_s)
            self._stale = False
        return math.exp(self._mean + self._cost.get(trial, 0.0) + self._slowness.get(device, 0.0))


def fitted(
    seen_s: Mapping[tuple[int, int], float], *, sweeps: int = _SWEEPS, doubt: float = 1.0
) -> tuple[float, dict[int, float], dict[int, float]]:
    """Logarithms: the mean, what each trial costs beyond it, and how slow each device is; together the seconds seen.

    Args:
        sweeps: costs and slowness are fitted in turns, so often.
        doubt: how much a trial's cost is pulled towards the mean: as by so many measurements of the mean.
    """
    rows = [(trial, device, math.log(seconds)) for (trial, device), seconds in seen_s.items()]
    mean = sum(seen for *_, seen in rows) / len(rows)
    cost: dict[int, float] = {}
    slow: dict[int, float] = {}
    for _ in range(sweeps):
        slow = _means(((device, seen - mean - cost.get(trial, 0.0)) for trial, device, seen in rows), doubt / 10)
        cost = _means(((trial, seen - mean - slow[device]) for trial, device, seen in rows), doubt)
    return mean, cost, slow


def _means(pairs: Iterable[tuple[int, float]], doubt: float) -> dict[int, float]:
    """Key → mean of what belongs to it, and of ``doubt`` zeros, for little is known from few."""
    sums: dict[int, tuple[float, float]] = {}
    for key, value in pairs:
        total, count = sums.get(key, (0.0, doubt))
        sums[key] = total + value, count + 1
    return {key: total / count for key, (total, count) in sums.items()}


@dataclass(slots=True)
class Placer:
    """Says which device a trial gets.

    Attributes:
        paces: what was measured.
        moves: how often a trial was moved, or made to wait for a faster device.
    """

    kind: Placing = Placing.PLANNED
    paces: Paces = field(default_factory=Paces)
    moves: int = 0

    @property
    def looks(self) -> bool:
        """Whether it matters how long devices are busy."""
        return self.kind is not Placing.FIRST_COME

    def device_for(
        self, trial: int, free: Collection[int], busy: Mapping[int, float], here: int | None = None
    ) -> int | None:
        """The device on which a trial goes on; None: it should wait for a faster one.

        Args:
            free: devices that nobody uses.
            busy: the others → seconds until they are free, as far as one can tell.
            here: where it runs; elsewhere it has to load its checkpoint.
        """
        if self.kind is Placing.FIRST_COME:
            return min(free, default=None) if here is None else here
        best, best_s = here, self._unit_s(trial, here) / (1 + LEAST_GAIN)
        for device in sorted(free):
            if self._unit_s(trial, device) < best_s:
                best, best_s = device, self._unit_s(trial, device)
        sooner = any(wait_s + self._unit_s(trial, device) < best_s for device, wait_s in busy.items())
        if best != here or sooner:
            self.moves += here is not None
            return None if sooner else best
        return here

    def _unit_s(self, trial: int, device: int | None) -> float:
        return math.inf if device is None else self.paces.unit_s(trial, device)
