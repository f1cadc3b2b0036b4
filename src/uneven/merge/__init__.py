"""How contributions become one: arithmetic on flat vectors, without any communication."""

from uneven.merge.flat import Flat
from uneven.merge.rules import Block, elastic, mean, pull, significant
from uneven.merge.shared import EXTRA, average, contribution, distance, resting_in, weight_in

__all__ = [
    "EXTRA",
    "Block",
    "Flat",
    "average",
    "contribution",
    "distance",
    "elastic",
    "mean",
    "pull",
    "resting_in",
    "significant",
    "weight_in",
]
