"""Ports for processes that are told where to meet before one of them listens there."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEAST = 1024
"""Below it only root may listen."""

_FIRST_GIVEN = 32768
"""Where the system does not say which ports it gives away: Linux's first one, below that of the others."""


def quiet_ports(count: int) -> tuple[int, ...]:
    """Ports at which nobody listens, and which the system gives to nobody who leaves the choice to it.

    One of the system's choosing, let go of again, may be another program's a moment later, or a connection's: then some
    of the processes meet a stranger.

    Where it gives nearly all of them away, these are of its choosing after all.
    """
    first = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else _FIRST_GIVEN
    below = range(max(first // 2, _LEAST), first)
    found: list[int] = []
    with ExitStack() as held:
        for port in (*random.SystemRandom().sample(below, len(below)), *[0] * count):
            if len(found) == count:
                break
            try:
                listening = held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            found.append(listening.getsockname()[1])
    return tuple(found)
