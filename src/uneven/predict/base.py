"""The predictor interface. Pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from uneven.core.views import Observation
from uneven.registry import Registry


class Lesson(ABC):
    """A frozen, self-contained piece of training; the arithmetic that has no place between two steps.

    A real run calls :meth:`learn` in a thread in the background, the simulator and the benches where they stand. It
    touches nothing that the predictor still works with, takes about a millisecond, and answers the same every time.
    """

    @abstractmethod
    def learn(self) -> Any:
        """What :meth:`Predictor.absorb` takes."""


class Predictor(ABC):
    """How fast will one worker be in the next iterations?

    One predictor serves one worker, from inside it. :meth:`observe` is called once for each of its iterations, in
    order (or for several at once: then the report is their mean); :meth:`predict` whenever the other workers are
    to hear of it. Two predictors that were shown the same and absorbed the same lessons at the same points answer the
    same: no clock, no random number without a fixed seed.

    One that trains hands out lessons::

        predictor.observe(seen)
        lesson = predictor.lesson()
        if lesson is not None:
            predictor.absorb(lesson.learn())

    Whoever asks for a lesson sees to it that it is absorbed before the next one is asked for, or is dropped.

    Attributes:
        watches: whether it reads ``cpu`` and ``memory``; for one that does not, they are looked up rarely, as finding
            out what others use costs the step more than all the rest.
    """

    watches: bool = False

    @abstractmethod
    def observe(self, seen: Observation) -> None:
        """Take in one iteration. One that carries no speed (see :func:`measured`) changes nothing."""

    @abstractmethod
    def predict(self, ahead: int = 1) -> float:
        """Samples per second ``ahead`` iterations after the last one observed; NaN before the first."""

    def doubt(self) -> float:
        """Relative standard error of the prediction, as far as it can tell; 0 if it cannot."""
        return 0.0

    def lesson(self) -> Lesson | None:
        """Training that is due, else None; the same lesson is not handed out twice."""
        return None

    def absorb(self, learnt: Any) -> None:
        """Take over what a lesson of this predictor has learnt, all at once."""
        raise NotImplementedError(f"{type(self).__name__} hands out no lessons")

    def state_dict(self) -> dict[str, Any]:
        """Everything learnt, as plain JSON-able data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - nothing learnt, nothing to load
        """Inverse of :meth:`state_dict`."""


def measured(seen: Observation) -> float | None:
    """The speed in samples per second, or None where there is none: no samples, or no time to divide by."""
    speed = seen.speed_per_s
    return speed if speed > 0.0 and math.isfinite(speed) else None


def study(predictor: Predictor) -> None:
    """Learn at once whatever is due: for the simulator, benches and tests, which have no background."""
    lesson = predictor.lesson()
    if lesson is not None:
        predictor.absorb(lesson.learn())


predictors: Registry[Predictor] = Registry("predictor", Predictor)  # type: ignore[type-abstract]
"""Predictors by name."""
