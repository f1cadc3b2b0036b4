"""The interface of the machines of an emulation: one for each node of the description."""

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from uneven.cluster.emulate.pure.replay import Direction, Setting
from uneven.runtime.jobs import Command, Events


class Machines(Protocol):
    """Nodes that can run workers. A node is identified by its index in the description."""

    @property
    def how(self) -> str: ...

    @property
    def network(self) -> Mapping[str, str]: ...

    def address(self, index: int) -> str | None:
        """Return a node's address; None if all are on this machine's loopback."""

    def meet(self, keep: Callable[[str, int], Any]) -> Any:
        """Return ``keep(address, port)`` of the rendezvous, called on the first node's link."""

    def start(
        self,
        index: int,
        program: Sequence[str],
        env: Mapping[str, str],
        events: Events,
        ended: Callable[[Command], None] = lambda process: None,
    ) -> Command:
        """Start a worker on a node. The calling thread must live until the end: the worker dies with it."""

    def apply(self, index: int, setting: Setting) -> None: ...

    def apply_between(self, direction: Direction, setting: Setting) -> None: ...

    def lift(self, index: int) -> None:
        """Remove the limits of a node's processor time."""

    def kill(self, index: int) -> None: ...

    def why_killed(self, index: int) -> str:
        """Return why a worker was killed, if the machine knows; otherwise ""."""

    def broken(self) -> str:
        """Return why the machines no longer work; "" while they do."""

    def close(self) -> None: ...


def stop(worker: Command, stopped: bool) -> None:
    """Stop or continue a worker and its descendants; no effect if it has ended."""
    worker.signal(signal.SIGSTOP if stopped else signal.SIGCONT, group=True)
