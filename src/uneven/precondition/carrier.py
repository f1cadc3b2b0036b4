"""Carries sums to owners, bases to those who precondition, and gradients to all, each packed into one exchange."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from uneven.precondition.pack import Layout, moves
from uneven.run.lines import Line, Lines


class PackedExchanges:
    """The lines of one preconditioner. Each is among all workers, so that none has to be opened anew where members or
    owners change; who has nothing for another sends it nothing.

    Args:
        lines: of the run; all workers make this object at the same time.
        name: of the part.

    Attributes:
        changing: whether workers may be lost in an exchange.
    """

    def __init__(self, lines: Lines, name: str) -> None:
        self.rank = lines.rank
        self.changing = lines.changing
        self._factors = lines.open(f"{name} factors")
        self._bases = lines.open(f"{name} bases")
        self._gradients = lines.open(f"{name} gradients")

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks of all workers."""
        return self._factors.members

    def to_owners(self, flat: Tensor, layout: Layout) -> Tensor:
        """The sum over all workers of what is this worker's, shape (numbers of its pieces,)."""
        mine = flat[slice(*layout.bound(self.rank))]
        if len(self.members) == 1:
            return mine.clone()
        incoming = [torch.empty_like(mine) for _ in layout.ranks]
        self._factors.all_to_all([flat[slice(*one)] for one in layout.bounds], incoming).wait()
        total = incoming[0]
        for one in incoming[1:]:
            total += one
        return total

    def among_those_left(self, flat: Tensor) -> Tensor:
        """The sum over all workers, without those that are lost in it, in the place of ``flat``."""
        self._factors.sum(flat).wait()
        return flat

    def in_column(self, flat: Tensor, layout: Layout) -> tuple[int, ...]:
        """Fill in what the others of this worker's column have put into their parts of ``flat``; the parts of workers
        that are lost stay as they are.

        Returns:
            Those that are lost, the same on all.
        """
        return self._fill(self._bases, flat, layout)

    def in_row(self, flat: Tensor, layout: Layout) -> None:
        """The same in its row."""
        self._fill(self._gradients, flat, layout)

    def among_all(self, flat: Tensor, layout: Layout) -> None:
        """The same among all workers."""
        self._fill(self._factors, flat, layout)

    def table(self, row: Sequence[float]) -> dict[int, list[float]]:
        """Everybody's row of numbers, by rank in ascending order; the same on all, also while workers come and go."""
        members = self.members
        rows = [torch.empty(len(row), dtype=torch.float64) for _ in members]
        there = self._factors.gather(torch.tensor(row, dtype=torch.float64), rows).wait()
        return {rank: it.tolist() for rank, it in zip(members, rows, strict=True) if rank in there}

    def move(
        self, pieces: dict[int, Tensor], sizes: Sequence[int], old: Sequence[int], new: Sequence[int], like: Tensor
    ) -> None:
        """Pieces change their owners: ``pieces``, by number, holds this worker's, and its new ones afterwards.

        Args:
            like: of the type of all pieces, and on their device.
        """
        out, into = moves(old, new, self.rank)
        members = self.members

        def packed(those: Sequence[int]) -> Tensor:
            return torch.cat([pieces.pop(one) for one in those]) if those else like.new_empty(0)

        outgoing = [packed(out.get(rank, [])) for rank in members]
        incoming = [like.new_empty(sum(sizes[one] for one in into.get(rank, []))) for rank in members]
        self._factors.all_to_all(outgoing, incoming).wait()
        for rank, found in zip(members, incoming, strict=True):
            those = into.get(rank, [])
            pieces.update(zip(those, found.split([sizes[one] for one in those]), strict=True))

    def _fill(self, line: Line, flat: Tensor, layout: Layout) -> tuple[int, ...]:
        """Among the ranks of ``layout``; nothing passes between others."""
        if len(layout.ranks) == 1:
            return ()
        mine, nothing = flat[slice(*layout.bound(self.rank))], flat[:0]
        before = flat.clone() if self.changing else flat
        outgoing = [mine if one in layout.ranks else nothing for one in line.members]
        incoming = [flat[slice(*layout.bound(one))] if one in layout.ranks else nothing for one in line.members]
        there = line.all_to_all(outgoing, incoming).wait()
        lost = tuple(one for one in layout.ranks if one not in there)
        for one in lost:
            flat[slice(*layout.bound(one))] = before[slice(*layout.bound(one))]
        return lost
