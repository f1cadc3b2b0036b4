"""The bench's side of a run: its orders to all workers, and a reader of their logs so far."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil

from uneven_bench.elastic import logs
from uneven_bench.elastic.logs import WorkerLog
from uneven_bench.elastic.worker import CONTROL
from uneven_bench.harness.program import write_whole

_FOR_EVER = 1_000_000_000


class Orders:
    """A writer of the file that :class:`uneven_bench.elastic.worker.Control` reads. ``until``: the first step that the
    workers must not take yet."""

    def __init__(self, folder: Path, until: int = _FOR_EVER) -> None:
        self._path = folder / CONTROL
        self._told: dict[str, Any] = {"until": until, "end": None, "faults": []}
        self._write()

    def until(self, step: int) -> None:
        """Let all workers train up to this step."""
        self._told["until"] = step
        self._write()

    def end(self, step: int) -> None:
        """End the run before this step. The workers must wait for it first: none may have come so far."""
        self._told["end"] = step
        self._write()

    def strike(self, pids: Iterable[int], step: int, kind: str, moment: str, fraction: float) -> None:
        """Let workers strike themselves in a step that none has begun."""
        fault = {"step": step, "kind": kind, "moment": moment, "fraction": fraction}
        self._told["faults"] += [fault | {"pid": pid} for pid in pids]
        self._write()

    def _write(self) -> None:
        write_whole(self._path, json.dumps(self._told))


class Tail:
    """One worker's growing log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0
        self._rest = ""
        self.lines: list[str] = []
        self.log: WorkerLog | None = None
        self.reached = -1
        self.at_s = float("-inf")
        self.over = False  # its writer has ended, and all its lines are read

    def look(self) -> None:
        """Read the new lines."""
        if self.over:
            return
        # Look at the process before the file: a process that ends in between has its last lines read.
        self.over = self.log is not None and not exists(self.log.pid)
        with self._path.open(encoding="utf-8") as file:
            file.seek(self._place)
            more = self._rest + file.read()
            self._place = file.tell()
        whole, end, self._rest = more.rpartition("\n")
        for line in (whole + end).splitlines(keepends=True):
            self.lines.append(line)
            if line.startswith("["):
                self.at_s, self.reached = json.loads(line.partition(", [")[0] + "]")[:2]
            else:
                self.log = logs.read(one for one in self.lines if not one.startswith("["))


class Logs:
    """All workers' logs of a run, as far as they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: dict[str, Tail] = {}

    def look(self) -> None:
        for name in os.listdir(self._folder):
            if name.startswith("worker-") and name not in self._tails:
                self._tails[name] = Tail(self._folder / name)
        for tail in self._tails.values():
            tail.look()

    @property
    def reached(self) -> int:
        """The highest step of any worker; −1 before the first."""
        return max((tail.reached for tail in self._tails.values()), default=-1)

    def alive(self) -> list[Tail]:
        """Return the workers whose process exists, in the order of their start."""
        found = [tail for tail in self._tails.values() if tail.log and not tail.over and exists(tail.log.pid)]
        return sorted(found, key=lambda tail: tail.log.began_s if tail.log else 0.0)

    def of(self, pids: Sequence[int]) -> list[Tail]:
        """Return the logs of these workers, or of those that these processes have started."""
        return [tail for tail in self._tails.values() if tail.log and {tail.log.pid, tail.log.parent} & set(pids)]

    def all(self) -> list[WorkerLog]:
        self.look()
        found = (logs.read(tail.lines) for tail in self._tails.values())
        return [log for log in found if log is not None]


def exists(pid: int) -> bool:
    """Return whether a process runs, or is stopped."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
