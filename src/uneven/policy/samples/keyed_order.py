"""Orders of more samples than memory holds: a permutation that is computed on demand.

A Feistel network over the bits of a position is one-to-one for any round function. A position that it maps beyond the
length is mapped again until it is inside (cycle walking), which keeps the map one-to-one. The domain is the next power
of two, so fewer than two passes are needed on average. The widths of the halves may differ; an even number of rounds
restores them. Eight rounds of a mixing function (the finalizer of SplitMix64) are our choice.
"""

import numpy as np
import numpy.typing as npt

from uneven.policy.core.exact import Bits, splitmix64

KEYED_FROM = 2**27  # samples from which on an epoch's order is computed instead of stored in 8 bytes each

Indices = npt.NDArray[np.int64]

_ROUNDS = 8


class KeyedOrder:
    """The index of the sample at any position of an epoch, with the interface of an array."""

    def __init__(self, *, length: int, seed: int, epoch: int, shuffle: bool = True) -> None:
        self._length = length  # samples
        self._shuffle = shuffle  # False keeps the samples sorted
        self._keys = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64)
        bits = max(2, (length - 1).bit_length())
        self._widths = np.uint64(bits // 2), np.uint64(bits - bits // 2)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, positions: slice | list[int] | Indices) -> Indices:
        """Return the indices at these positions, int64, shape (positions,)."""
        if isinstance(positions, slice):
            positions = np.arange(*positions.indices(self._length), dtype=np.int64)
        places = np.asarray(positions, dtype=np.int64)
        if not self._shuffle:
            return places
        found = self._sent(places.astype(np.uint64))
        while (beyond := found >= self._length).any():
            found[beyond] = self._sent(found[beyond])
        return found.astype(np.int64)

    def _sent(self, places: Bits) -> Bits:
        low, high = self._widths
        for key in self._keys:
            left, right = places >> low, places & ((np.uint64(1) << low) - np.uint64(1))
            left ^= splitmix64(right + key, 0) & ((np.uint64(1) << high) - np.uint64(1))
            places = (right << high) | left
            low, high = high, low
        return places


class KeyedDraws:
    """The index of one of ``samples`` at any position of an epoch that is drawn with replacement."""

    def __init__(self, *, length: int, samples: int, seed: int, epoch: int) -> None:
        self._length = length  # draws
        self._samples = np.uint64(samples)
        self._keys = np.random.SeedSequence([seed, epoch]).generate_state(2, np.uint64)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, positions: slice | list[int] | Indices) -> Indices:
        """Return int64 indices, shape (positions,)."""
        if isinstance(positions, slice):
            positions = np.arange(*positions.indices(self._length), dtype=np.int64)
        places = np.asarray(positions, dtype=np.int64).astype(np.uint64)
        return (splitmix64(splitmix64(places + self._keys[0], 0) ^ self._keys[1], 0) % self._samples).astype(np.int64)
