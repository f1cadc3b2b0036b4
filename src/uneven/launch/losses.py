"""Which workers the others can do without, as these have said themselves. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from uneven.launch.failure import Death
from uneven.rundir import loss_of, unsay_loss


class Losses:
    """Of the workers of this machine.

    Args:
        run_directory: where they say it; without one nobody does.

    Attributes:
        lost: rank → its end, of those without whom the others go on.
    """

    def __init__(self, run_directory: Path | None) -> None:
        self.lost: dict[int, Death] = {}
        self._run_directory = run_directory
        self._ranks: tuple[int, ...] = ()

    def begin(self, ranks: Sequence[int]) -> None:
        """These are about to be started, perhaps once more."""
        self.lost.clear()
        self._ranks = tuple(ranks)
        if self._run_directory is not None:
            for rank in ranks:
                unsay_loss(self._run_directory, rank)

    @property
    def spoken(self) -> bool:
        """Whether any worker has said what its death means."""
        return bool(self.lost) or any(self._said(rank) is not None for rank in self._ranks)

    def borne(self, rank: int) -> bool:
        """Whether the others can go on without this worker, as it has said."""
        return self._said(rank) == ""

    def stops(self, rank: int) -> str:
        """Why they cannot, where it has said so."""
        return self._said(rank) or ""

    def _said(self, rank: int) -> str | None:
        return None if self._run_directory is None else loss_of(self._run_directory, rank)
