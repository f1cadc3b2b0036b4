"""How fast will each worker be next? Pure."""

from uneven.predict.base import Predictor, predictors
from uneven.predict.ema import EMA
from uneven.predict.last import Last

predictors.register("last", Last)
predictors.register("ema", EMA)

__all__ = ["EMA", "Last", "Predictor", "predictors"]
