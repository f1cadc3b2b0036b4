"""Predictors of each worker's next speed."""

from uneven.policy.predict.arima import ARIMA
from uneven.policy.predict.auto import Auto
from uneven.policy.predict.light import Light
from uneven.policy.predict.narx import NARX
from uneven.policy.predict.predictor import EMA, Last, Lesson, Predictor, predictors, study
from uneven.policy.predict.recurrent import LSTM, RNN
from uneven.policy.predict.steady import Steady

_COSTLY = "costly"  # measuring and deciding exceed the default budget; docs/reference.md has the figures

predictors.register("last", Last)
predictors.register("ema", EMA)
predictors.register("steady", Steady)
predictors.register("arima", ARIMA)
predictors.register("rnn", RNN, note=_COSTLY)
predictors.register("lstm", LSTM, note=_COSTLY)
predictors.register("narx", NARX, note=_COSTLY)
predictors.register("auto", Auto, note=_COSTLY)
predictors.register("light", Light)
