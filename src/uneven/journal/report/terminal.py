"""The view of a run in a terminal: live, and as a table afterwards."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from rich.live import Live

from uneven.errors import JournalError, access
from uneven.journal.reader import Follower
from uneven.journal.report.console import Console
from uneven.journal.report.pure.live_state import RunProgress
from uneven.journal.report.pure.text import count, percent, seconds, span
from uneven.journal.report.screen import final, live
from uneven.journal.report.track.tracking import LiveTracking
from uneven.policy.core.records import RunRecord

PLAIN_LINE_EVERY_S = 10.0  # interval of lines if the output is not a terminal


class WatchedRun:
    """A run directory, whose journal may appear later, and its state; ``tracking`` also gets all records."""

    def __init__(self, run: Path, tracking: LiveTracking | None = None) -> None:
        self.run = run
        self._tracking = tracking
        self.state = RunProgress()
        self._follower = Follower(run)

    def update(self) -> RunProgress:
        self._feed()
        if self.state.rewound:
            # A resumed run repeats iterations that were counted, so start again from the beginning.
            self.state, self._follower = RunProgress(), Follower(self.run)
            if self._tracking is not None:
                self._tracking.rewind()
            self._feed()
        return self.state

    def _feed(self) -> None:
        records = list(self._follower.poll())
        self.state.feed(records)
        if self._tracking is not None:
            self._tracking.feed(records, final=self.state.ended)

    def end(self) -> None:
        if self._tracking is not None:
            self._tracking.end(self.state.total())


def watch(
    run: Path,
    *,
    every_s: float = 0.5,
    console: Console | None = None,
    stop: Callable[[], bool] | None = None,
    tracking: LiveTracking | None = None,
) -> RunProgress:
    """Show a run until it has ended, was stopped, or Ctrl-C; then print its final table.

    Args:
        run: the run directory; it must exist, its journal may appear later.
        every_s: seconds between two updates.
        console: the output; by default the standard output.
        tracking: gets all records until the end or Ctrl-C.
        stop: called at every update; True ends the view.

    Returns:
        The state of the final table.

    Raises:
        JournalError: no such directory, or the journal cannot be read.
    """
    with access(f"look into {run}", JournalError):
        if not run.is_dir():
            raise JournalError(f"no run directory {run}: runs are kept under runs/ unless told otherwise")
    console = console or Console()
    watched = WatchedRun(run, tracking)
    try:
        _follow(watched, console, every_s, stop or (lambda: False))
    except KeyboardInterrupt:
        console.print("No longer watching; the run goes on.", style="dim")
    watched.end()
    console.print(final(watched.state, run.name, console.width))
    return watched.state


def _follow(watched: WatchedRun, console: Console, every_s: float, stop: Callable[[], bool]) -> None:
    if _over(watched.update()) or stop():
        watched.update()
        return
    with Live(console=console, auto_refresh=False, transient=True, screen=False) as view:
        said_s = time.monotonic()
        while True:
            over = stop() or _over(watched.state)  # before the last update, so that it misses no record
            state = watched.update()
            if over:
                return
            if console.is_terminal:
                view.update(live(state, watched.run.name, console.width, console.height), refresh=True)
            elif time.monotonic() - said_s >= PLAIN_LINE_EVERY_S:
                said_s = time.monotonic()
                console.print(plain_line(state))
            time.sleep(every_s)


def plain_line(state: RunProgress) -> str:
    if state.last is None:
        return f"waiting for the first {state.iteration_name}"
    now, of = state.now(), f"/{state.planned}" if state.planned else ""
    line = (
        f"{state.iteration_name} {state.last.iteration + 1}{of}, {count(now.samples_per_s)} samples/s, "
        f"{seconds(now.iteration_s)} per {state.iteration_name}, waiting {percent(now.wait_share)}"
    )
    left_s = state.time_left_s()
    return f"{line}, {span(left_s)} left" if left_s == left_s else line


def _over(state: RunProgress) -> bool:
    # Processes may have ended without an end record, by a crash or a kill.
    return state.ended or (bool(state.runs) and all(_gone(run) for run in state.runs.values()))


def condition(state: RunProgress) -> str:
    """Return "waiting" before the first record, "running", "finished", or "stopped" by a crash or a kill."""
    if not state.runs:
        return "waiting"
    return "finished" if state.ended else "stopped" if _over(state) else "running"


def _gone(run: RunRecord) -> bool:
    """Return whether this worker ran on this machine and has ended; False if unknown."""
    if run.world == "simulated":
        return True
    if run.host != socket.gethostname():
        return False
    try:
        process = psutil.Process(run.pid)
        anew = process.create_time() > run.started_at_s + 1.0  # another process has got the same id
        return anew or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
