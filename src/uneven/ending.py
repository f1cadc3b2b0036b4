"""What has to end while the program can still send messages: sessions, and conversations with servers.

When a program ends, pyzmq stops the thread that keeps the memory of what is sent without a copy, and from then on no
large message is sent at all. The finalizers of objects run after that, so what is noted here is called before.
"""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from contextlib import ExitStack
from functools import lru_cache
from types import TracebackType
from typing import Any

_ends = threading.Event()
_endings: list[weakref.finalize[..., Any]] = []


def ends_with_the_program(ending: weakref.finalize[..., Any]) -> None:
    """Call a finalizer as soon as the program ends, unless it has been called by then; the newest one first."""
    _registered()
    _endings[:] = [*(one for one in _endings if one.alive), ending]


def program_ends() -> bool:
    """Whether the program is at its end. Known from the first call of :func:`ends_with_the_program` on."""
    return _ends.is_set()


@lru_cache(maxsize=1)
def _registered() -> None:
    import zmq.utils.garbage  # noqa: F401 - what is registered later runs earlier, and this registers its own end

    atexit.register(_end)


def _end() -> None:
    _ends.set()
    with ExitStack() as stack:  # what is put there last is called first
        for ending in _endings:
            stack.push(_told)
            stack.callback(ending)


def _told(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
    """As for a finalizer that the interpreter calls: one that fails is told, and the others are called."""
    if kind is not None and error is not None:
        sys.excepthook(kind, error, trace)
    return True
