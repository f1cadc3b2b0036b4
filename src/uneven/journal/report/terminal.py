"""The view of a run in a terminal: live, and as a table afterwards."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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
    """A run directory, whose journal may appear later, and its state; ``tracking`` also gets all records.

    Other threads read the state with ``lock``.
    """

    def __init__(self, run: Path, tracking: LiveTracking | None = None) -> None:
        self.run = run
        self._tracking = tracking
        self.lock = threading.Lock()
        self.state = RunProgress()
        self._follower = Follower(run)

    def update(self) -> RunProgress:
        with self.lock:
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
    prometheus: str | None = None,
) -> RunProgress:
    """Show a run until it has ended, was stopped, or Ctrl-C; then print its final table.

    Args:
        run: the run directory; it must exist, its journal may appear later.
        every_s: seconds between two updates.
        console: the output; by default the standard output.
        tracking: gets all records until the end or Ctrl-C.
        stop: called at every update; True ends the view.
        prometheus: serve metrics at this ``[HOST:]PORT``; then only ``stop`` or Ctrl-C ends the view, so that a run
            which is resumed has its metrics at the same address.

    Returns:
        The state of the final table.

    Raises:
        JournalError: no such directory, or the journal cannot be read.
        ConfigError: the metrics cannot be served there.
    """
    with access(f"look into {run}", JournalError):
        if not run.is_dir():
            raise JournalError(f"no run directory {run}: runs are below runs/ by default")
    console = console or Console()
    watched = WatchedRun(run, tracking)

    def ended() -> bool:
        return bool(stop and stop()) or (prometheus is None and over(watched.state))

    with nullcontext() if prometheus is None else _served(watched, prometheus, console):
        try:
            _follow(watched, console, every_s, ended)
        except KeyboardInterrupt:
            console.print(f"No longer watching{'' if over(watched.state) else '; the run continues'}.", style="dim")
    watched.end()
    console.print(final(watched.state, run.name, console.width))
    return watched.state


@contextmanager
def _served(watched: WatchedRun, address: str, console: Console) -> Iterator[None]:
    from uneven.journal.report.prometheus import served  # here, because its library is an extra

    with served(watched, address) as url:
        console.print(f"{watched.run.name}: metrics at {url} (until Ctrl-C)")
        yield


def _follow(watched: WatchedRun, console: Console, every_s: float, ended: Callable[[], bool]) -> None:
    watched.update()
    if ended():
        watched.update()
        return
    said = ""
    with Live(console=console, auto_refresh=False, transient=True, screen=False) as view:
        said_s = time.monotonic()
        while True:
            last = ended()  # before the last update, so that it misses no record
            state = watched.update()
            if last:
                return
            if console.is_terminal:
                view.update(live(state, watched.run.name, console.width, console.height), refresh=True)
            elif time.monotonic() - said_s >= PLAIN_LINE_EVERY_S and plain_line(state) != said:
                said_s = time.monotonic()
                said = plain_line(state)
                console.print(said)
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


def over(state: RunProgress) -> bool:
    """Return whether a run has ended, with an end record or by a crash."""
    return state.ended or (bool(state.runs) and all(_gone(run) for run in state.runs.values()))


def condition(state: RunProgress) -> str:
    """Return "waiting" before the first record, "running", "finished", or "stopped" by a crash or a kill."""
    if not state.runs:
        return "waiting"
    return "finished" if state.ended else "stopped" if over(state) else "running"


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
