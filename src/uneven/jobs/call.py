"""A function in a process of its own, with a line to whoever started it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from typing import Any

import psutil

from uneven.errors import ConfigError, PeerError, TrainingError, UnevenError
from uneven.jobs.command import END_WITHIN_S
from uneven.jobs.ending import Ending, How
from uneven.jobs.events import Events
from uneven.jobs.pulse import Watched

_LONGEST_MESSAGE_S = 60
"""A process that does not take a message, or does not come to the end of one, for so long is ended."""

METHOD = "forkserver"
"""How processes are started: each is forked from one that has imported torch and done nothing else, so it starts in
milliseconds and shares that memory. It is no copy of the user's process, as with plain ``fork``."""

IMPORTED = ("torch", "torch._dynamo", "numpy")
"""The second is what torch imports, for a second and a half, when the first optimizer is made."""


@dataclass(frozen=True, slots=True)
class Raised:
    """What the function has raised, as it travels."""

    text: str


def starter(imported: Sequence[str] = IMPORTED) -> BaseContext:
    """The way to start processes. What the server imports beforehand is settled by whoever starts it first."""
    context = multiprocessing.get_context(METHOD)
    context.set_forkserver_preload(list(imported))
    return context


class Child(Watched):
    """A function in a process, see :class:`~uneven.jobs.place.Linked`. It ends soon after this process has.

    Args:
        target: called in the process with its end of the line, then ``arguments``.
        heard: called with this process and each message of it.
        ended: called with this process once when it has ended, unless it was told to.
        imported: modules that the process finds imported, if it is the first that this program starts.

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
        ended: Callable[[Child], None],
        imported: Sequence[str] = IMPORTED,
    ) -> None:
        super().__init__(events.awake)
        self.name = name
        self.ending: Ending | None = None
        self._events = events
        self._heard = heard
        self._told = ended
        self._raised = ""
        context = starter(imported)
        self._line, other = context.Pipe()
        _limit(self._line)
        self.process = context.Process(  # type: ignore[attr-defined]
            target=_begin, args=(multiprocessing.get_start_method(), target, other, *arguments), name=name, daemon=True
        )
        try:
            self.process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self._line.close()
            raise unsendable(name, error) from error
        except (EOFError, ConnectionError) as error:
            self._line.close()
            raise TrainingError(
                f"{name} could not be started: the process that starts others was killed; the same call goes on"
            ) from error
        finally:
            other.close()
        events.add(self._line.fileno(), self._listen)
        events.add(self.process.sentinel, self._ended)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return int(self.process.pid)

    def send(self, message: Any) -> None:
        """Say something. To one that has died it is said in vain; its death is heard of by itself."""
        self.touched()
        try:
            self._line.send(message)
        except BlockingIOError:
            self._shoot()
        except OSError:
            pass

    def ask_to_end(self) -> None:
        """Close the line, without waiting: it ends when it next listens or speaks."""
        if not self._line.closed:
            self._events.remove(self._line.fileno())
            self._line.close()

    def wait(self, within_s: float | None = None) -> Ending | None:
        """Wait for its end, without listening; None if it still runs then."""
        if self.ending is None:
            self.process.join(within_s)
            if self.process.exitcode is not None:
                self._note()
        return self.ending

    def end(self, within_s: float = END_WITHIN_S) -> Ending:
        self.ask_to_end()
        return self.wait(within_s) or self.kill()

    def kill(self, *, hung: str = "") -> Ending:
        """SIGKILL, also for what it has started. Twice is no error."""
        self.ask_to_end()
        self._shoot()
        self.process.join()
        return self.ending or self._note(hung)

    def _shoot(self) -> None:
        if self.process.exitcode is None:
            self._end_group()
            self.process.kill()

    def _end_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it is about to begin, or nothing is left of it
            os.killpg(self.pid, signal.SIGKILL)

    def _note(self, hung: str = "") -> Ending:
        self._end_group()  # what it has started and left behind
        self._events.remove(self.process.sentinel)
        self.ending = Ending.of(self.process.exitcode)
        if hung and self.ending.how is How.KILLED:
            self.ending = Ending(How.HUNG, hung, self.ending.code)
        elif self._raised and self.ending.how is How.FAILED:
            self.ending = Ending(How.FAILED, self._raised, self.ending.code)
        return self.ending

    def _listen(self) -> None:
        try:
            message = self._line.recv()
        except (EOFError, ConnectionResetError):
            self._events.remove(self._line.fileno())  # its end is heard of by the sentinel
            return
        except BlockingIOError:
            self._shoot()
            return
        self._takes(message)

    def _takes(self, message: Any) -> None:
        if isinstance(message, Raised):
            self._raised = message.text
        elif not self.signals(message):
            self._heard(self, message)

    def _ended(self) -> None:
        while not self._line.closed:
            try:
                if not self._line.poll():
                    break
                message = self._line.recv()
            except (EOFError, OSError):
                break
            self._takes(message)
        if self.ending is None:
            self.ask_to_end()
            self.wait()
            self._told(self)


def unsendable(name: str, error: Exception) -> ConfigError:
    """What a process needs cannot be pickled."""
    return ConfigError(
        f"{name}: what it needs cannot be sent to another process ({error}): data sets, transforms and losses must be "
        f"made of classes and functions at the top level of a module"
    )


def _begin(method: str, target: Callable[..., None], line: Connection, *arguments: Any) -> None:
    """In the new process: end quietly when the other one is gone, and leave Ctrl-C to it.

    Args:
        method: how the program that started this process starts others by default.
    """
    os.setsid()
    # A DataLoader in here starts its workers as it does in the user's program; they end with this process group.
    # The program still counts this process as a daemon, and ends it when it ends.
    multiprocessing.current_process().daemon = False
    multiprocessing.set_start_method(method, force=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Finalize(None, _end_the_others, exitpriority=-1)  # once it has waited for those that it waits for by itself
    threading.Thread(target=_end_with_the_other, args=(line.fileno(),), daemon=True).start()
    try:
        target(line, *arguments)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except SystemExit:
        raise
    except BaseException as error:
        with contextlib.suppress(OSError):
            line.send(Raised(_words(error)))
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # it has been told; the process ends with it
        raise


def _end_with_the_other(line: int) -> None:
    """When nobody is at the other end any more: give this process time to end by itself, then end it.

    It may be in the user's code and never come out; the run was killed, so nobody else would end it.
    """
    gone = select.poll()
    gone.register(line, 0)  # its being closed there, not what can be read
    gone.poll()
    time.sleep(END_WITHIN_S)
    os.killpg(0, signal.SIGKILL)


def _end_the_others() -> None:
    """Kill what this process has started and leaves behind. Who started it would do so too, unless that is gone."""
    group, ended = os.getpgid(0), {os.getpid()}
    while left := [pid for pid in psutil.pids() if pid not in ended and _group_of(pid) == group]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended.update(left)  # those that are dead already are still listed


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):  # it has ended, or is none of ours
        return None


def _limit(line: Connection) -> None:
    """Let reading and writing fail that is not done in time: a process that was stopped must not stop this one."""
    limit = struct.pack("@ll", _LONGEST_MESSAGE_S, 0)
    with socket.socket(fileno=os.dup(line.fileno())) as end:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, limit)


@contextlib.contextmanager
def telling(tell: Callable[[str], None], lost: Callable[[str], None] | None = None) -> Iterator[None]:
    """What the user's code raises in here is told to the other process in its own way, and ends this one.

    Args:
        lost: told instead that a worker beside this one is missing, which says nothing of the user's code here.
    """
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except PeerError as error:
        (lost or tell)(str(error))
        raise
    except BaseException as error:
        tell(_words(error))
        raise


def _words(error: BaseException) -> str:
    """The message alone of an error of ours; the whole traceback of any other."""
    return str(error) if isinstance(error, UnevenError) else "".join(traceback.format_exception(error))
