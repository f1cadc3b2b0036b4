"""What a worker puts into a sum over the members, and what it takes out of it.

A weighted mean is one sum: everybody adds its weighted vector with the weight at the end, and divides by the sum of
the weights. Nobody so needs to know in advance how many samples the others took. One more number counts who rests.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST = 2.0**-40
"""Weight of a worker without samples: it vanishes in the rounding of the others', and where nobody has any sample all
weigh the same. A power of two, so that scaling by it and back is exact."""

_EXTRA = 2


def contribution(values: Tensor, weight: float, *, resting: bool = False) -> Tensor:
    """What goes into the sum: the values times the weight, the weight, and 1 of a worker that rests.

    Args:
        values: shape (n,).
        weight: samples, or 1 where all count the same.

    Returns:
        Shape (n + 2,).
    """
    weight = max(weight, LEAST)
    room = torch.empty(len(values) + _EXTRA, dtype=values.dtype, device=values.device)
    torch.mul(values, weight, out=room[:-_EXTRA])
    room[-2], room[-1] = weight, float(resting)
    return room


def average(total: Tensor) -> Tensor:
    """The weighted mean out of a sum of contributions; shape (n,)."""
    return total[:-_EXTRA] / total[-2]


def sum_of(total: Tensor) -> tuple[Tensor, float]:
    """Σ_i x_i and their number, out of a sum of contributions that all weigh 1."""
    return total[:-_EXTRA], float(total[-2])


def resting_in(total: Tensor) -> int:
    """How many of those who contributed rest; makes the host wait for an accelerator."""
    return round(float(total[-1]))


def distance(values: Tensor, middle: Tensor) -> float:
    """Root of the mean squared difference of the entries of two vectors."""
    return float((values - middle).square().mean().sqrt()) if len(values) else 0.0
