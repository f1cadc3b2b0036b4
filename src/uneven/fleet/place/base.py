"""What an engine has to offer: processes to start and to listen to, devices, and a place for prepared samples.

::

    engine/run.py    who trains when ──┐             ┌── local.py   this machine
    engine/hosts.py  members           ├──► Place ◄──┤
    stream/feed.py   the shared stream ┘             └── ray.py     a Ray cluster

    ==================  ==============================  =====================================================
    of a Place          local.py                        ray.py, ray_actor.py
    ==================  ==============================  =====================================================
    a process           forked, talks through a pipe    an actor; calls of its methods are the line
    a device            a GPU, or a slot of a core      a placement group
    samples lie in      memory that all share           the object store: a batch is a copy
    more members than   members can take turns on the   a device trains one member at a time
    devices             slots of a processor
    lost by itself      processes                       processes, and machines with their devices and samples
    ==================  ==============================  =====================================================

Nothing that decides knows what is behind it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from uneven.errors import ConfigError, UnknownNameError
from uneven.fleet.place.devices import Devices, devices_of
from uneven.fleet.place.pulse import Silence
from uneven.fleet.stream.layout import Layout

ENGINES = ("local", "ray")

Heard = Callable[[Any, Any], None]
"""Called with a process and a message of it."""

Died = Callable[[Any], None]
"""Called with a process once, when it has ended without having been told to."""


class Process(Protocol):
    """A process that talks with this one. What it runs gets its end of the line, with ``recv``, ``send``, ``poll``."""

    name: str
    at: str

    @property
    def quiet_s(self) -> float:
        """How long it has been silent; see :class:`~uneven.fleet.place.pulse.Watched`."""
        ...

    @property
    def silence(self) -> Silence:
        """The same, with where it was."""
        ...

    @property
    def pid(self) -> int:
        """Its number on its machine; 0 while it is not known."""
        ...

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        ...

    def send(self, message: Any) -> None:
        """Say something; to one that has died in vain."""
        ...

    def hang_up(self) -> None:
        """Tell it to end, without waiting."""
        ...

    def close(self) -> None:
        """Let it end, or make it. Twice is no error."""
        ...

    def end(self) -> None:
        """End it now, whatever it does. Twice is no error."""
        ...


class Store(Protocol):
    """Where prepared samples lie, as the engine sees it; see :class:`~uneven.fleet.stream.ring.Ring`."""

    def handle(self, *, writable: bool) -> Any:
        """What another process needs to read or write there: it has a method ``open(line)``."""
        ...

    def keep(self, number: int, told: Any) -> None:
        """A chunk has been made; ``told`` is what its maker's end of the store said of it."""
        ...

    def found(self, first: int, end: int) -> Any:
        """What a reader needs to find the chunks ``first`` … ``end`` − 1, beyond knowing that they are there."""
        ...

    def lost(self, number: int, told: Any) -> bool:
        """A reader cannot find a chunk by what it was told; whether the chunk has to be made again for that."""
        ...

    def drop(self, below: int) -> None:
        """Nobody needs the chunks below this one any more."""
        ...

    def close(self) -> None:
        """Give the memory back. Twice is no error."""
        ...


class Place(Protocol):
    """Where an ensemble is trained.

    Attributes:
        devices: torch's name of each device, in the process that trains on it; elsewhere a device is its index here.
        profiled: up to how many devices a member's rates are worth measuring.
        preprocessors: how many are allowed unless the user says so.
        address: under which every process reaches this one.
        turns: more members than devices may train at once, and take turns.
    """

    devices: tuple[str, ...]
    profiled: int
    preprocessors: int
    address: str
    turns: bool

    def enter(self, directory: Path) -> None:
        """Make ready to train in this directory.

        Raises:
            ConfigError: it cannot be used from every device.
        """
        ...

    def start(
        self, name: str, target: Callable[..., None], arguments: tuple[Any, ...], *, heard: Heard, died: Died,
        device: int | None = None,
    ) -> Process:  # fmt: skip
        """Call ``target`` with its end of a line and the arguments, in a process of its own.

        Args:
            device: where it trains; None for one that does not.

        Raises:
            ConfigError: the arguments cannot be sent.
        """
        ...

    def wait(self, timeout_s: float) -> None:
        """Let everybody speak who has something to say, after at most so long."""
        ...

    def store(self, layout: Layout, *, slots: int, chunk: int) -> Store:
        """Room for so many chunks of so many samples."""
        ...

    def seat(self, device: int) -> int:
        """Processes that train on devices of the same seat can be used for each other."""
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


def place_for(engine: str, devices: Devices) -> Place:
    """The place that an engine's name stands for.

    Raises:
        UnknownNameError: there is no such engine.
        ConfigError: it has no such devices, or needs a package that is not installed.
    """
    if engine == "local":
        from uneven.fleet.place.local import Local

        return Local(devices_of(devices))
    if engine != "ray":
        raise UnknownNameError("engine", engine, ENGINES)
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("engine='ray': Ray is not installed: pip install 'uneven[ray]'")
    from uneven.fleet.place.ray import Cluster

    return Cluster(devices)
