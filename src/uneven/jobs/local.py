"""This machine: processes that share its memory and its devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from uneven.jobs.call import IMPORTED, Child
from uneven.jobs.events import Events
from uneven.jobs.processes import usable_cores
from uneven.jobs.remains import sweep


class Local(Events):
    """See :class:`~uneven.jobs.place.Place`. No device is ever lost, and each process may use any of them.

    Args:
        imported: modules that processes find imported, if these are the first that this program starts.
    """

    address = "127.0.0.1"
    shares_memory = shares_devices = True
    room_bytes = math.inf

    def __init__(self, devices: tuple[str, ...] = ("cpu",), imported: Sequence[str] = IMPORTED) -> None:
        super().__init__()
        self.devices = devices
        self.cores = usable_cores()
        self._imported = imported

    def enter(self, directory: Path) -> None:
        """Take away what an earlier start left behind."""
        sweep(directory)

    def start(
        self, name: str, target: Callable[..., None], arguments: tuple[Any, ...], *,
        heard: Callable[[Any, Any], None], ended: Callable[[Any], None], device: int | None = None,
    ) -> Child:  # fmt: skip
        """A process of this machine."""
        return Child(self, name, target, arguments, heard=heard, ended=ended, imported=self._imported)

    def seat(self, device: int) -> int:
        """All of them."""
        return 0

    def nodes(self, devices: Sequence[int]) -> list[list[int]]:
        """This machine."""
        return [list(devices)]

    def gone(self) -> frozenset[int]:
        """None."""
        return frozenset()
