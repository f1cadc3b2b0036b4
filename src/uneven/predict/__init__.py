"""How fast will each worker be next? Pure."""

from uneven.predict.arima import ARIMA
from uneven.predict.auto import Auto
from uneven.predict.base import Lesson, Predictor, predictors, study
from uneven.predict.ema import EMA
from uneven.predict.last import Last
from uneven.predict.light import Light
from uneven.predict.narx import NARX
from uneven.predict.recurrent import LSTM, RNN
from uneven.predict.steady import Steady

predictors.register("last", Last)
predictors.register("ema", EMA)
predictors.register("steady", Steady)
predictors.register("arima", ARIMA)
predictors.register("rnn", RNN)
predictors.register("lstm", LSTM)
predictors.register("narx", NARX)
predictors.register("auto", Auto)
predictors.register("light", Light)

__all__ = [
    "ARIMA",
    "EMA",
    "LSTM",
    "NARX",
    "RNN",
    "Auto",
    "Last",
    "Lesson",
    "Light",
    "Predictor",
    "Steady",
    "predictors",
    "study",
]
