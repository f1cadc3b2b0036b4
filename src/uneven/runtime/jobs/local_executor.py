"""The local machine as a place: processes that share its memory and its devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from uneven.runtime.jobs.call import IMPORTED, Child
from uneven.runtime.jobs.job_events import Events
from uneven.runtime.jobs.processes import usable_cores
from uneven.runtime.jobs.tmp_cleanup import sweep


class Local(Events):
    """The :class:`~uneven.runtime.jobs.executor.Place` of this machine. No device is ever lost, and processes share
    them."""

    address = "127.0.0.1"
    shares_memory = shares_devices = True
    room_bytes = math.inf

    def __init__(self, devices: tuple[str, ...] = ("cpu",), imported: Sequence[str] = IMPORTED) -> None:
        super().__init__()
        self.devices = devices
        self.cores = usable_cores()
        self._imported = imported

    def enter(self, directory: Path) -> None:
        sweep(directory)  # temporary files of an earlier, killed run

    def start(
        self,
        name: str,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        *,
        heard: Callable[[Any, Any], None],
        ended: Callable[[Any], None],
        device: int | None = None,
    ) -> Child:
        return Child(self, name, target, arguments, heard=heard, ended=ended, imported=self._imported)

    def seat(self, device: int) -> int:
        return 0

    def nodes(self, devices: Sequence[int]) -> list[list[int]]:
        return [list(devices)]

    def gone(self) -> frozenset[int]:
        return frozenset()
