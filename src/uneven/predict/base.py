"""The predictor interface. Pure."""

from __future__ import annotations

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
        """Take in one report."""

    @abstractmethod
    def predict(self) -> float:
        """Samples per second in the next iteration; NaN before the first observation."""

    def state_dict(self) -> dict[str, Any]:
        """Everything learnt, as plain JSON-able data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""


predictors: Registry[Predictor] = Registry("predictor", Predictor)  # type: ignore[type-abstract]
"""Predictors by name."""
