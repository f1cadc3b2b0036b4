"""A port for processes that are told where to meet before one of them listens there."""

from __future__ import annotations

import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def quiet_port() -> int:
    """Nobody listens on it, and the system gives it to nobody who leaves the choice to it.

    One of the system's choosing, let go of again, may be another test's a moment later, or a connection's: then half of
    the processes meet a stranger.
    """
    first = int(RANGE.read_text().split()[0]) if RANGE.exists() else 32768
    for port in random.SystemRandom().sample(range(first // 2, first), 100):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError("of a hundred ports none is free")
