"""Start the fork server (:mod:`uneven.testing.fork_server`) and request processes from it."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from uneven.errors import LaunchError
from uneven.runtime.system import not_on_windows


class ForkServer:
    """The client of a process that forks others. It starts at the first request, and again if it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._unread = b""
        self._ended: dict[int, int] = {}
        self._started: list[int] = []
        self._forked: set[int] = set()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def fork(self, modules: Sequence[str], files: Sequence[int]) -> int:
        """Start a process; return its PID, which is its process group. Raises `LaunchError` if the fork server ends.

        `modules` are the child's module, as in :mod:`uneven.testing.fork_server`, and others to import before the fork,
        which stay imported. `files` are its standard input, output and error, and the one for the first module's
        ``main``.
        """
        if self._process is None or self._process.poll() is not None:
            self.close()
            self.open()
        assert self._line is not None
        socket.send_fds(self._line, [" ".join(modules).encode()], files)
        while not self._started:
            if not self._hear():
                raise LaunchError("the process that ranks are forked from has ended; look above for its traceback")
        pid = self._started.pop()
        self._forked.add(pid)
        return pid

    def code(self, pid: int) -> int | None:
        """Return the exit code of a process, negative for a signal; None while it runs."""
        if self._line is not None:
            self._line.setblocking(False)
            try:
                with contextlib.suppress(BlockingIOError):
                    while self._hear():
                        pass
            finally:
                self._line.setblocking(True)
        runs = pid in self._forked and self._alive()
        # After the death of the fork server no message reports an end, so its processes count as killed.
        return self._ended.get(pid, None if runs else -signal.SIGKILL)

    def wait(self, pid: int, timeout_s: float | None = None) -> int | None:
        """Wait for the end of a process. Return its exit code as :meth:`code`, or None after the time limit."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while (code := self.code(pid)) is None:
            assert self._line is not None  # without a fork server, `code` is never None
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._line], [], [], left)[0]:
                return None
        return code

    def forget(self, pid: int) -> None:
        self._ended.pop(pid, None)
        self._forked.discard(pid)

    def close(self) -> None:
        if self._process is None or self._line is None:
            return
        self._line.close()
        self._process.wait()
        self._process = self._line = None
        self._unread = b""
        self._ended.clear()
        self._forked.clear()

    def open(self, popen: "type[subprocess.Popen[bytes]]" = subprocess.Popen) -> None:
        """Start the process."""
        not_on_windows("tests on several ranks")
        self._line, theirs = socket.socketpair()
        with theirs:
            self._process = popen(
                [sys.executable, "-m", "uneven.testing.fork_server", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches only the tests, which end this process
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _hear(self) -> bool:
        assert self._line is not None
        while b"\n" not in self._unread:  # macOS has no sockets that keep messages apart
            if not (more := self._line.recv(256)):
                return False
            self._unread += more
        message, _, self._unread = self._unread.partition(b"\n")
        kind, pid, *rest = json.loads(message)
        if kind == "started":
            self._started.append(pid)
        else:
            self._ended[pid] = rest[0]
        return True
