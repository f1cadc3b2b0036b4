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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Union

if TYPE_CHECKING:
    from uneven.runtime.jobs.call import Child
    from uneven.runtime.jobs.engines import Local
    from uneven.runtime.jobs.ray import Actor, Cluster


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


Linked = Union["Child", "Actor"]
"""A process with a connection to this one; it has the :class:`ProcessLine` at the other end."""

Place = Union["Local", "Cluster"]
"""A set of devices on which processes run."""
