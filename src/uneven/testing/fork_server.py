"""Run the fork server of :mod:`uneven.testing.ranks`: a process with torch imported that forks on request.

Run as ``python -m uneven.testing.fork_server N``. On the socket N each request names a module and brings four files:
the child's standard input, output and error, and one for the module's ``main``. The child calls ``main``. If the module
has a ``leave``, the child calls it last at exit. The server sends lines: ``["started", pid]``, and
``["ended", pid, code]`` with a negative code for a signal. When the other side closes the socket, the server kills all
children and ends.
"""

import atexit
import contextlib
import gc
import importlib
import json
import logging
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial

# Importing torch, and the imports of the first optimizer, cost a process five seconds of processor time; a fork is
# immediate. These are the modules that nearly every child uses.
IMPORTED = ("torch._dynamo", "torch.distributed", "uneven.run.session")


def main(control: socket.socket) -> Callable[[], None] | None:
    """Serve requests. Return None at the end, or in a child the function to call."""
    last: list[Callable[[], None]] = []
    atexit.register(lambda: [leave() for leave in last])
    # The last registered runs first. The end of logging may be registered already, by an import of this package.
    atexit.unregister(logging.shutdown)
    atexit.register(logging.shutdown)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # otherwise a collection in a child would touch, and so copy, all memory pages
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else _pipe()
    signal.set_wakeup_fd(wake)
    # The handler does nothing, but without one Python would not write to the wakeup pipe that ends `select`.
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    children: set[int] = set()
    with selectors.DefaultSelector() as ready:
        ready.register(control, selectors.EVENT_READ)
        ready.register(woken, selectors.EVENT_READ)
        while True:
            who = {key.fileobj for key, _ in ready.select()}
            if woken in who:
                os.read(woken, 4096)
                _bury(control, children)
            if control not in who:
                continue
            request, files, _, _ = socket.recv_fds(control, 4096, 4)
            if not request:
                for pid in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                return None
            modules = request.decode().split()
            if not sys.modules.keys() >= set(modules):
                for name in modules:
                    importlib.import_module(name)
                gc.freeze()
            # This process does nothing else, so no work is half done in the child.
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (woken, wake):
                    os.close(descriptor)
                _settle(control, files[:3])
                does = sys.modules[modules[0]]
                last += [does.leave] if hasattr(does, "leave") else []
                return partial(does.main, files[3])
            children.add(pid)
            for descriptor in files:
                os.close(descriptor)


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def _settle(control: socket.socket, files: list[int]) -> None:
    os.setsid()  # killing its group also reaches processes that a body has started
    for number, descriptor in enumerate(files):
        os.dup2(descriptor, number)
    for descriptor in files:
        os.close(descriptor)
    _send(control, "started", os.getpid())
    control.close()


def _bury(control: socket.socket, children: set[int]) -> None:
    for pid in tuple(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            children.discard(pid)
            with contextlib.suppress(BrokenPipeError):  # the client has ended too
                _send(control, "ended", pid, os.waitstatus_to_exitcode(status))


def _send(control: socket.socket, *message: str | int) -> None:
    control.send(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as line:
        begin = main(line)
    if begin is not None:
        begin()
