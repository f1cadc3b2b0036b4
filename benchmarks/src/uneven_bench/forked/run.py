"""``python -m uneven_bench.forked.run …`` is ``uneven …``, or ``torchrun …`` if that is the first word, but its
workers are forks.

The launcher has imported torch; a worker would need three seconds of processor time to import it again. A launcher
started as a :class:`~uneven_bench.forked.scripts.Script` is forked too, so a run takes a second. Everything else is
real: the launcher, a session and a process group for each worker, its environment (in ``/proc`` too), streams,
exit codes, signals and exit handlers. For the differences see :mod:`uneven_bench.forked.scripts`.
"""

import atexit
import contextlib
import ctypes
import os
import runpy
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

from uneven_bench.forked import script_child

_ENVIRONMENT_AT = slice(47, 49)
"""The fields of ``/proc/PID/stat`` with begin and end of the environment, counted after the program's name."""


_spawned = util.spawnv_passfds

_OPTIONS = ("-u", "-P", "-I", "-S")  # options of the interpreter. All but the first have no effect in a running one.


class Forked(subprocess.Popen[bytes]):
    """A Python program in a fork of this process; poll, wait and signals are those of any other child."""

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        inherited, directory, environment = rest[3], rest[4], rest[5]
        streams = rest[9], rest[12], rest[14]  # the child's ends; −1 means those of this process
        sys.stdout.flush()
        sys.stderr.flush()
        path = list(sys.path)
        with _undisturbed():
            self.pid = os.fork()
            if self.pid == 0:
                for ours, theirs in enumerate(streams):
                    if theirs >= 0:
                        os.dup2(theirs, ours)
                if directory is not None:
                    os.chdir(directory)
                _become([*args][1:], dict(os.environ) if environment is None else environment, path, inherited)
            vars(self)["_child_created"] = True
        self._close_pipe_fds(*rest[9:15])  # type: ignore[attr-defined]


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Delay signals: Python loses exceptions of their handlers in the hooks that it calls at a fork."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)


def _become(words: list[str], environment: Mapping[str, str], path: list[str], inherited: Sequence[int]) -> NoReturn:
    """Run the program ``python WORDS…`` in this process, with these descriptors, and end."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    first = 3
    for one in (*sorted(inherited), os.sysconf("SC_OPEN_MAX")):
        os.closerange(first, one)
        first = one + 1
    vars(weakref.finalize)["_registry"].clear()  # the launcher removes its own folders
    _show(environment)
    vars(os)["execv"] = lambda program, words: _run([*words][1:], os.environ, path)
    try:
        _run(words, environment, path)
    finally:
        _end(sys.exception())


def _run(words: list[str], environment: Mapping[str, str], path: list[str]) -> NoReturn:
    """Run a program to its end, also one that another one becomes."""
    options = list(takewhile(_OPTIONS.__contains__, words))
    unbuffered = {"PYTHONUNBUFFERED": "1"} if "-u" in options else {}
    script_child.become(words[len(options) :], os.getcwd(), {**environment, **unbuffered}, path)
    sys.exit()


def _end(error: BaseException | None) -> NoReturn:
    """End as the interpreter does after this exception, or after success."""
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
        if not isinstance(error.code, int | None):
            print(error.code, file=sys.stderr)
    elif error is not None:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()  # the last of them ends the process …
    os._exit(code)  # but not if a file of the launcher's, closed here, cannot be written


def _show(environment: Mapping[str, str]) -> None:
    """Write the environment over that in ``/proc``, where others read it; new variables first, if there is not room for
    all."""
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return
    begin, end = map(int, stat.read_text().rpartition(")")[2].split()[_ENVIRONMENT_AT])
    known = [key for key, value in environment.items() if os.environ.get(key) == value]
    new = [key for key in environment if key not in known]
    text = b""
    for line in (os.fsencode(f"{key}={environment[key]}\0") for key in (*new, *known)):
        if len(text) + len(line) < end - begin:
            text += line
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def fork_server(path: bytes, words: Sequence[str], inherited: Sequence[int]) -> int:
    """Do what ``multiprocessing.util.spawnv_passfds`` does, but let a fork server be a fork of this process."""
    if "multiprocessing.forkserver" not in words[-1]:
        return _spawned(path, words, inherited)
    process = Forked([words[0], *words[words.index("-c") :]], pass_fds=inherited)  # flags are for a new interpreter
    process.returncode = 0  # multiprocessing waits for its end
    return process.pid


def fork_workers() -> None:
    """Make :mod:`uneven.runtime.jobs` in this process fork its programs, and what forks its functions."""
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    from uneven.runtime.jobs import command

    vars(command)["Popen"] = Forked
    vars(util)["spawnv_passfds"] = fork_server
    # For an unused log, torch looks up the source of all its callers: a second of processor time.
    vars(dynamic_rendezvous)["get_method_name"] = lambda depth=2: ""


def main() -> None:
    fork_workers()
    if sys.argv[1:2] == ["torchrun"]:
        from torch.distributed.run import main as torchrun

        torchrun(sys.argv[2:])
    else:
        runpy.run_module("uneven", run_name="__main__")


if __name__ == "__main__":
    main()
