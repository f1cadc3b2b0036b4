"""Shards in their own processes: one, or those of a run, restarted when they die."""

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from uneven.errors import ConfigError, LaunchError
from uneven.runtime.jobs import Command, Ending, Events, Kept, end_all
from uneven.runtime.jobs.processes import import_path
from uneven.runtime.messages.keys import address, make_keys
from uneven.runtime.messages.sockets import LOOPBACK, ShardSockets
from uneven.runtime.parameter_server.pure.roster import Patience

_log = logging.getLogger(__name__)

Made = Callable[[Path, int, int, str, Patience], ShardSockets]
"""The arguments: directory, number of the shard, workers, address to listen on, and patience."""


def run_shard(module: str, made: Made, growing: Made | None = None) -> None:
    """Read the command line and serve; ``growing`` is for workers that may leave and join, None if not supported."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("directory", type=Path)
    parser.add_argument("shard", type=int)
    parser.add_argument("members", type=int)
    parser.add_argument("--bind", default=LOOPBACK)
    parser.add_argument("--join-s", type=float, default=Patience().join_s)
    parser.add_argument("--silence-s", type=float, default=Patience().silence_s)
    if growing is not None:
        parser.add_argument("--growing", action="store_true", help="workers may leave and join")
    asked = parser.parse_args()
    if growing is not None and asked.growing:
        made = growing
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    patience = Patience(asked.join_s, asked.silence_s)
    sockets = made(asked.directory, asked.shard, asked.members, asked.bind, patience)
    try:
        sockets.serve(ended.is_set)
    finally:
        sockets.close()


_BEGIN_WITHIN_S = 60.0

_ENVIRONMENT = {
    # The arithmetic is limited by memory, not by processors.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # Vector pieces come and go. By default glibc returns the memory of each to the kernel, and gets it page by page
    # for the next. Older versions accept at most 32 MiB here.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
}


class ShardProgram(NamedTuple):
    """The program of a shard's process."""

    module: str  # run as ``python -m module DIRECTORY SHARD MEMBERS``
    whole: str  # the service that it is a shard of, for messages


PARAMETER_SERVER = ShardProgram("uneven.runtime.parameter_server", "the parameter server")


def shard_process(
    directory: Path,
    shard: int,
    members: int,
    *options: str,
    program: ShardProgram = PARAMETER_SERVER,
    events: Events | None = None,
    ended: Callable[[Command], None] = lambda process: None,
) -> Command:
    """Start a shard in its own process. It uses the keys of ``directory``, and writes its address there."""
    # -P: exactly this copy of uneven, and nothing from the working directory, which may hold a queue.py of the user.
    line = [sys.executable, "-P", "-m", program.module, str(directory), str(shard), str(members), *options]
    environment = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": import_path()}
    return Command(f"shard {shard} of {program.whole}", line, env=environment, events=events, ended=ended)


class ShardKeeper:
    """The shards of a run. One that dies is restarted, and gets its state from the workers.

    Args:
        directory: for keys and addresses; created, with new keys.
        bind: address to listen on, see :class:`uneven.runtime.parameter_server.shard_host.ShardHost`.
        growing: workers may leave and join.

    Raises:
        ConfigError: no shards, or the directory has keys of another run.
        LaunchError: a shard cannot be started; it prints its own message before.
    """

    def __init__(
        self,
        directory: Path,
        shards: int,
        members: int,
        *,
        bind: str = LOOPBACK,
        program: ShardProgram = PARAMETER_SERVER,
        growing: bool = False,
    ) -> None:
        if shards < 1:
            raise ConfigError(f"{shards} shards of {program.whole}: give a positive number")
        make_keys(directory)
        self._program = program
        self._options = ("--growing",) if growing else ()
        self._over = False
        self._events = Events()
        self._shards = list[Kept]()
        self._thread = threading.Thread(target=self._keep, name="uneven-keeper", daemon=True)
        try:
            for shard in range(shards):
                start = partial(self._start, directory, shard, members, bind)
                self._shards.append(Kept(start, told=partial(_say, f"shard {shard} of {program.whole}")))
            self._wait(directory)
        except BaseException:
            self.close()
            raise
        self._thread.start()

    @property
    def deaths(self) -> int:
        return sum(shard.ends for shard in self._shards)

    def pids(self) -> list[int]:
        return [shard.process.pid for shard in self._shards]

    def close(self) -> None:
        """End all shards. Idempotent."""
        if self._over:
            return
        self._over = True
        if self._thread.is_alive():
            self._events.wake()
            self._thread.join()
        self._end()
        self._events.close()

    def __enter__(self) -> "ShardKeeper":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, directory: Path, shard: int, members: int, bind: str, ended: Callable[[Command], None]) -> Command:
        return shard_process(
            directory,
            shard,
            members,
            "--bind",
            bind,
            *self._options,
            program=self._program,
            events=self._events,
            ended=ended,
        )

    def _wait(self, directory: Path) -> None:
        limit_s = time.monotonic() + _BEGIN_WITHIN_S
        for number, shard in enumerate(self._shards):
            while address(directory, number) is None:
                if shard.process.wait(0.01) is not None or time.monotonic() > limit_s:
                    raise LaunchError(f"{shard.process.name} could not be started")

    def _keep(self) -> None:
        while not self._over:
            self._events.wait(None)
        self._end()  # here, so that shards which this thread has started do not outlive it

    def _end(self) -> None:
        end_all([shard.process for shard in self._shards])


def _say(shard: str, ending: Ending, again: bool) -> None:
    then = "is started again" if again else "is not started again"
    _log.warning(f"{shard} {ending.words} and {then}")
