"""Arithmetic on vectors in pieces; nothing is changed in place. Pure."""

from __future__ import annotations

import numpy as np

from uneven.server.wire import Array, Vector


def add(vector: Vector, scale: float, other: Vector) -> Vector:
    """vector + scale · other."""
    with np.errstate(over="ignore", invalid="ignore"):  # who calls looks at what came out
        return tuple(_sum(one, scale, more) for one, more in zip(vector, other, strict=True))


def _sum(one: Array, scale: float, more: Array) -> Array:
    new = scale * more
    new += one
    return new


def difference(replica: Vector, centre: Vector, alpha: float) -> Vector:
    """EASGD's d = α (x − x̃), of shape and kind of the vectors."""
    with np.errstate(over="ignore", invalid="ignore"):
        return tuple(alpha * (x - c) for x, c in zip(replica, centre, strict=True))


def zeros(like: Vector) -> Vector:
    """As many zeros."""
    return tuple(np.zeros_like(piece) for piece in like)


def finite(vector: Vector) -> bool:
    """Whether there is neither a NaN nor an infinity in it."""
    return all(bool(np.isfinite(piece).all()) for piece in vector)


def equal(one: Vector, other: Vector) -> bool:
    """Bit for bit, but that a zero has no sign."""
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
