"""Programs that Ray runs on machines of its cluster and restarts when they are lost."""

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from uneven.runtime.jobs.parent_death import bound

_LOOK_S = 0.5
_ENDS_WITHIN_S = 15.0


class RayLines:
    """A constant number of programs, each on cores that Ray assigns, until each has ended with exit code 0.

    A program that is lost with its machine or its Ray process is requested again.
    """

    def __init__(
        self,
        line: Callable[[int], Sequence[str]],  # program and arguments of the n-th request
        count: int,  # programs at a time
        *,
        cores: float,  # for each
        again: int,  # failed programs to replace
        told: Callable[[str], None],  # called with a description of each loss or failure
    ) -> None:
        self.asked = 0
        self._line = line
        self._again = again
        self._told = told
        self._ours = not ray.is_initialized()
        if self._ours:
            ray.init(log_to_driver=True, logging_level=logging.ERROR)
        self._task: Any = ray.remote(num_cpus=cores, max_retries=0)(_run)
        self._under_way = [self._ask() for _ in range(count)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="uneven-ray", daemon=True)
        self._thread.start()

    def close(self, within_s: float = _ENDS_WITHIN_S) -> None:
        """Wait at most ``within_s`` for running programs and kill the rest. Requests without a place are cancelled."""
        self._over.set()
        self._thread.join()
        if self._under_way:
            for one in self._under_way:
                ray.cancel(one, force=False)  # a running one ignores it, see _run
            _, late = ray.wait(self._under_way, num_returns=len(self._under_way), timeout=within_s)
            for one in late:
                ray.cancel(one, force=True)
        if self._ours:
            ray.shutdown()

    def _ask(self) -> Any:
        self.asked += 1
        return self._task.remote(list(self._line(self.asked - 1)), os.getcwd())

    def _look(self) -> None:
        while self._under_way and not self._over.is_set():
            ended, _ = ray.wait(self._under_way, timeout=_LOOK_S)
            for one in ended:
                self._under_way.remove(one)
                if self._is_missed(one) and not self._over.is_set():
                    self._under_way.append(self._ask())

    def _is_missed(self, one: Any) -> bool:
        try:
            code = ray.get(one)
        except RayError as error:
            short = str(error).strip().partition("\n")[0][:200]
            self._told(f"a worker that Ray had placed is lost ({short}); another one comes when Ray has a place for it")
            return True
        if code == 0:
            return False
        self._again -= 1
        ends = "another one comes" if self._again >= 0 else "no other one is asked for"
        self._told(f"a worker that Ray had placed ended with exit code {code}; {ends}")
        return self._again >= 0


def _run(line: list[str], directory: str) -> int:
    """Run the program on its machine; it ends with Ray's process."""
    with suppress(OSError):  # without that folder, the script itself reports what is missing
        os.chdir(directory)
    heeded = signal.signal(signal.SIGINT, lambda number, frame: None)  # Ray's cancel sends it; the program must finish
    try:
        return subprocess.run(bound(line), check=False).returncode
    finally:
        signal.signal(signal.SIGINT, heeded)
