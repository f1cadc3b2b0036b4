"""The command line of a shard's process: ``python -m MODULE DIRECTORY SHARD MEMBERS``, until SIGTERM."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from uneven.server.known import Patience
from uneven.server.sockets import LOOPBACK

Serve = Callable[[Path, int, int, str, Patience, Callable[[], bool]], None]
"""Directory, number of the shard, workers, where to listen, patience, and whether it is over."""


def run_shard(module: str, serve: Serve) -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("directory", type=Path)
    parser.add_argument("shard", type=int)
    parser.add_argument("members", type=int)
    parser.add_argument("--bind", default=LOOPBACK)
    parser.add_argument("--join-s", type=float, default=Patience().join_s)
    parser.add_argument("--silence-s", type=float, default=Patience().silence_s)
    asked = parser.parse_args()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    patience = Patience(asked.join_s, asked.silence_s)
    serve(asked.directory, asked.shard, asked.members, asked.bind, patience, ended.is_set)
