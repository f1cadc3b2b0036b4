"""The local engine: processes of this machine, and memory that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from uneven.fleet.place.child import Child, Events
from uneven.fleet.place.devices import cores, devices_of
from uneven.fleet.place.remains import sweep
from uneven.fleet.stream.layout import Layout
from uneven.fleet.stream.ring import Ring


class Local(Events):
    """See :class:`~uneven.fleet.place.base.Place`. No device is ever lost, and each process may use any of them."""

    address = "127.0.0.1"

    def __init__(self, devices: tuple[str, ...] = ("cpu",)) -> None:
        super().__init__()
        self.devices = devices
        self.turns = True
        self.profiled = cores() if devices[0] == "cpu" else len(devices)
        self.preprocessors = max(1, len(devices_of("auto")))

    def enter(self, directory: Path) -> None:
        """Take away what an earlier start left behind."""
        sweep(directory)

    def start(
        self, name: str, target: Callable[..., None], arguments: tuple[Any, ...], *,
        heard: Callable[[Any, Any], None], died: Callable[[Any], None], device: int | None = None,
    ) -> Child:  # fmt: skip
        """A process of this machine."""
        return Child(self, name, target, arguments, heard=heard, died=died)

    def store(self, layout: Layout, *, slots: int, chunk: int) -> Ring:
        """Shared memory."""
        return Ring(layout, slots=slots, chunk=chunk, writable=True)

    def seat(self, device: int) -> int:
        """All of them."""
        return 0

    def nodes(self, devices: Sequence[int]) -> list[list[int]]:
        """This machine."""
        return [list(devices)]

    def gone(self) -> frozenset[int]:
        """None."""
        return frozenset()
