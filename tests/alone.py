"""Tests that run side by side, but for those that have to be alone.

``make test`` runs several processes (pytest-xdist), one more than there are cores, for a quarter of what tests take is
waiting: for a time-out, for a process to end. A test marked ``alone`` measures or limits processor time, so another
test beside it would be measured too: it waits until the other processes are between two tests and keeps them there.
These tests come first and in one piece, then the long ones, so that at the end no process waits for another. In a
single process nothing is locked, and the order is the same.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from pathlib import Path

import pytest

KEY = pytest.StashKey["Room"]()


class Room:
    """A place for many tests at a time, or for one that is alone; shared by processes through files in ``folder``.

    Who waits to be alone holds the door: otherwise two processes with short tests would let nobody else in.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._door, self._room = ((folder / name).open("a") for name in ("door.lock", "room.lock"))
        self._alone = False

    def enter(self, alone: bool) -> None:
        """Wait for a place. Who is alone already stays so."""
        if self._alone and alone:
            return
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


def place(item: pytest.Item) -> int:
    """Alone first, long ones next, then the rest."""
    return 0 if is_alone(item) else 1 if item.get_closest_marker("slow") else 2


def pytest_xdist_auto_num_workers() -> int:
    return len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=place)


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
