"""Fingerprints by which ranks check that they read the same samples.

If each rank shards a stream separately, or shuffles it without a common seed, it trains on a part of the samples, some
of them repeatedly. But random augmentation makes samples differ on ranks that read the same stream. So the members of a
sample (a tuple or a dictionary) are compared separately. Streams are the same if one member that differs between
samples, such as a label or a name, is the same on all ranks in all of the first samples; or if every member is.

The same check finds an indexed data set that each rank has split or shuffled separately, by a few samples spread over
it. They are read twice: a member that changes then is random, and is not compared.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

LOOKED_AT = 64  # samples of an epoch

_SPREAD = 8  # samples of a data set with an index

_RANDOM = 2.0  # marks a member that is not compared

_PARTS, _BYTES = 8, 6  # members of a sample, and bytes of a digest: a float64 holds six exactly

LENGTH = 1 + 2 * _PARTS  # numbers in a row


def first_samples(samples: Sequence[Any], pack: Callable[[Any], bytes]) -> list[float]:
    """Return the fingerprint of the first samples of an epoch, shape (LENGTH,); ``pack`` converts a member to bytes."""
    columns = [*zip(*(_parts(sample) for sample in samples), strict=False)][:_PARTS]
    row = [float(len(columns))]
    for column in columns:
        digests = [hashlib.blake2b(pack(one), digest_size=_BYTES).digest() for one in column]
        whole = hashlib.blake2b(b"".join(digests), digest_size=_BYTES).digest()
        row += [float(int.from_bytes(whole, "big")), float(len(set(digests)) > 1)]
    return row + [0.0] * (LENGTH - len(row))


def spread(length: int) -> list[int]:
    chosen = [number * (length - 1) // (_SPREAD - 1) for number in range(_SPREAD)]
    return [*chosen, *chosen]


def spread_samples(samples: Sequence[Any], pack: Callable[[Any], bytes]) -> list[float]:
    """Return the fingerprint of samples of an indexed data set, chosen by :func:`spread`; shape (LENGTH,)."""
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
    """Return the ranks whose samples are not rank 0's, from the fingerprints of all ranks, shape (ranks, LENGTH)."""
    digests, tell, random = rows[:, 1::2], rows[:, 2::2] > 0.0, (rows[:, 2::2] == _RANDOM).any(axis=0)
    same, tell = ((digests == digests[0]) | random) & (rows[:, :1] == rows[0, 0]), tell & ~random
    used = np.arange(_PARTS) < rows[0, 0]
    alike = (same & tell & tell[0] & used).any(axis=1) | (same | ~used).all(axis=1)
    return [int(rank) for rank in np.flatnonzero(~alike)]
