"""Search for the best policy setting, given the measured costs of earlier ones.

Settings are ordered from the loosest, which sends least, to the tightest. Costs drift while a model learns, so old
measurements expire, and looser settings are tried again from time to time.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from uneven.errors import ConfigError
from uneven.policy.core.plain import read
from uneven.policy.core.registry import Registry


@dataclass(frozen=True, slots=True)
class Objective:
    """J = λ_loss · max(0, loss − tolerance) + λ_bytes · share, to be minimized.

    The form and the defaults are SkewScout's (Hsieh et al. 2020) [recalled]; the units are ours: with the loss and the
    bytes as fractions, of 1 and of BSP's traffic, two points above the tolerance weigh as much as all of BSP's traffic.

    Args:
        tolerance: accuracy that a model may lose at other sites, 0 to 1.
        loss_weight, bytes_weight: λ.

    Raises:
        ConfigError: a value is out of range.
    """

    tolerance: float = 0.05
    loss_weight: float = 50.0
    bytes_weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise ConfigError(
                f"tolerance = {self.tolerance!r}: give a fraction of the accuracy, at least 0 and below 1"
            )
        for key in ("loss_weight", "bytes_weight"):
            if not 0 <= getattr(self, key) < 1e12:
                raise ConfigError(f"{key} = {getattr(self, key)!r} must be at least 0")

    def of(self, loss: float, share: float) -> float:
        """Return J of a period from the mean accuracy lost, and the bytes between sites over those of BSP."""
        return self.loss_weight * max(0.0, loss - self.tolerance) + self.bytes_weight * share


FORGET, AGAIN = 12, 4  # periods until a measurement expires, and until a resting tuner tries a neighbour; ours
WORTH = 2.0  # a neighbour above this multiple of the best cost is retried only after it expires
STRIDE = 3  # maximum settings per move if the loss far exceeds the tolerance; ours


class _TunerState(TypedDict):
    at: int
    best: int
    rested: int
    periods: int
    known: dict[str, list[float]]


class Tuner(ABC):
    """A search over settings: it takes the cost of the current one, ``at``, and returns the next.

    Args:
        settings: number of settings, from the loosest, 0, to the tightest.
        start: the first one.
        seed: for random decisions.
        tightest: cost of the tightest setting, if known in advance.

    Raises:
        ConfigError: ``start`` does not exist.
    """

    def __init__(self, settings: int, start: int, seed: int = 0, *, tightest: float = math.inf) -> None:
        if not 0 <= start < settings:
            raise ConfigError(f"start = {start!r}: give a setting from 0 to {settings - 1}")
        self.settings = settings
        self.at = start
        self._best = start
        self._tightest = tightest
        self._rested = self._periods = 0
        self._known: dict[int, tuple[float, int]] = {}  # setting → (cost, period)
        self._rng = np.random.default_rng(seed)

    def measured(self, cost: float, loss: float) -> int:
        """Record the current setting's cost in the last period, and the models' loss over the tolerance; return the
        next one."""
        self._periods += 1
        self._known[self.at] = cost, self._periods
        # Costs drift while the model learns: old measurements expire.
        self._known = {one: found for one, found in self._known.items() if self._periods - found[1] < FORGET}
        # Tighten regardless of costs, further for larger losses (ours): losses are noisy, and a climb by costs alone
        # can reverse in the noise.
        if loss > 1:
            ahead = min(STRIDE, math.ceil(loss) - 1)
            self.at = self._best = min(self.settings - 1, self.at + ahead)
            return self.at
        # Within the tolerance, an unknown tighter setting has infinite cost and is not tried: it could only send more.
        near = min(self.at - 1, self.at + 1, key=self.cost)
        if self.at == self._best:
            self._best = near if self._better(self.cost(near), cost) else self.at
        elif self._best not in self._known or self._better(cost, self.cost(self._best)):
            self._best = self.at
        self.at = self._next()
        return self.at

    def cost(self, setting: int) -> float:
        """Return the setting's last or known cost, or infinity."""
        unknown = self._tightest if setting == self.settings - 1 else math.inf
        return self._known.get(setting, (unknown, 0))[0]

    @property
    def best(self) -> int:
        return self._best

    @abstractmethod
    def _better(self, cost: float, than: float) -> bool:
        """Return whether to continue from a setting of this cost instead of the one before."""

    def _next(self) -> int:
        # Try the next looser setting if its cost is unknown, or again from time to time, as it may have become good
        # enough.
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
        """Return the state as plain data that a checkpoint can hold."""
        return {
            "at": self.at,
            "best": self._best,
            "rested": self._rested,
            "periods": self._periods,
            "known": {str(one): [cost, float(when)] for one, (cost, when) in self._known.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`."""
        told = read(_TunerState, state)
        self.at, self._best = told["at"], told["best"]
        self._rested, self._periods = told["rested"], told["periods"]
        self._known = {int(one): (cost, int(when)) for one, (cost, when) in told["known"].items()}


class HillClimbing(Tuner):
    """Continue in a direction while it improves the cost, otherwise reverse."""

    def _better(self, cost: float, than: float) -> bool:
        return cost < than


class StochasticHillClimbing(Tuner):
    """Climb as above, but accept an improvement with a probability that grows with it."""

    def _better(self, cost: float, than: float) -> bool:
        if not cost < than:
            return False
        gain = 1.0 if math.isinf(than) else (than - cost) / max(than, 1e-12)
        return bool(self._rng.random() < 0.5 + gain)


class Annealing(Tuner):
    """Accept a worse setting, too, with probability exp(−ΔJ / T), T = 1 / period."""

    def _better(self, cost: float, than: float) -> bool:
        return cost < than or bool(self._rng.random() < math.exp(-(cost - than) * self._periods))


tuners: Registry[Tuner] = Registry("tuner", Tuner)  # type: ignore[type-abstract]

tuners.register("climb", HillClimbing)
tuners.register("stochastic", StochasticHillClimbing)
tuners.register("annealing", Annealing)
