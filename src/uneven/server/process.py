"""Shards in processes of their own: one (``ShardProcess``), or those of a run, started again when they die."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from uneven.errors import ConfigError, LaunchError
from uneven.server.host import LOOPBACK
from uneven.server.keys import Address, address, make_keys

_LOOK_S = 0.1
_BEGIN_WITHIN_S = 60.0
_END_WITHIN_S = 5.0
_HOPELESS = 3
"""A shard that dies so often within a second of its start is not started again."""

_ENVIRONMENT = {
    # Its arithmetic waits for memory, not for processors.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # Pieces of vectors come and go. By its defaults glibc gives the memory of each back to the kernel, and gets it page
    # by page for the next. Older ones refuse more than 32 MiB here.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
}


class ShardProcess:
    """A shard in a process of its own, which ends with this one. It has the keys of ``directory``.

    It does not hear Ctrl-C, for workers still need it when they hear it.
    """

    def __init__(self, directory: Path, shard: int, members: int, *options: str) -> None:
        self._directory, self._shard = directory, shard
        arguments = (str(directory), str(shard), str(members), "--with-parent", *options)
        self._command = [sys.executable, "-P", "-m", "uneven.server", *arguments]
        self.process = self._start()

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        return self.process.pid

    @property
    def address(self) -> Address | None:
        """Where it listens, once it does; after a death, where it did."""
        return address(self._directory, self._shard)

    def again(self) -> None:
        """Start it again, with nothing in it; one that runs is killed first."""
        self.kill()
        self.wait()
        self.process = self._start()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def wait(self) -> int:
        """Until it has ended; its exit status."""
        return self.process.wait()

    def end(self) -> int:
        """Gently; its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait()

    def __enter__(self) -> ShardProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _start(self) -> subprocess.Popen[bytes]:
        # This very copy of uneven, and nothing from the working directory: a queue.py there is the user's.
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": path}
        return subprocess.Popen(self._command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)


class ShardKeeper:
    """The shards of a run. One that dies is started again, and has its state back from the workers.

    Args:
        directory: for keys and addresses; made, with new keys.
        shards: how many.
        members: number of workers.
        bind: where they listen, see :class:`uneven.server.host.ShardHost`.

    Attributes:
        deaths: how often a shard has died.

    Raises:
        ConfigError: no shards, or the directory has keys of another run.
        LaunchError: a shard cannot be started; its own message stands above.
    """

    def __init__(self, directory: Path, shards: int, members: int, *, bind: str = LOOPBACK) -> None:
        if shards < 1:
            raise ConfigError(f"{shards} servers: it must be a positive number")
        make_keys(directory)
        self.deaths = 0
        self._ended = threading.Event()
        self._shards = [ShardProcess(directory, shard, members, "--bind", bind) for shard in range(shards)]
        self._thread = threading.Thread(target=self._keep, name="uneven-keeper", daemon=True)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        self._thread.start()

    def pids(self) -> list[int]:
        """Of the processes that run now, by shard."""
        return [shard.pid for shard in self._shards]

    def close(self) -> None:
        """End them all. Calling it twice is fine."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        for shard in self._shards:
            shard.end()

    def __enter__(self) -> ShardKeeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self) -> None:
        limit_s = time.monotonic() + _BEGIN_WITHIN_S
        for number, shard in enumerate(self._shards):
            while shard.address is None:
                if shard.process.poll() is not None or time.monotonic() > limit_s:
                    raise LaunchError(f"shard {number} of the parameter server could not be started")
                time.sleep(0.01)

    def _keep(self) -> None:
        quick = [0] * len(self._shards)
        began_s = [time.monotonic()] * len(self._shards)
        while not self._ended.wait(_LOOK_S):
            for number, shard in enumerate(self._shards):
                status = shard.process.poll()
                if status is None or quick[number] >= _HOPELESS:
                    continue
                self.deaths += 1
                quick[number] = quick[number] + 1 if time.monotonic() - began_s[number] < 1.0 else 0
                how = f"was killed by signal {-status}" if status < 0 else f"has ended with {status}"
                then = "is not started again" if quick[number] >= _HOPELESS else "is started again"
                print(f"uneven: shard {number} of the parameter server {how} and {then}", file=sys.stderr)
                if quick[number] < _HOPELESS:
                    shard.again()
                    began_s[number] = time.monotonic()
