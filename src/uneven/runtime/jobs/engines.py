"""The registry of places by engine name."""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import util
from pathlib import Path
from typing import Annotated, Any

import psutil

from uneven.errors import UnknownNameError
from uneven.policy.core.plain import Range, read
from uneven.runtime.installed import need
from uneven.runtime.jobs.begun import write_json
from uneven.runtime.jobs.call import IMPORTED, Child
from uneven.runtime.jobs.devices import Devices, devices_of
from uneven.runtime.jobs.executor import Place
from uneven.runtime.jobs.job_events import Events
from uneven.runtime.jobs.processes import usable_cores
from uneven.runtime.system import not_on_windows

NOTE = "temporary.json"


@dataclass(frozen=True, slots=True)
class _Note:
    folder: str
    process: Annotated[int, Range(1, 2**31 - 1)]
    started_s: float


def sweep(directory: Path) -> Path | None:
    """Delete and return the folder of the previous start if that was killed; record this process's folder.

    ``multiprocessing`` keeps its fork server's socket in a private folder ``pymp-…`` and deletes it at the program's
    end, but not after a kill. So the run directory records the folder and its process.
    """
    # Only called while this process has locked the directory. If the note is invalid, nothing is deleted.
    note = directory / NOTE
    left = _left_behind(note)
    if left is not None:
        shutil.rmtree(left, ignore_errors=True)  # remaining files do no harm
    write_json(note, asdict(_Note(util.get_temp_dir(), os.getpid(), psutil.Process().create_time())))
    return left


def _left_behind(note: Path) -> Path | None:
    try:
        said = read(_Note, json.loads(note.read_bytes()))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    # The start time detects that another process has been given the same id.
    if psutil.pid_exists(said.process) and _started_s(said.process) == said.started_s:
        return None
    # The file may be forged or stale: delete only a real folder of ours that multiprocessing could have made.
    folder = Path(said.folder)
    ours = folder.name.startswith("pymp-") and folder.parent == Path(tempfile.gettempdir()) and not folder.is_symlink()
    return folder if ours and folder.is_dir() and folder.stat().st_uid == os.getuid() else None


def _started_s(process: int) -> float:
    try:
        return psutil.Process(process).create_time()
    except psutil.NoSuchProcess:
        return -1.0


class Local(Events):
    """The :class:`~uneven.runtime.jobs.executor.Place` of this machine. No device is ever lost, and processes share
    them.

    Attributes:
        devices: torch's names in the process that uses it; elsewhere a device is its index here.
        address: this machine's address for every process.
        shares_memory: whether processes can map the same memory; otherwise they have an
            :class:`~uneven.runtime.jobs.executor.ObjectLine`.
        shares_devices: whether several processes may take turns on a device.
        room_bytes: the capacity of a machine's store of large objects.
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
        """Prepare to work in this directory; raise ConfigError if it cannot be used from every device."""
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
        """Call ``target`` with its end of a connection and the arguments, in a separate process.

        ``heard`` gets the process and each of its messages, ``ended`` the process after its end, unless this program
        has waited for it. Raises ConfigError if the arguments cannot be sent.
        """
        return Child(self, name, target, arguments, heard=heard, ended=ended, imported=self._imported)

    def seat(self, device: int) -> int:
        """Return the group of a device: processes on devices of one group are interchangeable."""
        return 0

    def nodes(self, devices: Sequence[int]) -> list[list[int]]:
        """Return the devices grouped by machine."""
        return [list(devices)]

    def gone(self) -> frozenset[int]:
        """Return the devices that were lost with their machine."""
        return frozenset()


ENGINES = ("local", "ray")


def place_for(engine: str, devices: Devices, imported: Sequence[str] = IMPORTED) -> Place:
    """Return the place of an engine; raise UnknownNameError or ConfigError if it, its devices or package are
    missing, or this system cannot run its processes."""
    if engine == "local":
        not_on_windows("ensembles, searches and ingests of video")
        return Local(devices_of(devices), imported)
    if engine != "ray":
        raise UnknownNameError("engine", engine, ENGINES)
    need("ray", "ray")
    from uneven.runtime.jobs.ray import Cluster

    return Cluster(devices)
