"""Where functions run as processes: this machine, or a Ray cluster; nothing that decides knows which.

::

    ==================  ==============================  =====================================================
    of a Place          local.py                        ray.py
    ==================  ==============================  =====================================================
    a process           forked, talks through a pipe    an actor; calls of its methods are the line
    a device            a GPU, or a slot of a core      a placement group
    large objects       lie in memory that all share    lie in the object store: what is read is a copy
    a device is used    by several processes, in turns  by one process at a time
    lost by itself      processes                       processes, and machines with their devices and objects
    ==================  ==============================  =====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from uneven.jobs.command import Process
from uneven.jobs.pulse import Silence


class Linked(Process, Protocol):
    """A process with a line to this one. What runs in it has the :class:`ProcessLine` at the other end."""

    at: str

    @property
    def quiet_s(self) -> float:
        """How long it has been silent; see :class:`~uneven.jobs.pulse.Watched`."""
        ...

    @property
    def silence(self) -> Silence:
        """The same, with where it was."""
        ...

    def send(self, message: Any) -> None:
        """Say something; to one that has ended in vain."""
        ...


class ProcessLine(Protocol):
    """A process's end of the line to whoever started it."""

    def recv(self) -> Any:
        """The next message, once it is there.

        Raises:
            EOFError: nobody is there any more.
        """
        ...

    def send(self, message: Any) -> None:
        """Say something."""
        ...

    def poll(self, timeout: float | None) -> Any:
        """Wait, None for ever, until there is a message, or nobody is there any more."""
        ...


class ObjectLine(ProcessLine, Protocol):
    """The same in a place without shared memory: large objects are kept by reference, see :class:`Parcel`."""

    def fetch(self, reference: Any) -> Any:
        """An object.

        Raises:
            ObjectLostError: it was lost with a machine.
        """
        ...

    def expect(self, references: Sequence[Any]) -> None:
        """Let these be brought to this machine meanwhile."""
        ...


class ObjectLostError(LookupError):
    """An object was lost with the machine that kept it."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A large object, as the last part of a tuple that a process sends; at the other end it is a reference to it."""

    value: Any


class Place(Protocol):
    """Where processes run.

    Attributes:
        devices: torch's name of each device, in the process that uses it; elsewhere a device is its index here.
        cores: processor cores.
        address: under which every process reaches this one.
        shares_memory: processes can map the same memory; else they have an :class:`ObjectLine`.
        shares_devices: several processes may use a device, and take turns.
        room_bytes: what a machine's store of large objects holds.
    """

    devices: tuple[str, ...]
    cores: int
    address: str
    shares_memory: bool
    shares_devices: bool

    @property
    def room_bytes(self) -> float:
        ...

    def enter(self, directory: Path) -> None:
        """Make ready to work in this directory.

        Raises:
            ConfigError: it cannot be used from every device.
        """
        ...

    def start(
        self, name: str, target: Callable[..., None], arguments: tuple[Any, ...], *,
        heard: Callable[[Any, Any], None], ended: Callable[[Any], None], device: int | None = None,
    ) -> Linked:  # fmt: skip
        """Call ``target`` with its end of a line and the arguments, in a process of its own.

        Args:
            heard: called with the process and each message of it.
            ended: called with the process once when it has ended, unless this program has waited for that.
            device: where it computes; None for one that needs none.

        Raises:
            ConfigError: the arguments cannot be sent.
        """
        ...

    def wait(self, timeout_s: float) -> None:
        """Let everybody speak who has something to say, after at most so long."""
        ...

    def seat(self, device: int) -> int:
        """Processes on devices of the same seat can be used for each other."""
        ...

    def nodes(self, devices: Sequence[int]) -> list[list[int]]:
        """Devices, by the machine they are in."""
        ...

    def gone(self) -> frozenset[int]:
        """Devices that were lost with their machine."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...
