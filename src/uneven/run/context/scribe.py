"""Writes this rank's journal, if there is one, and prints important messages."""

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from uneven.errors import NonFiniteError
from uneven.journal import END, LEFT, PLAN, BackgroundWriter, Writer, plan_message, rank_path
from uneven.policy.core.pace import PACE, Pace
from uneven.policy.core.records import SHARE, EventRecord, Record, RunRecord, ScalarRecord, SplitRecord
from uneven.policy.core.run_config import RunConfig
from uneven.runtime.frames import warn as warn_user
from uneven.runtime.world import World

_log = logging.getLogger(__name__)

_SPOKEN = 3  # events of one kind that are also printed; the journal has all of them

FAILED = "failed"  # This rank's program ends with an error, which the message names.


class Scribe:
    """Writes records to the journal, if there is a directory; raises JournalError if it cannot be written there."""

    def __init__(
        self,
        world: World,
        directory: str | Path | None,  # the run directory, or None
        config: RunConfig,
        versions: dict[str, str],
        pace: Pace | None = None,  # of this run's workers; None if unknown
    ) -> None:
        self.rank = world.rank
        self.speaks = world.rank == 0  # whether this worker writes the records that are the same on all workers
        self.iteration = 0
        self.counts: Counter[str] = Counter()  # event → number of events of this kind
        self._left = False  # whether this worker has left and the others continue
        # Errors that are older than this scribe: a notebook keeps those of earlier cells.
        self._old = (sys.exception(), getattr(sys, "last_value", None))
        self._writer = None
        if directory is not None:
            self._writer = BackgroundWriter(Writer(rank_path(Path(directory), world.rank)))
        settings = asdict(config)
        if world.share is not None:
            settings[SHARE] = world.share
        if pace is not None:
            settings[PACE] = pace.value
        self.write(
            RunRecord(
                run=Path(directory).name if directory is not None else "",
                rank=world.rank,
                world_size=world.size,
                host=world.host,
                pid=os.getpid(),
                started_at_s=time.time(),
                world=world.kind,
                settings=settings,
                versions=versions,
            )
        )

    @property
    def writing(self) -> bool:
        return self._writer is not None

    def write(self, record: Record | Callable[[], Record]) -> None:
        """Append a record, or a function that makes one in the writer's thread."""
        if self._writer is not None:
            self._writer.write(record)

    def take_spent_s(self) -> float:
        """Return the processor time of the writer since the last call, in seconds."""
        return self._writer.take_spent_s() if self._writer is not None else 0.0

    def scalar(self, name: str, value: float, weight: float = 1.0) -> None:
        """Append a number of ``session.log``; ``weight`` is its weight in the mean over all workers."""
        self.write(
            ScalarRecord(
                rank=self.rank, iteration=self.iteration, at_s=time.time(), name=name, value=value, weight=weight
            )
        )

    def event(self, event: str, message: str, warn: bool = False, rank: int | None = None) -> None:
        """Append an event; with ``warn``, also issue a RuntimeWarning for the first few of its kind."""
        who = self.rank if rank is None else rank
        self.write(EventRecord(rank=who, iteration=self.iteration, at_s=time.time(), event=event, message=message))
        self.counts[event] += 1
        if warn and self.counts[event] <= _SPOKEN:
            warn_user(f"uneven: {message}")

    def split(self, record: SplitRecord) -> None:
        """Append a new split, on one rank because all decide the same one."""
        if self.speaks:
            self.write(record)

    def complain(self, rank: int, iteration: int, text: str) -> None:
        """Append that the ranks have rejected the report of one of them."""
        if self.speaks:
            self.event("bad-report", f"iteration {iteration}: {text}", rank=rank)

    def say(self, text: str, event: str = "") -> None:
        """Print a message about members, and append it as an event if it has a name."""
        self._left = self._left or event == LEFT
        if event:
            self.event(event, text)
        _log.info(text)

    def plan(self, iterations: int) -> None:
        self.event(PLAN, plan_message(iterations))

    def failure(self) -> BaseException | None:
        """Return the error that ends the program: one being handled now, or an uncaught one; None if it ends well."""
        for error in (sys.exception(), getattr(sys, "last_value", None)):
            ended_well = isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and not error.code)
            if error is not None and not ended_well and not any(error is old for old in self._old):
                return error
        return None

    def close(self) -> None:
        if self._writer is None:
            return
        error = self.failure()
        if error is None and not self._left:
            self.event(END, "the run has ended")
        elif error is not None:
            self.event(FAILED, f"{type(error).__name__}: {error}")
        self._writer.close()
        self._writer = None


def tell_nonfinite(scribe: Scribe, config: RunConfig, rank: int, what: str) -> None:
    """Record a NaN or infinity of this rank; warn of the first, tenth, hundredth …; raise NonFiniteError if set so."""
    error = NonFiniteError(what, (rank,), scribe.iteration)
    scribe.event("non-finite", str(error))
    if config.nonfinite == "raise":
        raise error
    times = scribe.counts["non-finite"]
    if times == 10 ** (len(str(times)) - 1):
        warn_user(f"uneven: {error}" + (f" (number {times:,} on this rank)" if times > 1 else ""))
