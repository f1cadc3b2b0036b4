"""Which workers the others can do without, as these have said themselves. Imports no torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from uneven.launch.failure import Death, Left
from uneven.launch.silence import SilenceMeter, in_words, stopped
from uneven.rundir import Expendable, clear_expendable, expendable_of


class ExpendableWorkers:
    """The workers of this machine: which are expendable, which have died.

    Args:
        run_directory: where they say it; without one nobody does.
        throttled: workers are stopped and continued by the launcher, so that it means nothing.

    Attributes:
        lost: rank → its end, of those without whom the others go on.
        silent: rank → what is known of it, of those that were killed because they hung.
        stopped: ranks that somebody had stopped when the newest failure was found.
        left: rank → its end, of those that have ended with exit code 0.
    """

    def __init__(self, run_directory: Path | None, *, throttled: bool = False) -> None:
        self.lost: dict[int, Death] = {}
        self.silent: dict[int, str] = {}
        self.stopped: tuple[int, ...] = ()
        self.left: dict[int, Left] = {}
        self._throttled = throttled
        self._pulse = SilenceMeter()
        self._told: set[int] = set()
        self._run_directory = run_directory
        self._ranks: tuple[int, ...] = ()

    def begin(self, ranks: Sequence[int]) -> None:
        """These are about to be started, perhaps once more."""
        for memory in (self.lost, self.silent, self.left, self._told):
            memory.clear()
        self._ranks = tuple(ranks)
        if self._run_directory is not None:
            for rank in ranks:
                clear_expendable(self._run_directory, rank)

    @property
    def spoken(self) -> bool:
        """Whether any worker has said what its death means."""
        return bool(self.lost) or any(self._said(rank) is not None for rank in self._ranks)

    def bears(self, rank: int) -> bool:
        """Whether the others can go on without this worker, as it has said."""
        said = self._said(rank)
        return said is not None and said.training and not said.stops

    def leaves(self, rank: int, pid: int) -> None:
        """It has ended with exit code 0. Its session is closed by then, unless Python has not ended in order."""
        if rank not in self.left:
            said = self._said(rank)
            begun = said is None or said.training or said.idles
            self.left[rank] = Left(rank=rank, pid=pid, unclosed=said is not None, begun=begun)

    def stops(self, rank: int) -> str:
        """Why they cannot, where it has said so."""
        said = self._said(rank)
        return "" if said is None else said.stops

    def hanging(self, alive: Mapping[int, int]) -> list[int]:
        """Ranks that hang while all others here have ended, so that nobody else would ever end the run.

        One that hangs while others train is reported once: they go on without it, and it may go on later.

        Args:
            alive: rank → process, of all that have not ended.
        """
        saids = {rank: said for rank in alive if (said := self._said(rank)) is not None}
        silent = {
            rank: in_words(alive[rank], silent_s)
            for rank, said in saids.items()
            if (silent_s := self._pulse.silent_s(alive[rank], said.timeout_s)) > said.timeout_s
            and (not said.idles or stopped(alive[rank]))
        }
        if silent and len(silent) == len(alive):
            self.silent = silent | self.silent
            return list(silent)
        for rank in silent.keys() - self._told:
            if not saids[rank].training:
                continue  # the others wait for it, and say so when their time is over
            self._told.add(rank)
            then = "the others go on without it, and once they have ended it is killed"
            print(f"uneven: rank {rank} (process {alive[rank]}) {silent[rank]}; {then}", file=sys.stderr)
        return []

    def missed(self, alive: Mapping[int, int]) -> tuple[int, ...]:
        """Somebody has failed: who of the others was stopped, and so may be what it has missed.

        Args:
            alive: rank → process.
        """
        self.stopped = () if self._throttled else tuple(rank for rank, pid in alive.items() if stopped(pid))
        return self.stopped

    def _said(self, rank: int) -> Expendable | None:
        return None if self._run_directory is None else expendable_of(self._run_directory, rank)
