"""Every shipped predictor keeps the contract."""

from __future__ import annotations

from uneven.predict import EMA, Last, Predictor, Steady, predictors
from uneven.testing.contracts import PredictorContract


class TestLast(PredictorContract):
    def make(self) -> Predictor:
        return Last()


class TestEMA(PredictorContract):
    def make(self) -> Predictor:
        return EMA()


class TestQuickEMA(PredictorContract):
    def make(self) -> Predictor:
        return predictors.resolve("ema:alpha=0.9")


class TestSteady(PredictorContract):
    def make(self) -> Predictor:
        return Steady()


def test_no_shipped_predictor_is_left_out() -> None:
    assert set(predictors) == {"last", "ema", "steady"}
