"""Where in one flat buffer each piece lies, so that all that goes to one rank lies together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """A flat buffer, in the order of who its pieces belong to, and of the pieces among those.

    Attributes:
        ranks: in whose order.
        spans: of each piece, in the order in which they were given: first number, and the one behind the last.
        bounds: of all that belongs to each rank.
    """

    ranks: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    bounds: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, sizes: Sequence[int], owners: Sequence[int], ranks: Sequence[int], extra: int = 0) -> Layout:
        """Lay out pieces of these sizes.

        Args:
            owners: of each piece, one of ``ranks``.
            extra: numbers of each rank's own behind its pieces.
        """
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
        """Numbers in all."""
        return self.bounds[-1][1]

    def bound(self, rank: int) -> tuple[int, int]:
        """Where all that belongs to one rank begins and ends."""
        return self.bounds[self.ranks.index(rank)]


def moves(old: Sequence[int], new: Sequence[int], rank: int) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """What ``rank`` sends to each other rank, and receives from it, when pieces change their owners: numbers of pieces.

    Args:
        old, new: owner of each piece.
    """
    out: dict[int, list[int]] = {}
    into: dict[int, list[int]] = {}
    for piece, (was, will) in enumerate(zip(old, new, strict=True)):
        if was != will and was == rank:
            out.setdefault(will, []).append(piece)
        elif was != will and will == rank:
            into.setdefault(was, []).append(piece)
    return out, into
