"""The observer of this machine's workers: it finds them, throttles them and records the order of their ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from uneven.errors import ConfigError, LaunchError
from uneven.runtime.jobs.processes import HeldProcess
from uneven.runtime.launch.readiness import StartedWorker, always
from uneven.runtime.throttle.throttle import Throttle

_LOOK_EVERY_S = 0.05
_LOOK_RARELY_S = 0.2  # all workers are known; only a restart brings new ones


class Workers:
    """The child processes of one run, watched by a background thread from the launcher's start to its end.

    When a worker dies, its peers fail a moment later; the order of the ends separates cause from consequence.
    """

    def __init__(
        self,
        run_id: str,  # in the environment of every worker
        count: int,
        *,
        throttle: tuple[Throttle, tuple[float, ...]] | None = None,
        ready: Callable[[StartedWorker], bool] = always,
    ) -> None:
        self._run_id = run_id
        self._count = count
        self._throttle = throttle
        self._ready = ready
        self._alive: dict[int, HeldProcess] = {}
        self._unthrottled: dict[int, StartedWorker] = {}  # by process
        self._throttled: dict[int, StartedWorker] = {}
        self._seen: set[int] = set()
        self._ended_s: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="uneven-workers")
        self._thread.start()

    @property
    def ended_s(self) -> dict[int, float]:
        """The process id of each ended worker → when its end was noticed, Unix time."""
        return dict(self._ended_s)

    def close(self, *, kill: bool) -> None:
        """Stop watching; with ``kill``, kill the rest of every worker's process group first."""
        self._over.set()
        self._thread.join()
        for pid in self._seen if kill else ():
            with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM if only zombies are left
                os.killpg(pid, signal.SIGKILL)
        for process in self._alive.values():
            process.close()

    def _watch(self) -> None:
        while not self._over.is_set():
            self._find()
            self._slow_down()
            self._let_go()
            if not self._alive:
                self._over.wait(_LOOK_EVERY_S)
                continue
            complete = len(self._seen) % self._count == 0 and not self._unthrottled  # a restart replaces all
            self._bury(_LOOK_RARELY_S if complete else _LOOK_EVERY_S)
        self._bury(0.0)

    def _find(self) -> None:
        for child in psutil.Process().children():
            if child.pid in self._seen:
                continue
            try:
                environment = child.environ()
                if environment.get("TORCHELASTIC_RUN_ID") != self._run_id:
                    continue  # not ours, or not yet: it has the launcher's environment until exec
                self._alive[child.pid] = HeldProcess(child.pid)
            except (psutil.Error, OSError):
                continue
            self._seen.add(child.pid)
            self._unthrottled[child.pid] = StartedWorker(
                child.pid,
                rank=int(environment["RANK"]),
                local_rank=int(environment["LOCAL_RANK"]),
                port=int(environment.get("MASTER_PORT", 0)),
            )

    def _slow_down(self) -> None:
        if self._throttle is None:
            self._unthrottled.clear()
            return
        throttle, shares = self._throttle
        for pid, worker in list(self._unthrottled.items()):
            if not self._ready(worker):
                continue
            self._throttled[pid] = self._unthrottled.pop(pid)
            try:
                throttle.limit(pid, shares[worker.local_rank])
            except ConfigError:
                continue  # it has ended in the meantime
            except LaunchError as error:
                print(f"uneven: {error}", file=sys.stderr)
                # The throttle's process has died, so all workers run at full speed from now on.
                self._throttle = None
                return

    def _let_go(self) -> None:
        if self._throttle is None:
            return
        for pid, worker in list(self._throttled.items()):
            if not self._ready(worker):
                # It has finished, or announces training that has not started: full speed until it is ready (again).
                self._unthrottled[pid] = self._throttled.pop(pid)
                with suppress(LaunchError):  # the throttle has died and no longer limits any worker
                    self._throttle[0].release(pid)

    def _bury(self, wait_s: float) -> None:
        ended = _wait(self._alive, wait_s, self._over)
        now_s = time.time()
        for pid in ended:
            self._ended_s[pid] = now_s
            self._alive.pop(pid).close()
            self._unthrottled.pop(pid, None)
            self._throttled.pop(pid, None)


def _wait(processes: dict[int, HeldProcess], wait_s: float, over: threading.Event) -> list[int]:
    """Return the processes that end within ``wait_s``, as soon as there is at least one."""
    if not processes:
        return []
    if sys.platform != "linux":
        over.wait(wait_s)
        return [pid for pid, process in processes.items() if process.gone()]
    import select

    poll = select.poll()
    for process in processes.values():
        poll.register(process.descriptor, select.POLLIN)
    ended = {descriptor for descriptor, _ in poll.poll(wait_s * 1000)}
    return [pid for pid, process in processes.items() if process.descriptor in ended]
