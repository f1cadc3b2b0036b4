"""The run in a terminal: live, and as a table afterwards."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from rich.live import Live

from uneven.core.records import RunRecord
from uneven.errors import JournalError, access
from uneven.journal.reader import Follower
from uneven.report.console import Console
from uneven.report.screen import final, live
from uneven.report.state import RunProgress
from uneven.report.text import count, percent, seconds, span
from uneven.report.track.session import LiveTracking

PLAIN_LINE_EVERY_S = 10.0
"""Where there is no terminal to draw on (a log file), one line is printed so often."""


class WatchedRun:
    """A run directory and its state, kept together.

    Args:
        run: the run directory; its journal may appear later.
        tracking: gets all records, too.
    """

    def __init__(self, run: Path, tracking: LiveTracking | None = None) -> None:
        self.run = run
        self._tracking = tracking
        self.state = RunProgress()
        self._follower = Follower(run)

    def update(self) -> RunProgress:
        """Read what is new."""
        self._feed()
        if self.state.rewound:
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
        """The run has ended, or nobody looks at it any more."""
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
    """Show a run until it has ended, was stopped, or Ctrl-C; then its final table.

    A run that has ended already gets its final table at once. A run whose processes are all gone from this
    machine without saying that they have ended is taken for stopped.

    Args:
        run: the run directory; it must exist, its journal may appear later.
        every_s: seconds between two looks.
        console: where to draw; the standard output by default.
        tracking: gets everything that the run writes, until its end or Ctrl-C.
        stop: asked at every look; true ends the view, for a caller that knows when its workers are done.

    Returns:
        The state that the final table was made from.

    Raises:
        JournalError: no such directory, or a journal that cannot be read.
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
            over = stop() or _over(watched.state)  # asked before the last look, so that nothing is missed
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
    """Where the run stands, in one line without colours."""
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
    return state.ended or (bool(state.runs) and all(_gone(run) for run in state.runs.values()))


def _gone(run: RunRecord) -> bool:
    """Whether this worker ran on this machine and runs no longer; false if that cannot be known."""
    if run.world == "simulated":
        return True
    if run.host != socket.gethostname():
        return False
    try:
        process = psutil.Process(run.pid)
        anew = process.create_time() > run.started_at_s + 1.0  # somebody else got the number since
        return anew or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
