"""What a worker puts into a sum over the members, and what it takes out of it.

A weighted mean is one sum: everybody adds its weighted vector with the weight at the end, and divides by the sum of
the weights. Nobody so needs to know in advance how many samples the others took. One more number counts who rests.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEAST = 2.0**-40
"""Weight of a worker without samples: it vanishes in the rounding of the others', and where nobody has any sample all
weigh the same. A power of two, so that scaling by it and back is exact."""

EXTRA = 2
"""Numbers at the end of a contribution."""


def contribution(values: Tensor, weight: float, *, resting: bool = False, into: Tensor | None = None) -> Tensor:
    """What goes into the sum: the values times the weight, the weight, and 1 of a worker that rests.

    Args:
        values: shape (n,).
        weight: samples, or 1 where all count the same.
        into: memory for it, of the shape that is returned; None for new memory.

    Returns:
        Shape (n + EXTRA,).
    """
    weight = max(weight, LEAST)
    room = torch.empty(len(values) + EXTRA, dtype=values.dtype, device=values.device) if into is None else into
    torch.mul(values, weight, out=room[:-EXTRA])
    room[-2], room[-1] = weight, float(resting)
    return room


def average(total: Tensor) -> Tensor:
    """The weighted mean out of a sum of contributions, in place; shape (n,)."""
    return total[:-EXTRA].div_(total[-2])


def weight_in(total: Tensor) -> float:
    """Weight of all contributions together, from a flat vector; makes the host wait for an accelerator."""
    return float(total[-2])


def resting_in(total: Tensor) -> int:
    """How many of those whose sum ``total`` is, shape (size + EXTRA,), rest; makes the host wait for an accelerator."""
    return round(float(total[-1]))


def apart(values: Tensor, total: Tensor, into: Tensor | None = None) -> Tensor:
    """How far one of the contributors is from the weighted mean, in one pass: x − Σ / w; shape (n,).

    Args:
        into: memory for it; None for new memory.
    """
    return torch.add(values, total[:-EXTRA], alpha=-1 / weight_in(total), out=into)


def mean_square_root(vector: Tensor) -> float:
    """Root of the mean squared entry of a flat vector; 0 without entries."""
    return math.sqrt(float(torch.dot(vector, vector)) / max(1, len(vector)))
