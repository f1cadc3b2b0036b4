"""How contributions become one: arithmetic on flat vectors, without any communication."""

from uneven.merge.flat import Flat
from uneven.merge.rules import Block, elastic, mean, pull, significant
from uneven.merge.shared import EXTRA, apart, average, contribution, mean_square_root, resting_in, weight_in

__all__ = [
    "EXTRA",
    "Block",
    "Flat",
    "apart",
    "average",
    "contribution",
    "elastic",
    "mean",
    "mean_square_root",
    "pull",
    "resting_in",
    "significant",
    "weight_in",
]
