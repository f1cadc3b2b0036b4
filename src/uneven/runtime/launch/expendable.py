"""The expendable workers: each has declared that the others can continue without it. Imports no torch."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from uneven.runtime.launch.failure import Death, Left
from uneven.runtime.launch.hang_detection import STOPPED, SilenceMeter, in_words, stopped
from uneven.runtime.rundir import Expendable, clear_begun, clear_expendable, expendable_of

_log = logging.getLogger(__name__)


class ExpendableWorkers:
    """The expendable and the dead workers of this machine; workers mark themselves in ``run_directory``."""

    def __init__(self, run_directory: Path | None, *, throttled: bool = False) -> None:
        self.lost: dict[int, Death] = {}  # rank → end of each expendable worker
        self.silent: dict[int, str] = {}  # rank → description of each worker killed because it hung
        self.left: dict[int, Left] = {}  # rank → end of each worker with exit code 0
        self.waits_s = 0.0  # longest wait of a worker for another one; 0 if none was expendable
        self._throttled = throttled
        self._pulse = SilenceMeter()
        self._told: set[int] = set()
        self._run_directory = run_directory

    def begin(self, ranks: Sequence[int]) -> None:
        """Reset all records because these ranks are about to be started or restarted."""
        for memory in (self.lost, self.silent, self.left, self._told):
            memory.clear()
        if self._run_directory is not None:
            for rank in ranks:
                clear_expendable(self._run_directory, rank)
                clear_begun(self._run_directory, rank)

    def bears(self, rank: int) -> bool:
        """Return whether the others can continue without this worker."""
        said = self._said(rank)
        return said is not None and said.training and not said.stops

    def leaves(self, rank: int, pid: int) -> None:
        """Record that a worker ended with exit code 0."""
        if rank not in self.left:
            said = self._said(rank)
            begun = said is None or said.training or said.idles
            # An orderly end of Python closes the session and removes its mark. A remaining mark shows os._exit or
            # similar.
            self.left[rank] = Left(rank=rank, pid=pid, unclosed=said is not None, begun=begun)

    def stops(self, rank: int) -> str:
        """Return the declared reason why the others cannot continue without it, or ""."""
        said = self._said(rank)
        return "" if said is None else said.stops

    def hanging(self, alive: Mapping[int, int]) -> list[int]:
        """Return the ranks to kill, of those ``alive`` (rank → process id): only hanging workers are left here."""
        saids = {rank: said for rank in alive if (said := self._said(rank)) is not None}
        silent = {
            rank: in_words(alive[rank], silent_s)
            for rank, said in saids.items()
            if (silent_s := self._pulse.silent_s(alive[rank], said.timeout_s)) > said.timeout_s
            and (not said.idles or stopped(alive[rank]))
        }
        # Only hanging workers are left, so no event would ever end the run.
        if silent and len(silent) == len(alive):
            self.silent = silent | self.silent
            return list(silent)
        for rank in silent.keys() - self._told:
            if not saids[rank].training:
                continue  # the others wait for it and report that when their timeout expires
            # Reported once: the others continue without it, and it may recover.
            self._told.add(rank)
            then = "the others continue without it; when they have ended it is killed"
            _log.warning(f"rank {rank} (process {alive[rank]}) {silent[rank]}; {then}")
        return []

    def missed(self, alive: Mapping[int, int]) -> list[int]:
        """Return the stopped ranks of ``alive`` (rank → process id), which may have caused the failure just found."""
        # The throttle stops and continues workers all the time, so a stopped one means nothing.
        found = [rank for rank, pid in alive.items() if not self._throttled and stopped(pid)]
        self.silent = dict.fromkeys(found, STOPPED) | self.silent
        return found

    def _said(self, rank: int) -> Expendable | None:
        said = None if self._run_directory is None else expendable_of(self._run_directory, rank)
        if said is not None:
            self.waits_s = max(self.waits_s, said.timeout_s)
        return said
