"""The predictor interface. Pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from uneven.core.views import Observation
from uneven.registry import Registry


class Predictor(ABC):
    """How fast will one worker be in the next iteration?

    One predictor serves one worker. The slow loop calls :meth:`observe` with every report that it believes,
    in order, then :meth:`predict` once. Two predictors that were shown the same observations answer the
    same: no clock, no random number without a fixed seed, for every rank computes every worker's prediction
    on its own and all must agree.
    """

    @abstractmethod
    def observe(self, seen: Observation) -> None:
        """Take in one report. One that carries no speed (see :func:`measured`) changes nothing."""

    @abstractmethod
    def predict(self) -> float:
        """Samples per second in the next iteration; NaN before the first observation."""

    def doubt(self) -> float:
        """Relative standard error of the prediction, as far as it can tell; 0 if it cannot."""
        return 0.0

    def state_dict(self) -> dict[str, Any]:
        """Everything learnt, as plain JSON-able data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - nothing learnt, nothing to load
        """Inverse of :meth:`state_dict`."""


def measured(seen: Observation) -> float | None:
    """The speed in samples per second, or None where there is none: no samples, or no time to divide by."""
    speed = seen.speed_per_s
    return speed if speed > 0.0 and math.isfinite(speed) else None


predictors: Registry[Predictor] = Registry("predictor", Predictor)  # type: ignore[type-abstract]
"""Predictors by name."""
