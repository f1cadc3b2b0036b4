"""Carries sums to owners, bases to those who precondition, and gradients to all, each packed into one exchange."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from uneven.precondition.pack import Layout, moves
from uneven.precondition.place import RankGrid
from uneven.run.lines import Line, Lines


class PackedExchanges:
    """The lines of one preconditioner: one among all, one in each column and one in each row of its grid.

    Args:
        lines: of the run; all workers make this object at the same time.
        name: of the part.
    """

    def __init__(self, lines: Lines, name: str, grid: RankGrid) -> None:
        self.rank, self._size = lines.rank, len(lines.members)
        self._all = lines.open(f"{name} factors")
        self._column = self._open(lines, f"{name} bases", grid.columns)
        self._row = self._open(lines, f"{name} gradients", grid.rows)

    def _open(self, lines: Lines, name: str, groups: tuple[tuple[int, ...], ...]) -> Line | None:
        """This worker's own of these; none where it would be alone on it."""
        if len(groups) == 1:
            return self._all
        opened = [lines.open(name, one) for one in groups if len(one) > 1]
        return next((line for line in opened if self.rank in line.members), None)

    def to_owners(self, flat: Tensor, layout: Layout) -> Tensor:
        """The sum over all workers of what is this worker's, shape (numbers of its pieces,)."""
        mine = flat[slice(*layout.bound(self.rank))]
        if self._size == 1:
            return mine.clone()
        incoming = [torch.empty_like(mine) for _ in layout.ranks]
        self._all.all_to_all([flat[slice(*one)] for one in layout.bounds], incoming).wait()
        total = incoming[0]
        for one in incoming[1:]:
            total += one
        return total

    def in_column(self, flat: Tensor, layout: Layout) -> None:
        """Fill in what the others of this worker's column have put into their parts of ``flat``."""
        self._fill(self._column, flat, layout)

    def in_row(self, flat: Tensor, layout: Layout) -> None:
        """The same in its row."""
        self._fill(self._row, flat, layout)

    def among_all(self, flat: Tensor, layout: Layout) -> None:
        """The same among all workers."""
        self._fill(self._all, flat, layout)

    def table(self, row: Sequence[float]) -> list[list[float]]:
        """Everybody's row of numbers, by rank."""
        if self._size == 1:
            return [list(row)]
        rows = [torch.empty(len(row), dtype=torch.float64) for _ in range(self._size)]
        self._all.gather(torch.tensor(row, dtype=torch.float64), rows).wait()
        return [one.tolist() for one in rows]

    def move(
        self, pieces: dict[int, Tensor], sizes: Sequence[int], old: Sequence[int], new: Sequence[int], kind: torch.dtype
    ) -> None:
        """Pieces change their owners: ``pieces``, by number, holds this worker's, and its new ones afterwards."""
        out, into = moves(old, new, self.rank)
        some, members = torch.empty(0, dtype=kind), self._all.members

        def packed(those: Sequence[int]) -> Tensor:
            return torch.cat([pieces.pop(one) for one in those]) if those else some.new_empty(0)

        outgoing = [packed(out.get(rank, [])) for rank in members]
        incoming = [some.new_empty(sum(sizes[one] for one in into.get(rank, []))) for rank in members]
        self._all.all_to_all(outgoing, incoming).wait()
        for rank, found in zip(members, incoming, strict=True):
            those = into.get(rank, [])
            pieces.update(zip(those, found.split([sizes[one] for one in those]), strict=True))

    def _fill(self, line: Line | None, flat: Tensor, layout: Layout) -> None:
        if line is None or len(line.members) == 1:
            return
        mine = flat[slice(*layout.bound(self.rank))]
        line.all_to_all([mine] * len(line.members), [flat[slice(*layout.bound(one))] for one in line.members]).wait()
