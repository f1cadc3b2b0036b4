"""Ports for processes that must know the port before one of them listens there."""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEAST = 1024  # Below this only root may listen

_FIRST_GIVEN = 32768
"""Linux's first ephemeral port, below those of other systems; used if the system does not report its range."""


def quiet_ports(count: int) -> tuple[int, ...]:
    """Return free ports that the system does not assign to other programs, as far as there are such ports."""
    # A port assigned by the system and released may go to another program or connection a moment later. Then some of
    # the processes would connect to a stranger.
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
