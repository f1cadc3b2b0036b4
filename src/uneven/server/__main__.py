"""``python -m uneven.server DIRECTORY SHARD MEMBERS``: one shard in a process of its own, until SIGTERM."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from uneven.server.host import LOOPBACK, serve
from uneven.server.known import Patience


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m uneven.server")
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


if __name__ == "__main__":
    main()
