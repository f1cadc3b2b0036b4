"""The predictor interface."""

import math
from abc import ABC, abstractmethod
from typing import Annotated, Any, TypedDict

from uneven.errors import ConfigError
from uneven.policy.core.plain import Amount, Positive, Range, read
from uneven.policy.core.registry import Registry
from uneven.policy.core.views import Observation


class Lesson(ABC):
    """A frozen, self-contained piece of training: arithmetic that must not run between two steps.

    A real run calls :meth:`learn` in a background thread, the simulator and the benches immediately. It does not touch
    the predictor's state, takes about a millisecond, and returns the same result every time.
    """

    @abstractmethod
    def learn(self) -> Any:
        """Return the argument of :meth:`Predictor.absorb`."""


class Predictor(ABC):
    """A predictor of one worker's speed in the next iterations, inside that worker.

    :meth:`observe` is called once for each iteration, in order, or for several at a time with their mean;
    :meth:`predict` when a report is due. Two predictors with the same observations and lessons at the same points
    return the same: no clock, no random number without a fixed seed. Constructors raise ``ConfigError`` for an option
    out of range.

    A predictor that trains creates lessons; each is absorbed or dropped before the next is requested::

        predictor.observe(seen)
        lesson = predictor.lesson()
        if lesson is not None:
            predictor.absorb(lesson.learn())

    Attributes:
        watches: whether it reads ``cpu`` and ``memory``; otherwise they are sampled rarely, because measuring the use
            by others costs a step more than all the rest.
    """

    watches: bool = False

    @abstractmethod
    def observe(self, seen: Observation) -> None:
        """Observe the iteration ``seen``; one without a speed (see :func:`measured`) has no effect."""

    @abstractmethod
    def predict(self, ahead: int = 1) -> float:
        """Return the samples per second ``ahead`` iterations after the last observed one; NaN before the first."""

    def doubt(self) -> float:
        """Return the relative standard error of the prediction; 0 if unknown."""
        return 0.0

    def lesson(self) -> Lesson | None:
        """Return the training that is due, or None; a lesson is returned once."""
        return None

    def absorb(self, learnt: Any) -> None:
        """Apply ``learnt``, the result of one of this predictor's lessons, in one step."""
        raise NotImplementedError(f"{type(self).__name__} has no model to share")

    def state_dict(self) -> dict[str, Any]:
        """Return all that was learned, as plain data for JSON."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - nothing learnt, nothing to load
        """Restore ``state``, a result of :meth:`state_dict`."""


def measured(seen: Observation) -> float | None:
    """Return the speed in samples per second, or None without samples or time."""
    speed = seen.speed_per_s
    return speed if speed > 0.0 and math.isfinite(speed) else None


def study(predictor: Predictor) -> None:
    """Run the lesson that is due immediately: for the simulator, benches and tests, which have no background thread."""
    lesson = predictor.lesson()
    if lesson is not None:
        predictor.absorb(lesson.learn())


predictors: Registry[Predictor] = Registry("predictor", Predictor)  # type: ignore[type-abstract]
"""The registry of predictors."""


class _LastState(TypedDict):
    speed_per_s: Positive | None


class Last(Predictor):
    """Predicts the last measured speed: v̂ᵏ = vᵏ⁻¹ (LB-BSP's "memoryless").

    It follows every change immediately, and every one-off delay too.
    """

    def __init__(self) -> None:
        self._speed_per_s = math.nan

    def observe(self, seen: Observation) -> None:
        speed = measured(seen)
        if speed is not None:
            self._speed_per_s = speed

    def predict(self, ahead: int = 1) -> float:
        return self._speed_per_s

    def state_dict(self) -> dict[str, Any]:
        return {"speed_per_s": None if math.isnan(self._speed_per_s) else self._speed_per_s}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        speed = read(_LastState, state)["speed_per_s"]
        self._speed_per_s = math.nan if speed is None else speed


class EMAState(TypedDict):
    """The checkpoint of an :class:`EMA`: weighted sum and sum of weights."""

    sum: Amount
    weight: Annotated[float, Range(0.0, 1.0)]


class EMA(Predictor):
    """Exponential moving average of the measured speeds: v̂ᵏ = α vᵏ⁻¹ + (1 − α) v̂ᵏ⁻¹.

    α = 0.2 is our default; the paper's is unknown. A one-off delay moves the prediction by a fifth of its size; it
    follows a lasting change to nine tenths after ten reports. In simulated runs with 3 to 10 % noise, 0.1 and 0.2
    balanced steady workers best, and 0.5 those whose speeds were exchanged every 100 iterations. Raise α if speeds
    change often.

    Args:
        alpha: weight of the newest report, above 0, at most 1; 1 is :class:`~uneven.policy.predict.predictor.Last`.

    Raises:
        ConfigError: alpha out of range.
    """

    def __init__(self, *, alpha: float = 0.2) -> None:
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0.0 < alpha <= 1.0:
            raise ConfigError(f"ema: alpha = {alpha!r} must be above 0 and at most 1, for instance 0.2")
        self.alpha = float(alpha)
        self._sum = 0.0  # Σ α (1 − α)^age · speed
        self._weight = 0.0  # Σ α (1 − α)^age

    def observe(self, seen: Observation) -> None:
        speed = measured(seen)
        if speed is not None:
            self._sum += self.alpha * (speed - self._sum)
            self._weight += self.alpha * (1.0 - self._weight)

    def predict(self, ahead: int = 1) -> float:
        # Normalized, as Adam's moments are: the first reports form a plain mean, so a slow first iteration is soon
        # forgotten.
        return self._sum / self._weight if self._weight > 0.0 else math.nan

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self._sum, "weight": self._weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = read(EMAState, state)
        self._sum, self._weight = saved["sum"], saved["weight"]
