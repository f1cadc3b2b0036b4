"""The record of resources that emulations make outside their processes, so that they can be removed after any end.

::

    /run/uneven/ID.json     {"id", "pid", "started", "groups"}   of one emulation, for root only
    /run/uneven/lock        held while this folder is read

The file is written before the first object is made, and removed after the last one. Namespaces, links and mounts are
not in it: the kernel removes them with the processes that hold them.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from uneven.cluster.emulate import cgroup
from uneven.cluster.emulate.pure import names
from uneven.errors import LaunchError, access
from uneven.runtime.system import lock

FOLDER = Path("/run/uneven")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One emulation."""

    id: str
    pid: int
    # start time of its process, in kernel ticks since boot; distinguishes it from a later one with the same id
    started: int
    groups: tuple[str, ...]  # control groups that it makes, one for each tree

    @property
    def alive(self) -> bool:
        """True if its process still runs."""
        return started_ticks(self.pid) == self.started


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """The removed remains of an emulation."""

    id: str
    groups: int
    processes: int

    def __str__(self) -> str:
        return f"emulation {self.id}: {self.groups} control groups and {self.processes} processes"


def new_id() -> str:
    return secrets.token_hex(4)


def started_ticks(pid: int) -> int | None:
    """Return the start time of a process, in kernel ticks since boot; None if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *rest = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])  # field 22 of 52, counted after the name, which may have spaces


def begin(run: str, groups: Sequence[Path], folder: Path = FOLDER) -> Owner:
    """Record the groups that this process will make. Raises LaunchError if the folder cannot be used."""
    started = started_ticks(os.getpid())
    assert started is not None
    owner = Owner(id=run, pid=os.getpid(), started=started, groups=tuple(map(str, groups)))
    with _locked(folder):
        new = folder / f"{run}.new"
        new.write_text(json.dumps(asdict(owner)))
        new.rename(_file(folder, run))
    return owner


def clean(folder: Path = FOLDER) -> list[Removed]:
    """Remove the remains of emulations whose process has ended, and no others. Raises LaunchError if something cannot
    be removed; its file stays for the next time."""
    if not folder.is_dir():
        return []
    with _locked(folder):
        for half_written in folder.glob("*.new"):
            half_written.unlink()
        left = [owner for owner in _owners(folder) if not owner.alive]
        return [end(owner, folder) for owner in left]


def end(owner: Owner, folder: Path = FOLDER) -> Removed:
    """Remove the groups of an emulation with their processes, and then its file."""
    groups = [Path(path) for path in owner.groups if Path(path).name == names.group(owner.id)]
    there = sum(1 + sum(path.is_dir() for path in group.iterdir()) for group in groups if group.is_dir())
    processes = sum(cgroup.remove(group) for group in groups)
    _file(folder, owner.id).unlink(missing_ok=True)
    return Removed(id=owner.id, groups=there, processes=processes)


def _owners(folder: Path) -> Iterator[Owner]:
    for path in sorted(folder.glob("*.json")):
        try:
            values = json.loads(path.read_bytes())
            owner = Owner(**values | {"groups": tuple(values["groups"])})
        except (ValueError, TypeError, KeyError) as error:
            raise LaunchError(
                f"{path} is not from this version of uneven ({error}): delete it when no emulation runs"
            ) from error
        if names.is_id(owner.id) and owner.id == path.stem:
            yield owner


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with access(f"write {folder}", LaunchError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
        if about.st_uid != os.geteuid() or about.st_mode & 0o022:
            raise LaunchError(f"{folder} is writable by users other than {os.geteuid()}: remove it")
        held = (folder / "lock").open("w")
    with held:
        lock(held, wait=True)
        yield


def _file(folder: Path, run: str) -> Path:
    return folder / f"{run}.json"
