"""A program in a separate process that ends with this one; its end is noticed within milliseconds."""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import IO, Any, Protocol, Self

from uneven.runtime.jobs.ending import Ending, How
from uneven.runtime.jobs.job_events import Events
from uneven.runtime.jobs.parent_death import bound
from uneven.runtime.system import KILL, send_signal, signals

END_WITHIN_S = 5.0  # grace period of a process that is asked to end; then it is killed


class Process(Protocol):
    """A supervised process of any kind, on any machine."""

    name: str

    @property
    def pid(self) -> int:
        """The process id on its machine; 0 while unknown."""

    @property
    def ending(self) -> Ending | None:
        """The end of the process, once noticed."""

    def ask_to_end(self) -> None:
        """Ask it to end, without waiting. Idempotent."""

    def wait(self, within_s: float | None = None) -> Ending | None:
        """Wait for its end; return None if it still runs after ``within_s``."""

    def end(self, within_s: float = END_WITHIN_S) -> Ending:
        """Ask it to end and kill it after ``within_s``. Idempotent."""

    def kill(self, *, hung: str = "") -> Ending:
        """Kill it. Idempotent; ``hung`` describes a process that is killed because it hangs."""


class Command:
    """A program, see :class:`Process`. It leads its own session and process group, so Ctrl-C does not reach it.

    On Linux the kernel kills it when the *thread* that started it ends, also by ``kill -9``. When it ends, the rest of
    its process group is killed.
    """

    def __init__(
        self,
        name: str,
        line: Sequence[str],  # program and arguments
        *,
        env: Mapping[str, str] | None = None,  # None inherits this process's
        events: Events | None = None,  # the loop that notices its end
        ended: "Callable[[Command], None]" = lambda process: None,  # called once after its end, unless waited for
        stdin: int | IO[Any] | None = DEVNULL,  # None is that of this process
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        files: Sequence[int] = (),  # descriptors that it inherits
        directory: Path | None = None,
    ) -> None:
        self.name = name
        self.ending: Ending | None = None
        self.began_s = time.monotonic()  # its start, of ``time.monotonic``
        self._told = ended
        self._events = events
        self._popen: Popen[bytes] = Popen(
            bound(line),
            env=env,
            cwd=directory,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=files,
            start_new_session=True,
            bufsize=0,
        )
        self._over = _exit_of(self._popen)
        if events is not None:
            events.add(self._over, self._ends)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def stdin(self) -> IO[bytes]:
        """The program's standard input, if it is a pipe."""
        assert self._popen.stdin is not None, f"{self.name} was started without a pipe"
        return self._popen.stdin

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal, with ``group`` also to the processes that it has started; no effect after its end."""
        if self.ending is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM if only zombies are left
                send_signal(self.pid, number, group=group)

    def ask_to_end(self) -> None:
        """Send SIGTERM, then SIGCONT because a stopped process would not handle the first."""
        for number in signals("SIGTERM", "SIGCONT"):
            self.signal(number)

    def wait(self, within_s: float | None = None) -> Ending | None:
        if self.ending is None and self._has_ended(None if within_s is None else max(0.0, within_s)):
            self._bury()
        return self.ending

    def end(self, within_s: float = END_WITHIN_S) -> Ending:
        """Send SIGTERM, and SIGKILL after ``within_s``."""
        self.ask_to_end()
        self.wait(within_s)
        return self.kill()

    def kill(self, *, hung: str = "") -> Ending:
        self.signal(KILL)
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
        self._has_ended(None)
        # Before the process is reaped: until then, its id cannot become the id of another group.
        self.signal(KILL, group=True)
        ending = Ending.of(self._popen.wait())
        self.ending = Ending(How.HUNG, hung, ending.code) if hung and ending.how is How.KILLED else ending
        if self._events is not None:
            self._events.remove(self._over)
        socket.close(self._over)
        return self.ending

    def _has_ended(self, within_s: float | None) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._over, selectors.EVENT_READ)
            return bool(selector.select(within_s))


def end_all(processes: Sequence[Process], within_s: float = END_WITHIN_S) -> list[Ending]:
    """Ask all processes to end, wait ``within_s`` for all together, kill the rest; return their ends."""
    for process in processes:
        process.ask_to_end()
    until_s = time.monotonic() + within_s
    for process in processes:
        process.wait(max(0.0, until_s - time.monotonic()))
    return [process.kill() for process in processes]


def _exit_of(process: Popen[bytes]) -> int:
    """Return a descriptor that becomes readable when a child ends: a pidfd, or the socket of a waiting thread."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(process.pid)
    ours, theirs = socket.socketpair()

    def wait() -> None:
        process.wait()
        theirs.close()

    threading.Thread(target=wait, name="uneven-exit", daemon=True).start()
    return ours.detach()
