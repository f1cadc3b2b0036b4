"""Control one process that runs bodies for :mod:`uneven.testing.ranks`.

Messages are lines of JSON: commands on its standard input, answers on a separate pipe, so that a body may print.
"""

import contextlib
import json
import os
import signal
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from uneven.testing.fork_client import ForkServer

CHILD = "uneven.testing.rank_child"


@dataclass(frozen=True, slots=True)
class Answer:
    """The last report of a process."""

    kind: str  # "done", "failed" (`text` is the traceback), "killed" (`text` is the signal or exit code) or "busy"
    value: Any = None
    text: str = ""


class RankProcess:
    """A Python process with torch imported that waits for bodies to run. It is forked from `fork_server`."""

    def __init__(self, fork_server: ForkServer) -> None:
        self._fork_server = fork_server
        self.replies, theirs = os.pipe()
        os.set_blocking(self.replies, False)
        commands, ours = os.pipe()
        self._commands = os.fdopen(ours, "wb")
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 — lives as long as the process
        self._read_upto = 0
        self._buffer = b""
        # The process id is the process group's id too.
        self.pid = fork_server.fork((CHILD,), (commands, self._output.fileno(), self._output.fileno(), theirs))
        os.close(commands)
        os.close(theirs)

    def send(self, command: dict[str, Any]) -> None:
        """Send a command. The end of the process is reported by :meth:`poll`."""
        try:
            self._commands.write(json.dumps(command).encode() + b"\n")
            self._commands.flush()
        except BrokenPipeError:
            self._fork_server.wait(self.pid)

    def poll(self) -> Answer:
        """Return its answer, without waiting."""
        # Asked before the read, so that everything the process wrote before its end is read.
        ended = self._fork_server.code(self.pid)
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.replies, 65536):
                self._buffer += chunk
        line, found, rest = self._buffer.partition(b"\n")
        if found:
            self._buffer = rest
            return Answer(**json.loads(line))
        if ended is None:
            return Answer("busy")
        how = f"by {signal.Signals(-ended).name}" if ended < 0 else f"it ended with exit code {ended}"
        return Answer("killed", text=f"{how}\n{self._new_output()}")

    def relay_output(self) -> None:
        if text := self._new_output():
            print(text, end="")

    def stacks(self) -> str:
        """Return the stacks of its threads."""
        try:
            os.kill(self.pid, signal.SIGUSR1)
        except ProcessLookupError:  # it ended after the last poll
            return "(it has just ended)"
        text, deadline = "", time.monotonic() + 2.0
        while "most recent call first" not in text and time.monotonic() < deadline:
            time.sleep(0.05)
            text += self._new_output()
        return text or "(unknown: stopped, or busy outside of Python)"

    def kill(self) -> None:
        """Kill it and all processes that it has started, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):  # already gone, with all of its group
            os.killpg(self.pid, signal.SIGKILL)
        self._fork_server.wait(self.pid)
        self._fork_server.forget(self.pid)
        with contextlib.suppress(BrokenPipeError):  # an unread command is still buffered
            self._commands.close()
        os.close(self.replies)
        self._output.close()

    def _new_output(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        # pread, because the process that writes shares the file position
        text = os.pread(self._output.fileno(), size - self._read_upto, self._read_upto)
        self._read_upto = size
        return text.decode(errors="replace")
