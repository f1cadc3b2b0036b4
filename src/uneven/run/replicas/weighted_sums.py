"""A worker's contribution to a sum over the members, and the results read from the sum.

A weighted mean is one sum: every worker adds its weighted vector with the weight at the end, and divides by the total
weight. So no worker needs to know the others' samples in advance. One more number counts resting workers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEAST = 2.0**-40
"""The weight of a worker without samples: it vanishes in the rounding of the others' weights; without any samples at
all, workers have equal weights. A power of two, so that scaling by it and back is exact."""

EXTRA = 2  # numbers at the end of a contribution


def contribution(values: Tensor, weight: float, *, resting: bool = False, into: Tensor | None = None) -> Tensor:
    """Return the values (n,) times the weight, the weight, and 1 for a resting worker; shape (n + EXTRA,).

    ``weight`` is the number of samples, or 1 for equal weights; ``into`` is memory for the result.
    """
    weight = max(weight, LEAST)
    room = torch.empty(len(values) + EXTRA, dtype=values.dtype, device=values.device) if into is None else into
    torch.mul(values, weight, out=room[:-EXTRA])
    room[-2], room[-1] = weight, float(resting)
    return room


def average(total: Tensor) -> Tensor:
    """Divide a sum of contributions by its weight in place; shape (n,)."""
    return total[:-EXTRA].div_(total[-2])


def weight_in(total: Tensor) -> float:
    """Return the total weight in a sum (n + EXTRA,); synchronizes with an accelerator."""
    return float(total[-2])


def resting_in(total: Tensor) -> int:
    """Return the number of resting workers in a sum (n + EXTRA,); synchronizes with an accelerator."""
    return round(float(total[-1]))


def apart(values: Tensor, total: Tensor, into: Tensor | None = None) -> Tensor:
    """Return a contributor's difference from the weighted mean, x − Σ / w, shape (n,), in one pass."""
    # one pass, without the mean as a temporary
    return torch.add(values, total[:-EXTRA], alpha=-1 / weight_in(total), out=into)


def mean_square_root(vector: Tensor) -> float:
    """Return the root mean square of a flat vector; 0 without entries."""
    return math.sqrt(float(torch.dot(vector, vector)) / max(1, len(vector)))
