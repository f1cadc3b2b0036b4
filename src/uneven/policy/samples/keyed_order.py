"""Orders of more samples than there is memory for: a permutation that is reckoned where it is asked.

A Feistel network over the bits of a position is one to one whatever its rounds do; positions that it sends beyond the
length are sent on until they come back inside (cycle walking), which keeps it one to one. The domain is the next power
of two, so fewer than two passes are needed on average. The widths of the halves may differ; an even number of rounds
gives both back their width. Eight rounds of a mixing function (the finalizer of SplitMix64) are our choice.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

KEYED_FROM = 2**27
"""Samples from which on an epoch's order is reckoned and not kept; it would take 8 bytes for each."""

Indices = npt.NDArray[np.int64]
_Bits = npt.NDArray[np.uint64]

_ROUNDS = 8


class KeyedOrder:
    """Index of the sample at any position of an epoch, as an array would give it.

    Args:
        length: samples.
        shuffle: else samples come as they lie.
    """

    def __init__(self, *, length: int, seed: int, epoch: int, shuffle: bool = True) -> None:
        self._length, self._shuffle = length, shuffle
        self._keys = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64)
        bits = max(2, (length - 1).bit_length())
        self._widths = np.uint64(bits // 2), np.uint64(bits - bits // 2)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, positions: slice | list[int] | Indices) -> Indices:
        """int64, as many as positions."""
        if isinstance(positions, slice):
            positions = np.arange(*positions.indices(self._length), dtype=np.int64)
        places = np.asarray(positions, dtype=np.int64)
        if not self._shuffle:
            return places
        found = self._sent(places.astype(np.uint64))
        while (beyond := found >= self._length).any():
            found[beyond] = self._sent(found[beyond])
        return found.astype(np.int64)

    def _sent(self, places: _Bits) -> _Bits:
        low, high = self._widths
        for key in self._keys:
            left, right = places >> low, places & ((np.uint64(1) << low) - np.uint64(1))
            left ^= _mixed(right + key) & ((np.uint64(1) << high) - np.uint64(1))
            places = (right << high) | left
            low, high = high, low
        return places


class KeyedDraws:
    """Index of the sample at any position of an epoch that is drawn with replacement.

    Args:
        length: draws.
        samples: that each is drawn from.
    """

    def __init__(self, *, length: int, samples: int, seed: int, epoch: int) -> None:
        self._length, self._samples = length, np.uint64(samples)
        self._keys = np.random.SeedSequence([seed, epoch]).generate_state(2, np.uint64)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, positions: slice | list[int] | Indices) -> Indices:
        """int64, as many as positions."""
        if isinstance(positions, slice):
            positions = np.arange(*positions.indices(self._length), dtype=np.int64)
        places = np.asarray(positions, dtype=np.int64).astype(np.uint64)
        return (_mixed(_mixed(places + self._keys[0]) ^ self._keys[1]) % self._samples).astype(np.int64)


def _mixed(bits: _Bits) -> _Bits:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
