"""The exchanges of a preconditioner: sums to owners, bases within columns, gradients within rows; one message each."""

from collections.abc import Sequence

import torch
from torch import Tensor

from uneven.precondition.pure.packing import Layout, moves
from uneven.run.lines import Line, Lines


class PackedExchanges:
    """The lines of one preconditioner. All workers must create it at the same time."""

    def __init__(self, lines: Lines, name: str) -> None:
        self.rank = lines.rank
        self.changing = lines.changing  # workers may be lost in an exchange
        # Each line connects all workers, so that none must be reopened when members or owners change.
        self._factors = lines.open(f"{name} factors")
        self._bases = lines.open(f"{name} bases")
        self._gradients = lines.open(f"{name} gradients")

    @property
    def members(self) -> tuple[int, ...]:
        return self._factors.members

    def to_owners(self, flat: Tensor, layout: Layout) -> Tensor:
        """Return the sum over all workers of this worker's part of ``flat`` (size,); a vector."""
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
        """Replace ``flat``, of any size, by the sum over the workers that survive the exchange, and return it."""
        self._factors.sum(flat).wait()
        return flat

    def in_column(self, flat: Tensor, layout: Layout) -> tuple[int, ...]:
        """Fill in the parts of ``flat`` (size,) of this worker's column; return the lost ranks, the same on all.

        Parts of lost workers stay unchanged.
        """
        return self._fill(self._bases, flat, layout)

    def in_row(self, flat: Tensor, layout: Layout) -> None:
        """Fill in the parts of ``flat`` (size,) of this worker's row."""
        self._fill(self._gradients, flat, layout)

    def among_all(self, flat: Tensor, layout: Layout) -> None:
        """Fill in the parts of ``flat`` (size,) of all workers."""
        self._fill(self._factors, flat, layout)

    def table(self, row: Sequence[float]) -> dict[int, list[float]]:
        """Return the numbers of each worker by ascending rank; the same on all, even if workers come and go."""
        members = self.members
        rows = [torch.empty(len(row), dtype=torch.float64) for _ in members]
        there = self._factors.gather(torch.tensor(row, dtype=torch.float64), rows).wait()
        return {rank: it.tolist() for rank, it in zip(members, rows, strict=True) if rank in there}

    def move(
        self, pieces: dict[int, Tensor], sizes: Sequence[int], old: Sequence[int], new: Sequence[int], like: Tensor
    ) -> None:
        """Move flat pieces from ``old`` to ``new`` owners, updating ``pieces`` (number → piece) of this worker in
        place.

        ``like`` has the dtype and device of all pieces.
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
        """Exchange parts among the ranks of ``layout``; others send nothing."""
        if len(layout.ranks) == 1:
            return ()
        mine, nothing = flat[slice(*layout.bound(self.rank))], flat[:0]
        before = flat.clone() if self.changing else flat  # to restore the parts of lost workers
        outgoing = [mine if one in layout.ranks else nothing for one in line.members]
        incoming = [flat[slice(*layout.bound(one))] if one in layout.ranks else nothing for one in line.members]
        there = line.all_to_all(outgoing, incoming).wait()
        lost = tuple(one for one in layout.ranks if one not in there)
        for one in lost:
            flat[slice(*layout.bound(one))] = before[slice(*layout.bound(one))]
        return lost
