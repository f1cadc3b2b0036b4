"""Estimate trials' speeds on devices from measurements.

The seconds for a unit of training are modelled as a trial's cost times a device's slowness. Both are fitted in
logarithms and shrunk to the average while few measurements exist. Several devices are assumed to have the sum of their
speeds until a trial has been measured on that number. Its additional time is then assumed for other trials too.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

_SWEEPS = 3
_REMEMBERED = 64  # newest pairs of trial and device that are kept

_TEAM_DOUBT = 0.1  # weight of "no loss" in the loss of a number of devices, in measurements


Key = TypeVar("Key")


@dataclass(slots=True)
class Paces:
    """The measurements and the fitted model."""

    # trial and device → seconds for a unit of training, newest measurement
    seen_s: dict[tuple[int, int], float] = field(default_factory=dict)
    # the same for trials on several devices
    seen_together_s: dict[tuple[int, tuple[int, ...]], float] = field(default_factory=dict)
    _slowness: dict[int, float] = field(default_factory=dict)
    _cost: dict[int, float] = field(default_factory=dict)
    _loss: dict[int, float] = field(default_factory=dict)
    _mean: float = 0.0
    _stale: bool = False

    def measured(self, trial: int, devices: tuple[int, ...], units: float, seconds: float) -> None:
        if not units > 0 or not seconds > 0:
            return
        if len(devices) == 1:
            _remember(self.seen_s, (trial, devices[0]), seconds / units)
        else:
            _remember(self.seen_together_s, (trial, devices), seconds / units)
        self._stale = True

    def knows(self, trial: int) -> bool:
        return any(seen == trial for seen, _ in self.seen_s)

    def unit_s(self, trial: int, *devices: int) -> float:
        """Return the seconds for a unit of training on these devices together; 1 on each before any measurement."""
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
        """Return the logarithm of the seconds on these devices without any loss between them."""
        per_s = math.fsum(math.exp(-self._slowness.get(device, 0.0)) for device in devices)
        return self._mean + self._cost.get(trial, 0.0) - math.log(per_s)


def _remember(seen_s: dict[Key, float], key: Key, unit_s: float) -> None:
    # Inserted again as the last key, so that the first key is the oldest measurement.
    seen_s.pop(key, None)
    seen_s[key] = unit_s
    while len(seen_s) > _REMEMBERED:
        del seen_s[next(iter(seen_s))]


def fitted(
    seen_s: Mapping[tuple[int, int], float], *, sweeps: int = _SWEEPS, doubt: float = 1.0
) -> tuple[float, dict[int, float], dict[int, float]]:
    """Return logarithms that sum to the seconds seen: the mean, each trial's additional cost, each device's slowness.

    Costs and slowness are fitted alternately, `sweeps` times. `doubt` is the weight of the mean in a trial's cost, in
    measurements.
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
    """Return key → mean of its values and of ``doubt`` zeros, which shrink means of few values."""
    sums: dict[int, tuple[float, float]] = {}
    for key, value in pairs:
        total, count = sums.get(key, (0.0, doubt))
        sums[key] = total + value, count + 1
    return {key: total / count for key, (total, count) in sums.items()}
