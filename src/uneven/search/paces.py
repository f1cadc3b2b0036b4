"""How fast trials train on which devices, from what was measured. Pure.

Seconds for a unit of training are taken to be a trial's cost times a device's slowness; both are fitted to what was
measured, in logarithms, and pulled towards the average as long as little is known. Several devices together are taken
to be as fast as all of them, until a trial has been trained on so many: what that took beyond it, others take too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

_SWEEPS = 3
_REMEMBERED = 64
"""Pairs of trial and device that are looked at; older ones are forgotten."""

_TEAM_DOUBT = 0.1
"""How much the loss of so many devices is pulled towards none: as by so many measurements of none."""


Key = TypeVar("Key")


@dataclass(slots=True)
class Paces:
    """What was measured.

    Attributes:
        seen_s: trial and device → seconds for a unit of training, the last time.
        seen_together_s: the same of trials on several devices.
    """

    seen_s: dict[tuple[int, int], float] = field(default_factory=dict)
    seen_together_s: dict[tuple[int, tuple[int, ...]], float] = field(default_factory=dict)
    _slowness: dict[int, float] = field(default_factory=dict)
    _cost: dict[int, float] = field(default_factory=dict)
    _loss: dict[int, float] = field(default_factory=dict)
    _mean: float = 0.0
    _stale: bool = False

    def measured(self, trial: int, devices: tuple[int, ...], units: float, seconds: float) -> None:
        """A trial took so long on these devices for so much training."""
        if not units > 0 or not seconds > 0:
            return
        if len(devices) == 1:
            _remember(self.seen_s, (trial, devices[0]), seconds / units)
        else:
            _remember(self.seen_together_s, (trial, devices), seconds / units)
        self._stale = True

    def knows(self, trial: int) -> bool:
        """Whether it was measured on a device of its own."""
        return any(seen == trial for seen, _ in self.seen_s)

    def unit_s(self, trial: int, *devices: int) -> float:
        """Seconds for a unit of training on all of these devices together; 1 on each before anything is known."""
        self._fit()
        return math.exp(self._alone(trial, devices) + self._loss.get(len(devices), 0.0))

    def _fit(self) -> None:
        if not self._stale:
            return
        self._stale = False
        if self.seen_s:
            self._mean, self._cost, self._slowness = fitted(self.seen_s)
        losses = (
            (len(devices), math.log(seconds) - self._alone(trial, devices))
            for (trial, devices), seconds in self.seen_together_s.items()
        )
        self._loss = _means(losses, _TEAM_DOUBT)

    def _alone(self, trial: int, devices: tuple[int, ...]) -> float:
        """The logarithm of the seconds that so many devices take if nothing is lost between them."""
        per_s = math.fsum(math.exp(-self._slowness.get(device, 0.0)) for device in devices)
        return self._mean + self._cost.get(trial, 0.0) - math.log(per_s)


def _remember(seen_s: dict[Key, float], key: Key, unit_s: float) -> None:
    seen_s.pop(key, None)
    seen_s[key] = unit_s
    while len(seen_s) > _REMEMBERED:
        del seen_s[next(iter(seen_s))]


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
