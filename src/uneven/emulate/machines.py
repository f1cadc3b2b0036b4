"""What carries an emulation: one machine for each node of the description, in whichever way they are made."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from uneven.emulate.replay import Direction, Setting
from uneven.jobs import Command, Events


class Machines(Protocol):
    """Nodes that workers can be started on. Nodes are known by their place in the description, from 0."""

    @property
    def how(self) -> str:
        """In words, for the terminal."""
        ...

    @property
    def network(self) -> Mapping[str, str]:
        """Variables that tell a worker how to reach the others."""
        ...

    def address(self, index: int) -> str | None:
        """Where the others reach a node; None where all are on this machine's loopback."""
        ...

    def meet(self, keep: Callable[[str, int], Any]) -> Any:
        """What ``keep`` makes of the address and the port where workers meet, called on the first node's link."""
        ...

    def start(self, index: int, program: tuple[str, ...], env: Mapping[str, str], events: Events) -> Command:
        """Start a worker on a node. Call it in the thread that stays until the end: the worker dies with it."""
        ...

    def apply(self, index: int, setting: Setting) -> None:
        """Let a setting of a node hold from now on."""
        ...

    def apply_between(self, direction: Direction, setting: Setting) -> None:
        """Let a setting of one direction of a line between sites hold from now on."""
        ...

    def lift(self, index: int) -> None:
        """Let a node's worker use what it can get, whatever was set."""
        ...

    def kill(self, index: int) -> None:
        """Kill everything on a node."""
        ...

    def why_killed(self, index: int) -> str:
        """Why a worker was killed, where the machine knows; else ""."""
        ...

    def broken(self) -> str:
        """Why the machines carry nobody any more; "" while they do."""
        ...

    def close(self) -> None:
        """End and remove everything. Twice is fine."""
        ...


def stop(worker: Command, stopped: bool) -> None:
    """Stop a worker and its descendants, or let them go on; one that has ended is no matter."""
    worker.signal(signal.SIGSTOP if stopped else signal.SIGCONT, group=True)
