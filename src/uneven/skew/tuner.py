"""Which setting to try next, by what was measured of those tried before. Pure.

Settings lie in a row from the loosest, which sends least, to the tightest. What a setting costs drifts while a model
learns, so what was measured long ago is forgotten, and looser ones are tried again now and then.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, TypedDict

import numpy as np

from uneven.core.plain import read
from uneven.errors import ConfigError
from uneven.registry import Registry

FORGET, AGAIN = 12, 4
"""Periods after which a measurement is forgotten, and after which a resting tuner tries a neighbour; ours."""

WORTH = 2.0
"""A neighbour that cost more than so many times what the best one does is tried again only when that is forgotten."""

STRIDE = 3
"""Settings that are passed at most at once where far more is lost than is tolerated; ours."""


class _TunerState(TypedDict):
    at: int
    best: int
    rested: int
    periods: int
    known: dict[str, list[float]]


class Tuner(ABC):
    """Told what the setting in force has cost, it says which comes next.

    Args:
        settings: how many there are, from the loosest, 0, to the tightest.
        start: which one comes first.
        seed: of what is left to chance.
        tightest: what the tightest one costs, where that is known beforehand.

    Attributes:
        at: the setting in force.

    Raises:
        ConfigError: there is no such setting.
    """

    def __init__(self, settings: int, start: int, seed: int = 0, *, tightest: float = math.inf) -> None:
        if not 0 <= start < settings:
            raise ConfigError(f"start = {start!r}: there are settings 0 to {settings - 1}")
        self.settings, self.at = settings, start
        self._best = start
        self._tightest = tightest
        self._rested = self._periods = 0
        self._known: dict[int, tuple[float, int]] = {}  # setting → what it cost, and in which period that was measured
        self._rng = np.random.default_rng(seed)

    def measured(self, cost: float, loss: float) -> int:
        """The setting in force has cost so much in the period that has ended; which one comes next.

        Args:
            loss: that models have, as a part of what is tolerated. Above 1 a tighter one follows, whatever is known,
                and further on the more is lost; within it no tighter one is tried, which could only send more. Both are
                ours: what a model loses is noisy, and a climb by costs alone can turn round in it.
        """
        self._periods += 1
        self._known[self.at] = cost, self._periods
        self._known = {one: found for one, found in self._known.items() if self._periods - found[1] < FORGET}
        if loss > 1:
            ahead = min(STRIDE, math.ceil(loss) - 1)
            self.at = self._best = min(self.settings - 1, self.at + ahead)
            return self.at
        near = min(self.at - 1, self.at + 1, key=self.cost)
        if self.at == self._best:
            self._best = near if self._better(self.cost(near), cost) else self.at
        elif self._best not in self._known or self._better(cost, self.cost(self._best)):
            self._best = self.at
        self.at = self._next()
        return self.at

    def cost(self, setting: int) -> float:
        """What it cost when it was tried last, or is known to cost; infinity if nobody knows."""
        unknown = self._tightest if setting == self.settings - 1 else math.inf
        return self._known.get(setting, (unknown, 0))[0]

    @property
    def best(self) -> int:
        """The setting to stay with."""
        return self._best

    @abstractmethod
    def _better(self, cost: float, than: float) -> bool:
        """Whether to go on from a setting of this cost and not from the one before."""

    def _next(self) -> int:
        """The next looser one than the best, if nobody knows it; else the best, and now and then again the looser one,
        where it is worth it."""
        looser = self._best - 1
        if self._best not in self._known or looser < 0:
            return self._best
        if looser not in self._known:
            return looser
        self._rested += 1
        if self._rested < AGAIN or self.cost(looser) > WORTH * self.cost(self._best):
            return self._best
        self._rested = 0
        return looser

    def state_dict(self) -> dict[str, Any]:
        """Plain data, for a checkpoint."""
        return {
            "at": self.at, "best": self._best, "rested": self._rested, "periods": self._periods,
            "known": {str(one): [cost, float(when)] for one, (cost, when) in self._known.items()},
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        told = read(_TunerState, state)
        self.at, self._best = told["at"], told["best"]
        self._rested, self._periods = told["rested"], told["periods"]
        self._known = {int(one): (cost, int(when)) for one, (cost, when) in told["known"].items()}


class HillClimbing(Tuner):
    """Go on as long as it gets better, turn round where it does not."""

    def _better(self, cost: float, than: float) -> bool:
        return cost < than


class StochasticHillClimbing(Tuner):
    """As hill climbing, but a better one is taken with a probability that grows with how much better it is."""

    def _better(self, cost: float, than: float) -> bool:
        if not cost < than:
            return False
        gain = 1.0 if math.isinf(than) else (than - cost) / max(than, 1e-12)
        return bool(self._rng.random() < 0.5 + gain)


class Annealing(Tuner):
    """A worse one is taken, too, with the probability exp(−ΔJ / T), where T = 1 / period."""

    def _better(self, cost: float, than: float) -> bool:
        return cost < than or bool(self._rng.random() < math.exp(-(cost - than) * self._periods))


tuners: Registry[Tuner] = Registry("tuner", Tuner)  # type: ignore[type-abstract]
"""Tuners by name."""

tuners.register("climb", HillClimbing)
tuners.register("stochastic", StochasticHillClimbing)
tuners.register("annealing", Annealing)
