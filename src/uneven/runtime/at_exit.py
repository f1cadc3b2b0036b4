"""Finalizers that run while the program can still send messages: of sessions, and of connections to servers.

At the end of a program, pyzmq stops the thread that owns the memory of messages sent without a copy. After that, no
large message is sent. Objects' finalizers run later, so those registered here run before.
"""

import atexit
import sys
import threading
import weakref
from contextlib import ExitStack
from functools import lru_cache
from types import TracebackType
from typing import Any

_ends = threading.Event()
_endings: "list[weakref.finalize[..., Any]]" = []


def ends_with_the_program(ending: "weakref.finalize[..., Any]") -> None:
    """Call a finalizer when the program ends, unless it has run before; the newest one first."""
    _registered()
    _endings[:] = [*(one for one in _endings if one.alive), ending]


def program_ends() -> bool:
    """Return whether the program is ending; works after the first call of :func:`ends_with_the_program`."""
    return _ends.is_set()


@lru_cache(maxsize=1)
def _registered() -> None:
    import zmq.utils.garbage  # noqa: F401 - later registrations run earlier, so pyzmq must register its end first

    atexit.register(_end)


def _end() -> None:
    _ends.set()
    with ExitStack() as stack:  # last in, first out
        for ending in _endings:
            stack.push(_told)
            stack.callback(ending)


def _told(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
    """Report an error and continue with the other finalizers, as the interpreter does."""
    if kind is not None and error is not None:
        sys.excepthook(kind, error, trace)
    return True
