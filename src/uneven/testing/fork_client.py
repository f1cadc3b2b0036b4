"""The client of :mod:`uneven.testing.fork_server`: starts it and asks it for processes."""

from __future__ import annotations

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


class ForkServer:
    """A process that forks others, seen from its client; started at the first request, and again if it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._ended: dict[int, int] = {}
        self._started: list[int] = []
        self._forked: set[int] = set()

    @property
    def pid(self) -> int | None:
        """PID of the fork server; None if it does not run."""
        return self._process.pid if self._process is not None else None

    def fork(self, modules: Sequence[str], files: Sequence[int]) -> int:
        """Start a process; return its PID, which is its process group, too.

        Args:
            modules: what the child does, as of :mod:`uneven.testing.fork_server`, and others to import before it is
                forked; they stay imported for all that follow.
            files: its input, output and errors, and the one that the first module's ``main`` is called with.

        Raises:
            LaunchError: the fork server has ended.
        """
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._open()
        assert self._line is not None
        socket.send_fds(self._line, [" ".join(modules).encode()], files)
        while not self._started:
            if not self._hear():
                raise LaunchError("the process that ranks are forked from has ended; look above for its traceback")
        pid = self._started.pop()
        self._forked.add(pid)
        return pid

    def code(self, pid: int) -> int | None:
        """The exit code of a process, negative for a signal; None while it runs."""
        if self._line is not None:
            self._line.setblocking(False)
            try:
                while self._hear():
                    pass
            except BlockingIOError:
                pass
            finally:
                self._line.setblocking(True)
        runs = pid in self._forked and self._alive()
        return self._ended.get(pid, None if runs else -signal.SIGKILL)

    def wait(self, pid: int, timeout_s: float | None = None) -> int | None:
        """Wait for the end of a process; its exit code as of :meth:`code`, or None if the time was up before."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while (code := self.code(pid)) is None:
            assert self._line is not None  # or all that were forked have ended
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._line], [], [], left)[0]:
                return None
        return code

    def forget(self, pid: int) -> None:
        """Drop what is known of a process that has ended."""
        self._ended.pop(pid, None)
        self._forked.discard(pid)

    def close(self) -> None:
        """End it, and with it all that it has forked."""
        if self._process is None or self._line is None:
            return
        self._line.close()
        self._process.wait()
        self._process = self._line = None
        self._ended.clear()
        self._forked.clear()

    def _open(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "uneven.testing.fork_server", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C is for the tests to answer
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _hear(self) -> bool:
        assert self._line is not None
        message = self._line.recv(256)
        if not message:
            return False
        kind, pid, *rest = json.loads(message)
        if kind == "started":
            self._started.append(pid)
        else:
            self._ended[pid] = rest[0]
        return True
