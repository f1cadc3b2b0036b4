"""Every shipped predictor keeps the contract."""

from __future__ import annotations

from uneven.policy.predict import ARIMA, EMA, LSTM, NARX, RNN, Auto, Last, Predictor, Steady, predictors
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


class TestARIMA(PredictorContract):
    def make(self) -> Predictor:
        return ARIMA()


class TestARIMAOfTwo(PredictorContract):
    def make(self) -> Predictor:
        return predictors.resolve("arima:p=2,d=0,q=2,window=20,every=1,hold=4")


class TestNARX(PredictorContract):
    def make(self) -> Predictor:
        return NARX()


class TestEagerNARX(PredictorContract):
    """Trains and predicts from the beginning, as the default would only after more than the contract shows it."""

    def make(self) -> Predictor:
        return predictors.resolve("narx:hidden=2,delay=1,warm_up=4,every=2,memory=16,penalty=1")


class TestRNN(PredictorContract):
    def make(self) -> Predictor:
        return RNN()


class TestEagerRNN(PredictorContract):
    def make(self) -> Predictor:
        return predictors.resolve("rnn:hidden=3,length=4,warm_up=6,every=2,memory=16,batch=8,uses=true")


class TestLSTM(PredictorContract):
    def make(self) -> Predictor:
        return LSTM()


class TestEagerLSTM(PredictorContract):
    def make(self) -> Predictor:
        return predictors.resolve("lstm:hidden=3,length=4,warm_up=6,every=2,memory=16,batch=8")


class TestAuto(PredictorContract):
    def make(self) -> Predictor:
        return Auto()


class TestEagerAuto(PredictorContract):
    def make(self) -> Predictor:
        return Auto(experts=("last", "steady", NARX(warm_up=4, every=3), ARIMA(window=20, every=3)))


class TestLight(PredictorContract):
    def make(self) -> Predictor:
        return predictors.resolve("light")


def test_no_shipped_predictor_is_left_out() -> None:
    assert set(predictors) == {"last", "ema", "steady", "arima", "rnn", "lstm", "narx", "auto", "light"}
