"""The predictor interface."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

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
        """Observe one iteration; one without a speed (see :func:`measured`) changes nothing."""

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
        """Apply the result of one of this predictor's lessons, all of it together."""
        raise NotImplementedError(f"{type(self).__name__} hands out no lessons")

    def state_dict(self) -> dict[str, Any]:
        """Return all that was learned, as plain JSON-able data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - nothing learnt, nothing to load
        """Restore what :meth:`state_dict` returned."""


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
