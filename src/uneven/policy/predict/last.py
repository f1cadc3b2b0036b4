"""The memoryless predictor."""

from __future__ import annotations

import math
from typing import Any, TypedDict

from uneven.policy.core.plain import Positive, read
from uneven.policy.core.views import Observation
from uneven.policy.predict.predictor import Predictor, measured


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
