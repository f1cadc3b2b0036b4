"""Pseudo-random bits that depend on a key alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint64]


def splitmix64(keys: npt.NDArray[np.integer[Any]], draw: int = 1) -> Bits:
    """Return the number ``draw`` of the generator that each key seeds, in the shape of ``keys`` (Steele et al. 2014).

    Number 0 is a one-to-one map of the key.
    """
    z = keys.astype(np.uint64, copy=False) + np.uint64(0x9E3779B97F4A7C15 * draw & 0xFFFFFFFFFFFFFFFF)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
