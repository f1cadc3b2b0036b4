"""The command line of a shard's process: ``python -m MODULE DIRECTORY SHARD MEMBERS``, until SIGTERM."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from uneven.runtime.messages.sockets import LOOPBACK
from uneven.runtime.parameter_server.pure.roster import Patience

Serve = Callable[[Path, int, int, str, Patience, Callable[[], bool]], None]
"""The arguments: directory, number of the shard, workers, address to listen on, patience, and the end condition."""


def run_shard(module: str, serve: Serve, growing: Serve | None = None) -> None:
    """Read the command line and serve; ``growing`` serves workers that may leave and join, None if not supported."""
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
        serve = growing
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    patience = Patience(asked.join_s, asked.silence_s)
    serve(asked.directory, asked.shard, asked.members, asked.bind, patience, ended.is_set)
