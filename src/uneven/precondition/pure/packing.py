"""The layout of pieces in one flat buffer, such that all pieces of a rank are contiguous; and batches of equal work."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a flat buffer, by owner, then by piece."""

    ranks: tuple[int, ...]  # in the order of the buffer
    spans: tuple[tuple[int, int], ...]  # start and end of each piece, in the order in which they were given
    bounds: tuple[tuple[int, int], ...]  # start and end of each rank's pieces

    @classmethod
    def of(cls, sizes: Sequence[int], owners: Sequence[int], ranks: Sequence[int], extra: int = 0) -> "Layout":
        """Arrange pieces of these ``sizes`` by their ``owners``, with ``extra`` numbers after each rank's pieces."""
        spans = [(0, 0)] * len(sizes)
        bounds, at = [], 0
        for rank in ranks:
            start = at
            for piece, (size, owner) in enumerate(zip(sizes, owners, strict=True)):
                if owner == rank:
                    spans[piece] = (at, at + size)
                    at += size
            at += extra
            bounds.append((start, at))
        return cls(tuple(ranks), tuple(spans), tuple(bounds))

    @property
    def size(self) -> int:
        return self.bounds[-1][1]

    def bound(self, rank: int) -> tuple[int, int]:
        """Return start and end of a rank's pieces."""
        return self.bounds[self.ranks.index(rank)]


def moves(old: Sequence[int], new: Sequence[int], rank: int) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return the numbers of the pieces that ``rank`` sends to and receives from each rank when owners change."""
    out: dict[int, list[int]] = {}
    into: dict[int, list[int]] = {}
    for piece, (was, will) in enumerate(zip(old, new, strict=True)):
        if was != will and was == rank:
            out.setdefault(will, []).append(piece)
        elif was != will and will == rank:
            into.setdefault(was, []).append(piece)
    return out, into


def batches(keys: Sequence[Hashable], sizes: Sequence[int], most: int) -> list[list[int]]:
    """Return the places of equal ``keys`` in batches, whose ``sizes`` add up to ``most`` or less, if two or more."""
    found: list[list[int]] = []
    open_batch: dict[Hashable, list[int]] = {}
    for place, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        batch = open_batch.get(key)
        if batch is None or (len(batch) + 1) * size > most:  # equal keys have equal sizes
            batch = open_batch[key] = []
            found.append(batch)
        batch.append(place)
    return found
