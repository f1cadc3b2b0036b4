"""Tests that run side by side, but for those that have to be alone.

``make test`` runs several processes (pytest-xdist), two more than there are cores, for much of what tests take is
waiting: for a time-out, for a process to end. On two cores four processes took 497 s where three took 549. A test
marked ``alone`` measures or limits processor time, so another test beside it would be measured too: it waits until
the other processes are between two tests. These tests come first and in one piece. The long ones begin two processes'
pieces, and no more, for each of them is several processes itself; in one piece they were the last to end, for a
piece's beginning is not taken over by others. In a single process nothing is locked.

While somebody is alone, the short tests of other processes take what it leaves of the processors: half of them, for a
minute and a half. The kernel has a class of scheduling for that, ``SCHED_IDLE``, whose processes run only where no
other one wants to. Where it does not let them leave it again (it asks for ``CAP_SYS_NICE``), they wait. Long tests
wait in any case, for their processes have time-outs.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import threading
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest

KEY = pytest.StashKey["Room"]()
ALONE, LONG, SHORT = range(3)


class Room:
    """A place for many tests at a time, or for one that is alone; shared by processes through files in ``folder``.

    Who waits to be alone holds the door: otherwise two processes with short tests would let nobody else in.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._door, self._room = ((folder / name).open("a") for name in ("door.lock", "room.lock"))
        self._alone = False
        self._scheduled = Scheduled()

    def enter(self, place: int) -> None:
        """Wait for a place, or do with what is left by who is alone. Who is alone already stays so."""
        if self._alone and place == ALONE:
            return
        if place == SHORT and self._scheduled.may_idle:
            self._scheduled.be(idle=not self._got_in())
            return
        self._scheduled.be(idle=False)
        fcntl.flock(self._door, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX if place == ALONE else fcntl.LOCK_SH)
        fcntl.flock(self._door, fcntl.LOCK_UN)
        self._alone = place == ALONE

    def _got_in(self) -> bool:
        """Whether there was a place, for nobody is alone, or waits to be."""
        try:
            for lock in (self._door, self._room):
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            fcntl.flock(self._door, fcntl.LOCK_UN)
        return True

    def leave(self) -> None:
        """Let others in."""
        fcntl.flock(self._room, fcntl.LOCK_UN)
        self._alone = False

    def close(self) -> None:
        """Leave for good."""
        self._door.close()
        self._room.close()


class Scheduled:
    """The class of scheduling of this process and all that it has started."""

    def __init__(self) -> None:
        self._idle = False
        self.may_idle = hasattr(os, "SCHED_IDLE") and may_return()

    def be(self, idle: bool) -> None:
        """Run only where nobody else wants to, or like everybody."""
        if idle != self._idle:
            for pid in _family(os.getpid()):
                for thread in glob.glob(f"/proc/{pid}/task/*"):
                    with contextlib.suppress(ProcessLookupError):
                        _set(int(Path(thread).name), idle)
            self._idle = idle


def _set(thread: int, idle: bool) -> None:
    os.sched_setscheduler(thread, os.SCHED_IDLE if idle else os.SCHED_OTHER, os.sched_param(0))


def may_return() -> bool:
    """Tried in a thread, for each has a class of its own."""
    found = []

    def attempt() -> None:
        with contextlib.suppress(PermissionError):
            _set(0, True)
            _set(0, False)
            found.append(True)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return bool(found)


def _family(pid: int) -> Iterator[int]:
    """A process, its children, theirs and so on."""
    yield pid
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in Path(path).read_text().split():
                yield from _family(int(child))


def is_alone(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("alone") is not None


def place(item: pytest.Item) -> int:
    """Where a test belongs: ``ALONE``, ``LONG`` or ``SHORT``."""
    return ALONE if is_alone(item) else LONG if item.get_closest_marker("slow") else SHORT


def dealt(places: Sequence[int], processes: int) -> list[int]:
    """The order of tests with these places; xdist cuts it into pieces of one length, one for each process."""
    alone, long, rest = ([test for test, one in enumerate(places) if one == kind] for kind in range(3))
    half = len(long) // 2 if processes > 1 else len(long)
    first = alone + long[:half]
    room = max(len(places) // processes - len(first), 0)
    return first + rest[:room] + long[half:] + rest[room:]


def pytest_xdist_auto_num_workers() -> int:
    return len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)) + 2


@pytest.hookimpl(trylast=True)  # after -k and -m have left out what is not wanted
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    processes = config.workerinput["workercount"] if hasattr(config, "workerinput") else 1
    items[:] = [items[test] for test in dealt([place(item) for item in items], processes)]


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # one of several processes, which share the folder above their own
        config.stash[KEY] = Room(Path(config.getoption("basetemp")).parent)


def pytest_unconfigure(config: pytest.Config) -> None:
    if KEY in config.stash:
        config.stash[KEY].close()


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest-timeout, whose clock does not run in here
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    room = item.config.stash.get(KEY, None)
    if room is None:
        return (yield)
    room.enter(place(item))
    try:
        return (yield)
    finally:
        if not (is_alone(item) and is_alone(nextitem)):
            room.leave()
