"""Do all ranks read the same stream? A few numbers of the first samples of an epoch tell.

A stream that each rank shards for itself, or shuffles without a common seed, trains on a part of the samples, some of
them several times, and nothing fails. But samples may differ where streams do not: those that are augmented at random
come out differently on each rank. So a sample's parts (the members of a tuple or a dictionary) are compared one by one:
the streams are the same if one part that tells samples apart, such as a label or a name, is the same in all of the
first samples on all ranks; or if every part is.

A data set with an index that each rank has split or shuffled for itself is found in the same way, by a few samples that
are spread over it. They are read twice: a part that comes out differently then is random, and tells nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

LOOKED_AT = 64
"""Samples of an epoch."""

_SPREAD = 8
"""Samples of a data set with an index."""

_RANDOM = 2.0
"""Marks a part that tells nothing."""

_PARTS, _BYTES = 8, 6
"""Parts of a sample, and bytes of a digest that are looked at; a float64 holds six of them."""

LENGTH = 1 + 2 * _PARTS
"""Numbers in a row."""


def first_samples(samples: Sequence[Any], pack: Callable[[Any], bytes]) -> list[float]:
    """What is compared of the first samples of an epoch; shape (LENGTH,).

    Args:
        pack: one part of a sample as bytes, the same for the same part on every rank.
    """
    columns = [*zip(*(_parts(sample) for sample in samples), strict=False)][:_PARTS]
    row = [float(len(columns))]
    for column in columns:
        digests = [hashlib.blake2b(pack(one), digest_size=_BYTES).digest() for one in column]
        whole = hashlib.blake2b(b"".join(digests), digest_size=_BYTES).digest()
        row += [float(int.from_bytes(whole, "big")), float(len(set(digests)) > 1)]
    return row + [0.0] * (LENGTH - len(row))


def spread(length: int) -> list[int]:
    """The indices that :func:`spread_samples` wants the samples of."""
    chosen = [number * (length - 1) // (_SPREAD - 1) for number in range(_SPREAD)]
    return [*chosen, *chosen]


def spread_samples(samples: Sequence[Any], pack: Callable[[Any], bytes]) -> list[float]:
    """The same of samples of a data set with an index, those that :func:`spread` has chosen."""
    row, again = (first_samples(some, pack) for some in (samples[:_SPREAD], samples[_SPREAD:]))
    for place in range(1, LENGTH, 2):
        if row[place] != again[place]:
            row[place : place + 2] = 0.0, _RANDOM
    return row


def _parts(sample: Any) -> list[Any]:
    if isinstance(sample, Mapping):
        return [sample[key] for key in sorted(sample, key=str)]
    return [*sample] if isinstance(sample, list | tuple) and sample else [sample]


def differing(rows: npt.NDArray[np.float64]) -> list[int]:
    """The ranks whose stream or data set is not rank 0's.

    Args:
        rows: everybody's, by rank; shape (ranks, LENGTH).
    """
    digests, tell, random = rows[:, 1::2], rows[:, 2::2] > 0.0, (rows[:, 2::2] == _RANDOM).any(axis=0)
    same, tell = ((digests == digests[0]) | random) & (rows[:, :1] == rows[0, 0]), tell & ~random
    used = np.arange(_PARTS) < rows[0, 0]
    alike = (same & tell & tell[0] & used).any(axis=1) | (same | ~used).all(axis=1)
    return [int(rank) for rank in np.flatnonzero(~alike)]
