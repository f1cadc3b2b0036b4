"""How fast will each worker be next? Pure."""

from uneven.predict.base import Lesson, Predictor, predictors, study
from uneven.predict.ema import EMA
from uneven.predict.last import Last
from uneven.predict.steady import Steady

predictors.register("last", Last)
predictors.register("ema", EMA)
predictors.register("steady", Steady)

__all__ = ["EMA", "Last", "Lesson", "Predictor", "Steady", "predictors", "study"]
