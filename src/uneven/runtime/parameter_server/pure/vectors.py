"""Arithmetic on vectors in pieces; no vector is changed in place."""

from __future__ import annotations

import numpy as np

from uneven.policy.merge.elastic_pull import pull
from uneven.runtime.parameter_server.pure.wire import Array, Vector

_BLOCK = 1 << 15  # the elements of a block, small enough that intermediate results stay in the processor's cache


def add(vector: Vector, scale: float, other: Vector) -> Vector | None:
    """Return vector + scale · other, piece by piece (same shapes); None if an entry of it is NaN or infinite."""
    found = []
    with np.errstate(over="ignore", invalid="ignore"):
        for one, more in zip(vector, other, strict=True):
            piece = _sum(one, scale, more)
            if piece is None:
                return None
            found.append(piece)
    return tuple(found)


def _sum(one: Array, scale: float, more: Array) -> Array | None:
    new = np.empty_like(one)
    for start in range(0, len(one), _BLOCK):
        block = slice(start, start + _BLOCK)
        part = new[block]
        np.multiply(more[block], scale, out=part)
        np.add(part, one[block], out=part)
        if not np.isfinite(part).all():
            return None
    return new


def difference(replica: Vector, centre: Vector, alpha: float) -> Vector:
    """Return EASGD's d = α (x − x̃), with shapes and dtype of the vectors."""
    with np.errstate(over="ignore", invalid="ignore"):
        return tuple(pull(x, c, alpha) for x, c in zip(replica, centre, strict=True))


def zeros(like: Vector) -> Vector:
    return tuple(np.zeros_like(piece) for piece in like)
