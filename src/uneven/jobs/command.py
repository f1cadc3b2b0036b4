"""A program in a process of its own, which ends with this one; ends are heard of within milliseconds."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import IO, Any, Protocol, Self

from uneven.jobs.bound import bound
from uneven.jobs.ending import Ending, How
from uneven.jobs.events import Events

END_WITHIN_S = 5.0
"""How long a process may take to end when it is asked to; then it is killed."""


class Process(Protocol):
    """A supervised process, whatever runs in it and wherever."""

    name: str

    @property
    def pid(self) -> int:
        """Its number on its machine; 0 while it is not known."""
        ...

    @property
    def ending(self) -> Ending | None:
        """How it has ended, once that has been noticed."""
        ...

    def ask_to_end(self) -> None:
        """Ask it to end, without waiting. Twice is no error."""
        ...

    def wait(self, within_s: float | None = None) -> Ending | None:
        """Wait for its end; None if it still runs then."""
        ...

    def end(self, within_s: float = END_WITHIN_S) -> Ending:
        """Let it end, or make it. Twice is no error."""
        ...

    def kill(self, *, hung: str = "") -> Ending:
        """End it now, whatever it does. Twice is no error.

        Args:
            hung: what is known of one that is killed because it hangs.
        """
        ...


class Command:
    """A program, see :class:`Process`. It leads a session and process group of its own, so Ctrl-C does not reach it.

    On Linux the kernel kills it when the *thread* that started it ends, in whatever way, also by ``kill -9``. What it
    has started itself and left behind in its process group is killed when it ends.

    Args:
        line: program and arguments.
        env: its environment; None gives it this process's own.
        events: where its end is heard of.
        ended: called there once with this process when it has ended, unless this program has waited for that.
        stdin, stdout, stderr: as of :class:`subprocess.Popen`; no input by default.
        files: descriptors that it inherits.

    Attributes:
        began_s: when it was started, of ``time.monotonic``.
    """

    def __init__(
        self,
        name: str,
        line: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        events: Events | None = None,
        ended: Callable[[Command], None] = lambda process: None,
        stdin: int | IO[Any] = DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        files: Sequence[int] = (),
        directory: Path | None = None,
    ) -> None:
        self.name = name
        self.ending: Ending | None = None
        self.began_s = time.monotonic()
        self._told = ended
        self._events = events
        self._popen: Popen[bytes] = Popen(
            bound(line), env=env, cwd=directory, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=files,
            start_new_session=True, bufsize=0,
        )  # fmt: skip
        self._over = _exit_of(self._popen)
        if events is not None:
            events.add(self._over, self._ends)

    @property
    def pid(self) -> int:
        """Its number, which is that of its process group too."""
        return self._popen.pid

    @property
    def stdin(self) -> IO[bytes]:
        """What it reads, where that is a pipe."""
        assert self._popen.stdin is not None, f"{self.name} was started without a pipe"
        return self._popen.stdin

    def signal(self, number: int, *, group: bool = False) -> None:
        """Pass a signal on, or with ``group`` also to what it has started; in vain to one that has ended."""
        if self.ending is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses where only zombies are left
                (os.killpg if group else os.kill)(self.pid, number)

    def ask_to_end(self) -> None:
        """SIGTERM; one that is stopped is continued, or it would not hear that."""
        for number in (signal.SIGTERM, signal.SIGCONT):
            self.signal(number)

    def wait(self, within_s: float | None = None) -> Ending | None:
        if self.ending is None:
            poll = select.poll()
            poll.register(self._over, select.POLLIN)
            if poll.poll(None if within_s is None else max(0.0, within_s) * 1000):
                self._bury()
        return self.ending

    def end(self, within_s: float = END_WITHIN_S) -> Ending:
        """SIGTERM, and SIGKILL when the time is over."""
        self.ask_to_end()
        self.wait(within_s)
        return self.kill()

    def kill(self, *, hung: str = "") -> Ending:
        """SIGKILL."""
        self.signal(signal.SIGKILL)
        if self._popen.stdin is not None:
            self._popen.stdin.close()
        return self.ending or self._bury(hung)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _ends(self) -> None:
        self._bury()
        self._told(self)

    def _bury(self, hung: str = "") -> Ending:
        """Wait for its end; its group is ended while it still holds the number of it."""
        select.select([self._over], [], [])
        self.signal(signal.SIGKILL, group=True)
        ending = Ending.of(self._popen.wait())
        self.ending = Ending(How.HUNG, hung, ending.code) if hung and ending.how is How.KILLED else ending
        if self._events is not None:
            self._events.remove(self._over)
        os.close(self._over)
        return self.ending


def end_all(processes: Sequence[Process], within_s: float = END_WITHIN_S) -> list[Ending]:
    """Ask all to end, wait for all together, kill the rest; how they have ended.

    Args:
        within_s: how long all of them may take, together.
    """
    for process in processes:
        process.ask_to_end()
    until_s = time.monotonic() + within_s
    for process in processes:
        process.wait(max(0.0, until_s - time.monotonic()))
    return [process.kill() for process in processes]


def _exit_of(process: Popen[bytes]) -> int:
    """A descriptor that can be read once a child has ended; the kernel's where it has one, else a thread's pipe."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(process.pid)
    ours, theirs = os.pipe()

    def wait() -> None:
        process.wait()
        os.close(theirs)

    threading.Thread(target=wait, name="uneven-exit", daemon=True).start()
    return ours
