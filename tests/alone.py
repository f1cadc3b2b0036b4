"""Tests that run side by side, but for those that have to be alone.

``make test`` runs several processes (pytest-xdist), two more than there are cores, for much of what tests take is
waiting: for a time-out, for a process to end. On two cores four processes took 497 s where three took 549. A test
marked ``alone`` measures or limits processor time, so another test beside it would be measured too: it waits until
the other processes are between two tests and keeps them there. These tests come first and in one piece. The long ones
begin two processes' pieces, the longest first, and no more, for each of them is several processes itself; in one piece
they were the last to end, for a piece's beginning is not taken over by others. In a single process nothing is locked.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

LONG_S = 10.0
"""A test marked ``slow`` takes about so long, where the mark says nothing else."""

HEAD_START_S = 0.3
"""By so much the others begin later, so that the tests that are alone do not wait for the first, the longest ones."""

KEY = pytest.StashKey["Room"]()


class Room:
    """A place for many tests at a time, or for one that is alone; shared by processes through files in ``folder``.

    Who waits to be alone holds the door: otherwise two processes with short tests would let nobody else in.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._new = True
        self._door, self._room = ((folder / name).open("a") for name in ("door.lock", "room.lock"))
        self._alone = False

    def enter(self, alone: bool) -> None:
        """Wait for a place. Who is alone already stays so."""
        if self._alone and alone:
            return
        if self._new and not alone:
            time.sleep(HEAD_START_S)
        self._new = False
        fcntl.flock(self._door, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self._door, fcntl.LOCK_UN)
        self._alone = alone

    def leave(self) -> None:
        """Let others in."""
        fcntl.flock(self._room, fcntl.LOCK_UN)
        self._alone = False

    def close(self) -> None:
        """Leave for good."""
        self._door.close()
        self._room.close()


def is_alone(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("alone") is not None


def length_s(item: pytest.Item) -> float:
    """About how long a test takes: 0 if not long, infinite if it has to be alone."""
    slow = item.get_closest_marker("slow")
    return math.inf if is_alone(item) else 0.0 if slow is None else float(slow.args[0] if slow.args else LONG_S)


def dealt(lengths_s: Sequence[float], processes: int) -> list[int]:
    """The order of tests of these lengths; xdist cuts it into pieces of one size, one for each process."""
    alone = [test for test, one in enumerate(lengths_s) if math.isinf(one)]
    rest = [test for test, one in enumerate(lengths_s) if not one]
    long = sorted(set(range(len(lengths_s))) - {*alone, *rest}, key=lambda test: (-lengths_s[test], test))
    halves = (long[::2], long[1::2]) if processes > 1 else (long, [])
    first = alone + halves[0]
    room = max(len(lengths_s) // processes - len(first), 0)
    return first + rest[:room] + halves[1] + rest[room:]


def pytest_xdist_auto_num_workers() -> int:
    return len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)) + 2


@pytest.hookimpl(trylast=True)  # after -k and -m have left out what is not wanted
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    processes = config.workerinput["workercount"] if hasattr(config, "workerinput") else 1
    items[:] = [items[test] for test in dealt([length_s(item) for item in items], processes)]


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
    room.enter(is_alone(item))
    try:
        return (yield)
    finally:
        if not (is_alone(item) and is_alone(nextitem)):
            room.leave()
