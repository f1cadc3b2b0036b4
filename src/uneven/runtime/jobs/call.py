"""A function in a separate process, connected to the process that started it."""

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
from uneven.runtime.jobs.command import END_WITHIN_S
from uneven.runtime.jobs.ending import Ending, How
from uneven.runtime.jobs.heartbeat import Watched
from uneven.runtime.jobs.job_events import Events

_LONGEST_MESSAGE_S = 60  # a process is killed if sending or receiving one message takes longer

# Each process is forked from a server that has only imported torch: it starts in milliseconds and shares that memory.
# Plain fork would copy the user's process, with its threads' locks and its CUDA context.
METHOD = "forkserver"

IMPORTED = ("torch", "torch._dynamo", "numpy")  # torch imports the second for the first optimizer, in 1.5 s


@dataclass(frozen=True, slots=True)
class Raised:
    """The error that the function has raised, as text."""

    text: str


def starter(imported: Sequence[str] = IMPORTED) -> BaseContext:
    """Return the context that starts processes. The first call of a program determines the preloaded modules."""
    context = multiprocessing.get_context(METHOD)
    context.set_forkserver_preload(list(imported))
    return context


class Child(Watched):
    """A function in a process, see :class:`~uneven.runtime.jobs.executor.Linked`. It ends soon after this process has.

    Raises ConfigError if the arguments cannot be pickled, TrainingError if the fork server was killed.
    """

    def __init__(
        self,
        events: Events,
        name: str,
        target: Callable[..., None],  # called with its end of the connection, then the arguments
        arguments: tuple[Any, ...],
        *,
        heard: "Callable[[Child, Any], None]",  # called with each message
        ended: "Callable[[Child], None]",  # called once after its end, unless it was asked to end
        imported: Sequence[str] = IMPORTED,  # to preload, if this is the first process of the program
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
                f"{name} could not be started: the process that starts workers was killed; repeat the call to continue"
            ) from error
        finally:
            other.close()
        events.add(self._line.fileno(), self._listen)
        events.add(self.process.sentinel, self._ended)

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def send(self, message: Any) -> None:
        """Send a message. Sending to a dead process has no effect; its end is reported separately."""
        self.touched()
        try:
            self._line.send(message)
        except BlockingIOError:  # the time limit set by _limit has passed
            self._shoot()
        except OSError:  # it has died; the sentinel reports that
            pass

    def ask_to_end(self) -> None:
        """Close the connection without waiting; the process ends at its next receive or send."""
        if not self._line.closed:
            self._events.remove(self._line.fileno())
            self._line.close()

    def wait(self, within_s: float | None = None) -> Ending | None:
        """Wait for its end without receiving messages; return None if it still runs after ``within_s``."""
        if self.ending is None:
            self.process.join(within_s)
            if self.process.exitcode is not None:
                self._note()
        return self.ending

    def end(self, within_s: float = END_WITHIN_S) -> Ending:
        self.ask_to_end()
        return self.wait(within_s) or self.kill()

    def kill(self, *, hung: str = "") -> Ending:
        """Kill it and the processes that it has started. Idempotent."""
        self.ask_to_end()
        self._shoot()
        self.process.join()
        return self.ending or self._note(hung)

    def _shoot(self) -> None:
        if self.process.exitcode is None:
            self._end_group()
            self.process.kill()

    def _end_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has not called setsid yet, or the group is empty
            os.killpg(self.pid, signal.SIGKILL)

    def _note(self, hung: str = "") -> Ending:
        self._end_group()  # processes that it started and left behind
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
            self._events.remove(self._line.fileno())  # the sentinel reports its end
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
        # Messages that it sent before its end may still be in the pipe; deliver them first.
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
    return ConfigError(
        f"{name}: its arguments cannot be sent to another process ({error}): define data sets, transforms and "
        "losses as classes and functions at the top level of a module"
    )


def _begin(method: str, target: Callable[..., None], line: Connection, *arguments: Any) -> None:
    """Run `target` in the new process; end quietly if the parent has ended."""
    os.setsid()  # so that killpg reaches all processes started here
    # Daemons may not start processes, so a DataLoader could not start its workers. In the parent, this process still
    # is a daemon, so multiprocessing ends it there. `method` is the user's: workers start as they do in their program.
    multiprocessing.current_process().daemon = False
    multiprocessing.set_start_method(method, force=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    Finalize(None, _end_the_others, exitpriority=-1)  # negative: after multiprocessing has joined its own children
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
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # reported already: no second traceback
        raise


def _end_with_the_other(line: int) -> None:
    """Wait until the parent's end is closed, give this process time to end, then kill its group."""
    # The user's code may never return, and after a kill of the parent no other process would end this one.
    gone = select.poll()
    gone.register(line, 0)  # no events requested: only POLLHUP and POLLERR, which are always reported
    gone.poll()
    time.sleep(END_WITHIN_S)
    os.killpg(0, signal.SIGKILL)


def _end_the_others() -> None:
    """Kill the processes that this one has started and leaves behind, in case the parent is dead and cannot."""
    group, ended = os.getpgid(0), {os.getpid()}
    while left := [pid for pid in psutil.pids() if pid not in ended and _group_of(pid) == group]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended.update(left)  # zombies are still listed


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):  # it has ended, or belongs to another user
        return None


def _limit(line: Connection) -> None:
    """Set a timeout for reading and writing, so that a stopped process does not block this one."""
    limit = struct.pack("@ll", _LONGEST_MESSAGE_S, 0)
    with socket.socket(fileno=os.dup(line.fileno())) as end:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, limit)
    os.set_blocking(line.fileno(), True)  # socket.setdefaulttimeout changes the flags, which `end` shared


@contextlib.contextmanager
def telling(tell: Callable[[str], None], lost: Callable[[str], None] | None = None) -> Iterator[None]:
    """Report an error of the user's code with `tell`, or a missing peer with `lost`; then let it end this process."""
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
    """Return only the message of an error of uneven; the whole traceback of any other."""
    return str(error) if isinstance(error, UnevenError) else "".join(traceback.format_exception(error))
