"""The places that run functions as processes: this machine, or a Ray cluster. Decisions do not depend on which it is.

::

    ==================  ==============================  =====================================================
    property            engines.py                      ray.py
    ==================  ==============================  =====================================================
    a process           forked, connected by a pipe     an actor; calls of its methods carry the messages
    a device            a GPU, or a slot of a core      a placement group
    large objects       in shared memory                in the object store: a read is a copy
    a device is used    by several processes, in turns  by one process at a time
    can be lost         processes                       processes, and machines with their devices and objects
    ==================  ==============================  =====================================================
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from uneven.runtime.jobs.command import Process
from uneven.runtime.jobs.heartbeat import Silence


class Linked(Process, Protocol):
    """A process with a connection to this one; it has the :class:`ProcessLine` at the other end."""

    at: str

    @property
    def quiet_s(self) -> float:
        """The seconds since its last message, see :class:`~uneven.runtime.jobs.heartbeat.Watched`."""

    @property
    def silence(self) -> Silence:
        """The same, with its last reported position."""

    def send(self, message: Any) -> None: ...


class ProcessLine(Protocol):
    """A process's end of the connection to the process that started it."""

    def recv(self) -> Any:
        """Return the next message, waiting for it; raise EOFError if the other end is closed."""

    def send(self, message: Any) -> None: ...

    def poll(self, timeout: float | None) -> Any:
        """Wait until there is a message or the other end is closed; a timeout of None is forever."""


class ObjectLine(ProcessLine, Protocol):
    """A connection in a place without shared memory: large objects are references, see :class:`LargeObject`."""

    def fetch(self, reference: Any) -> Any:
        """Return an object; raise ObjectLostError if it was lost with a machine."""

    def expect(self, references: Sequence[Any]) -> None:
        """Start to transfer these objects to this machine, without waiting."""


class ObjectLostError(LookupError):
    """An object was lost with the machine that stored it."""


@dataclass(frozen=True, slots=True)
class LargeObject:
    """A large object, as the last item of a tuple that a process sends; the receiver gets a reference to it."""

    value: Any


class Place(Protocol):
    """A set of devices on which processes run."""

    devices: tuple[str, ...]  # torch's names in the process that uses it; elsewhere a device is its index here
    cores: int
    address: str  # this machine's address for every process
    shares_memory: bool  # processes can map the same memory; otherwise they have an :class:`ObjectLine`
    shares_devices: bool  # several processes may take turns on a device

    @property
    def room_bytes(self) -> float:
        """The capacity of a machine's store of large objects."""

    def enter(self, directory: Path) -> None:
        """Prepare to work in this directory; raise ConfigError if it cannot be used from every device."""

    def start(
        self,
        name: str,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        *,
        heard: Callable[[Any, Any], None],
        ended: Callable[[Any], None],
        device: int | None = None,
    ) -> Linked:
        """Call ``target`` with its end of a connection and the arguments, in a separate process.

        ``heard`` gets the process and each of its messages, ``ended`` the process after its end, unless this program
        has waited for it. Raises ConfigError if the arguments cannot be sent.
        """

    def wait(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` for events and deliver them."""

    def seat(self, device: int) -> int:
        """Return the group of a device: processes on devices of one group are interchangeable."""

    def nodes(self, devices: Sequence[int]) -> list[list[int]]:
        """Return the devices grouped by machine."""

    def gone(self) -> frozenset[int]:
        """Return the devices that were lost with their machine."""

    def close(self) -> None: ...
