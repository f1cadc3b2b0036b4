"""A process that talks with the one that started it, and the one place where all of them are listened to."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import select
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

from uneven.errors import ConfigError, PeerError, TrainingError, UnevenError
from uneven.fleet.place.pulse import Awake, Watched

_PATIENCE_S = 5.0

_LONGEST_MESSAGE_S = 60
"""A process that does not take a message, or does not come to the end of one, for so long is ended."""

METHOD = "forkserver"
"""How processes are started: each is forked from one that has imported torch and done nothing else, so it starts in
milliseconds and shares that memory. It is no copy of the user's process, as with plain ``fork``."""

_IMPORTED = ("torch", "torch._dynamo", "numpy", "uneven.fleet.member.host", "uneven.fleet.stream.preprocess")
"""The second is what torch imports, for a second and a half, when the first optimizer is made."""


def starter() -> BaseContext:
    """The way to start processes. What the server imports beforehand is settled by whoever starts it first."""
    context = multiprocessing.get_context(METHOD)
    context.set_forkserver_preload(list(_IMPORTED))
    return context


class Events:
    """Whom to call when something can be read.

    Attributes:
        awake: seconds in which anybody could have been heard.
    """

    def __init__(self) -> None:
        self.awake = Awake()
        self._selector = selectors.DefaultSelector()
        self._calls: dict[int, Callable[[], None]] = {}

    def add(self, source: int, call: Callable[[], None]) -> None:
        """Call ``call`` whenever the file descriptor ``source`` can be read."""
        self._selector.register(source, selectors.EVENT_READ)
        self._calls[source] = call

    def remove(self, source: int) -> None:
        """No longer; to be said before it is closed. Twice is no error."""
        if self._calls.pop(source, None) is not None:
            self._selector.unregister(source)

    def wait(self, timeout_s: float) -> None:
        """Wait for the next ones, at most so long, and call."""
        ready = self._selector.select(timeout_s)
        self.awake.tick()
        for key, _ in ready:
            call = self._calls.get(key.fd)
            if call is not None:  # an earlier one may have removed it
                call()

    def close(self) -> None:
        """Forget all."""
        self._calls.clear()
        self._selector.close()


class Child(Watched):
    """A process with a connection to it.

    Args:
        target: called in the process with its end of the connection, then ``arguments``.
        heard: called with this child and each message of it.
        died: called with this child once, when it has ended without having been told to.
        daemon: it may start no processes of its own.

    Raises:
        ConfigError: the arguments cannot be pickled.
        TrainingError: what starts processes was killed.
    """

    def __init__(
        self,
        events: Events,
        name: str,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        *,
        heard: Callable[[Child, Any], None],
        died: Callable[[Child], None],
        daemon: bool = True,
    ) -> None:
        super().__init__(events.awake)
        self.name = name
        self._events = events
        self._heard = heard
        self._died = died
        context = starter()
        self._connection, other = context.Pipe()
        _limit(self._connection)
        self.process = context.Process(  # type: ignore[attr-defined]
            target=_begin, args=(target, other, *arguments), name=name, daemon=daemon
        )
        try:
            self.process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self._connection.close()
            raise ConfigError(
                f"{name}: what it needs cannot be sent to another process ({error}): data sets, transforms and losses "
                f"must be made of classes and functions at the top level of a module"
            ) from error
        except (EOFError, ConnectionError) as error:
            self._connection.close()
            raise TrainingError(
                f"{name} could not be started: the process that starts others was killed; the same call goes on"
            ) from error
        finally:
            other.close()
        events.add(self._connection.fileno(), self._listen)
        events.add(self.process.sentinel, self._ended)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return int(self.process.pid)

    def send(self, message: Any) -> None:
        """Say something. To one that has died it is said in vain; its death is heard of by itself."""
        self.touched()
        try:
            self._connection.send(message)
        except BlockingIOError:
            self.process.kill()
        except OSError:
            pass

    def close(self) -> None:
        """Let it end, or make it. Twice is no error."""
        self._forget()
        self.process.join(_PATIENCE_S)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()

    def hang_up(self) -> None:
        """Tell it to end, without waiting."""
        self._forget()

    def end(self) -> None:
        """End it now, whatever it does; one that waits for a process that is gone would not listen. Twice is fine."""
        self._forget()
        self.process.kill()
        self.process.join()

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        self.process.join(_PATIENCE_S)
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"exit code {code}"
        return signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"

    def _listen(self) -> None:
        try:
            message = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._events.remove(self._connection.fileno())  # its end is heard of by the sentinel
            return
        except BlockingIOError:
            self.process.kill()
            return
        if not self.signals(message):
            self._heard(self, message)

    def _ended(self) -> None:
        while not self._connection.closed:
            try:
                if not self._connection.poll():
                    break
                message = self._connection.recv()
            except (EOFError, OSError):
                break
            if not self.signals(message):
                self._heard(self, message)
        if not self._connection.closed:
            self._forget()
            self._died(self)

    def _forget(self) -> None:
        if not self._connection.closed:
            self._events.remove(self._connection.fileno())
            self._events.remove(self.process.sentinel)
            self._connection.close()


def _begin(target: Callable[..., None], connection: Connection, *arguments: Any) -> None:
    """In the new process: end quietly when the other one is gone, and leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_other, args=(connection.fileno(),), daemon=True).start()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        target(connection, *arguments)


def _end_with_the_other(line: int) -> None:
    """When nobody is at the other end any more: give this process time to end by itself, then end it.

    It may be in the user's code and never come out; the run was killed, so nobody else would end it.
    """
    gone = select.poll()
    gone.register(line, 0)  # its being closed there, not what can be read
    gone.poll()
    time.sleep(_PATIENCE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _limit(connection: Connection) -> None:
    """Let reading and writing fail that is not done in time: a process that was stopped must not stop this one."""
    limit = struct.pack("@ll", _LONGEST_MESSAGE_S, 0)
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            line.setsockopt(socket.SOL_SOCKET, option, limit)


@contextlib.contextmanager
def telling(tell: Callable[[str], None], lost: Callable[[str], None] | None = None) -> Iterator[None]:
    """What the user's code raises in here is told to the other process, and ends this one without a second report.

    Of an error of ours only the words are told, of any other one the traceback.

    Args:
        lost: told instead that a worker beside this one is missing, which says nothing of the user's code here.
    """
    import traceback

    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except PeerError as error:
        (lost or tell)(str(error))
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # the process ends with it
        raise
    except BaseException as error:
        tell(str(error) if isinstance(error, UnevenError) else traceback.format_exc())
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # the process ends with it
        raise
