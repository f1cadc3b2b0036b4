"""Joins the other workers: process group, line for the slow loop, comparison of the ranks at start."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined] # its stubs say that it is private
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous

from uneven.config import OF_ONE_MACHINE, RunConfig, fields
from uneven.errors import ConfigError, ConflictError, PeerError
from uneven.installed import FOLDER, VERSION
from uneven.patience import within
from uneven.registry import in_use
from uneven.run.lines import GroupLines, Lines, ThreadLines
from uneven.run.lines.collective import CollectiveTransport
from uneven.run.lines.groups import new_group
from uneven.run.lines.hub import Hub
from uneven.run.lines.meeting import MeetingPlace
from uneven.run.lines.rollcall import RollCall
from uneven.run.lines.traffic import TrafficBook
from uneven.run.lines.transport import Transport
from uneven.run.measure.meter import Meter
from uneven.run.start.devices import backend_for, gpu_of
from uneven.rundir import GIVES_UP_WITHIN_S, Expendable, clear_expendable, mark_expendable
from uneven.sync import Outlook
from uneven.world import World, is_loopback

_LINGER_S = 2.0


class _OwnGroup:
    """The default process group where a session made it; the last session that uses it destroys it.

    The store that the ranks met at is kept for the sessions that follow. It may be rank 0 that keeps it for all, and
    if it ended with the session, who is the first to join again could reach the one that is just ending.
    """

    def __init__(self) -> None:
        self.users = 0
        self._where: tuple[str, int, int] | None = None
        self._place: MeetingPlace | None = None
        self._meeting = ""

    def meet(self, world: World, timeout_s: float) -> c10d.Store:
        """A part of the store for this meeting: a group is not to be found at the addresses of the one before.

        Raises:
            RuntimeError, ValueError, OSError: the store cannot be reached within ``timeout_s``.
        """
        where = (world.meeting, world.port, world.rank)
        if self._place is not None and self._where == where:
            with contextlib.suppress(RuntimeError):  # it has ended with who kept it, and another may come
                return self._enter(self._place, world.rank, timeout_s)
        self._place, self._where = MeetingPlace(within(timeout_s, lambda: _store(world, timeout_s))), where
        return self._enter(self._place, world.rank, timeout_s)

    def _enter(self, place: MeetingPlace, rank: int, timeout_s: float) -> c10d.Store:
        self._meeting = f"uneven/{within(timeout_s, lambda: place.store.add(f'uneven/joins/{rank}', 1))}"
        return c10d.PrefixStore(self._meeting, place.store)

    def roll(self, world: World, timeout_s: float) -> RollCall:
        """The roll of those who have met, here or in a group that the user has made."""
        if self.users and self._place is not None:
            return RollCall(self._place, self._meeting, world.rank, world.size, timeout_s)
        return RollCall(MeetingPlace(c10d._get_default_store()), "uneven", world.rank, world.size, timeout_s)

    def forget(self) -> None:
        """Something has failed: the next to meet do so at a new store."""
        self._place = None

    def enter(self) -> None:
        self.users += 1

    def leave(self, failed: bool = False) -> None:
        self.users -= 1
        if self.users == 0 and dist.is_initialized():
            dist.destroy_process_group()
        if failed:
            self.forget()


def _store(world: World, timeout_s: float) -> c10d.Store:
    """Where the ranks meet; rank 0 keeps it if no launcher does, for this machine alone if that is what it says."""
    limit = timedelta(seconds=timeout_s)
    if world.rank == 0 and not world.stored and is_loopback(world.meeting):
        with contextlib.suppress(OSError):  # the port is in use, perhaps by an earlier store of ours: torch sees to it
            listening = socket.create_server((world.meeting, world.port))  # torch would listen on every interface
            return TCPStore(
                world.meeting, world.port, is_master=True, wait_for_workers=False, multi_tenant=True,
                master_listen_fd=listening.detach(), timeout=limit,
            )  # fmt: skip
    # Size 1: the store is not to wait for the others, we do, and can say who is missing.
    host = f"[{world.meeting}]" if ":" in world.meeting else world.meeting
    where = f"tcp://{host}:{world.port}" if world.port else "env://"  # says that MASTER_PORT is missing
    store: c10d.Store = next(rendezvous(where, world.rank, 1, timeout=limit))[0]
    return store


_own = _OwnGroup()


@dataclass(slots=True)
class Connection:
    """This worker's lines to the others.

    Attributes:
        transport: for the slow loop.
        roll: names the missing after a failure; None for a worker that is alone.
        own_group: the default process group if a session made it, else None.
        world: this worker.
        timeout_s: for how long an exchange may wait.
        traffic: counts what passes between this worker and the others, by line.
        leaving: called first when this worker leaves, with whether something has failed.
        dropped: whether it leaves because its session was collected in mid-program, where nobody may be waited for.
    """

    transport: Transport
    roll: RollCall | None
    own_group: _OwnGroup | None
    world: World
    timeout_s: float
    traffic: TrafficBook = field(default_factory=TrafficBook)
    leaving: Callable[[bool], None] | None = None
    dropped: bool = False

    @contextlib.contextmanager
    def waiting(self, meter: Meter) -> Iterator[None]:
        """Inside, this worker waits for others in an exchange of the script's own."""
        with meter.waiting():
            if self.roll is not None:
                self.roll.place = "an exchange of the script's own"
            yield
            if self.roll is not None:
                self.roll.place = ""

    def lines(self, meter: Meter, refusal: str = "") -> Lines:
        """The door to the others for parts of a step.

        Args:
            meter: counts the time in which this worker waits.
            refusal: why none can be opened, where that is so.
        """
        roll = self.roll
        if roll is None:
            return ThreadLines.alone(lambda what: meter.waiting(), self.traffic)

        @contextlib.contextmanager
        def waiting(what: str) -> Iterator[None]:
            with meter.waiting(), roll.waiting(what):
                yield

        everybody, texts = tuple(range(self.world.size)), self.transport.gather_text
        return GroupLines(
            self.world.rank, everybody, waiting, texts=texts, timeout_s=self.timeout_s, book=self.traffic,
            refusal=refusal,
        )  # fmt: skip

    def left_by(self, leave: Callable[[bool], None]) -> None:
        """Call this, too, when this worker leaves: before all that is called so far, which follows in any case."""
        then = self.leaving

        def leaving(failed: bool) -> None:
            try:
                leave(failed)
            finally:
                if then is not None:
                    then(failed)

        self.leaving = leaving

    def close(self, failed: bool = False) -> None:
        """Leave the others. Without a failure rank 0, which may keep the store, lets everybody go."""
        leaving, self.leaving = self.leaving, None
        try:
            if leaving is not None:
                leaving(failed)
        finally:
            if self.roll is not None:
                self.roll.close(everybody=self.transport.rank == 0 and not failed)
            self.transport.close()
            if self.own_group is not None:
                self.own_group.leave(failed)
            self.roll = self.own_group = None
            if self.world.run_directory is not None and not failed:
                clear_expendable(self.world.run_directory, self.world.rank)


def gradient_group(out: Outlook, rank: int, members: tuple[int, ...]) -> dist.ProcessGroup | None:
    """The process group of those whose gradients are averaged with this worker's; None where none are.

    Every rank makes the groups of all, in one order.
    """
    mine = None
    for group in out.gradient_groups:
        made = dist.group.WORLD if group == members else new_group(group)
        mine = made if rank in group else mine
    return mine


def joined(world: World) -> World:
    """The world of a process group that the user made without a launcher's variables, else ``world``."""
    if not world.alone or not dist.is_initialized() or dist.get_world_size() == 1:
        return world
    rank, size = dist.get_rank(), dist.get_world_size()
    return replace(world, rank=rank, size=size, local_rank=rank, local_size=size)


def connect(world: World, timeout_s: float) -> Connection:
    """Join the process group, the one that exists (Ray Train, the user) or a new one.

    Raises:
        PeerError: the others could not be reached in time.
        ConfigError: the group that exists is not this world.
    """
    if world.alone:
        return Connection(Hub(1).endpoint(0), None, None, world, timeout_s)
    if not dist.is_initialized():
        _join(world, timeout_s)
        _own.users = 0
        own: _OwnGroup | None = _own
    else:
        own = _own if _own.users else None
        if (dist.get_rank(), dist.get_world_size()) != (world.rank, world.size):
            raise ConfigError(
                f"the process group says rank {dist.get_rank()} of {dist.get_world_size()}, the launcher's variables "
                f"say rank {world.rank} of {world.size}: start the script with one launcher only"
            )
    if own is not None:
        own.enter()
    roll, traffic = _own.roll(world, timeout_s), TrafficBook()
    try:
        transport = CollectiveTransport(timeout_s, roll, traffic.open("reports"))
    except PeerError:
        roll.close()
        if own is not None:
            own.leave(failed=True)
        raise
    if world.run_directory is not None:
        mark = Expendable("", timeout_s + GIVES_UP_WITHIN_S, training=False, idles=True)
        mark_expendable(world.run_directory, world.rank, mark)
    return Connection(transport, roll, own, world, timeout_s, traffic)


def _join(world: World, timeout_s: float) -> None:
    limit = timedelta(seconds=timeout_s)
    try:
        store = _own.meet(world, timeout_s)
        gpus = _await_all(store, world, limit)
        dist.init_process_group(backend_for(gpus), store=store, rank=world.rank, world_size=world.size, timeout=limit)
    except (RuntimeError, ValueError, OSError) as error:
        _own.forget()
        if isinstance(error, PeerError):
            raise
        raise PeerError(
            f"rank {world.rank} of {world.size} could not join the others within {timeout_s:g} s "
            f"({str(error).strip().splitlines()[0]}): does MASTER_ADDR:MASTER_PORT lead to rank 0's machine, is rank 0 "
            f"started, and does no other program listen there? Another --master-port helps against a port in use"
        ) from error


def _await_all(store: c10d.Store, world: World, limit: timedelta) -> list[str]:
    """Wait until every rank is there; which GPU each has, by rank."""
    keys = [f"here/{rank}" for rank in range(world.size)]
    store.set(keys[world.rank], gpu_of(world))
    try:
        store.wait(keys, limit)
    except RuntimeError as error:
        missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        if missing:
            if world.rank == 0:  # the store may be kept here: the others are to see the same before it ends
                time.sleep(_LINGER_S)
            raise PeerError(
                f"start of the run: rank {', '.join(missing)} of {world.size} did not come within "
                f"{limit.total_seconds():g} s: is every rank started, with the same MASTER_ADDR and MASTER_PORT? One "
                f"that only starts slowly needs a larger timeout_s"
            ) from error
    return [store.get(key).decode() for key in keys]


def compare(transport: Transport, what: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Give ``what`` to everybody and see that all ranks say the same.

    Keys that begin with an underscore may differ; they are passed on all the same.

    Returns:
        What each rank said, by rank.

    Raises:
        ConflictError: naming the key, the ranks and both values.
    """
    said = [json.loads(text) for text in transport.gather_text(json.dumps(what, sort_keys=True))]
    for rank, other in enumerate(said):
        for key in sorted(set(said[0]) | set(other)):
            if not key.startswith("_") and said[0].get(key) != other.get(key):
                raise ConflictError(
                    f"{where}: ranks differ in {key}: rank 0 has {said[0].get(key)!r}, rank {rank} has "
                    f"{other.get(key)!r}; start every rank with the same script, settings and versions"
                )
    return said


def identity(config: RunConfig) -> dict[str, Any]:
    """What must be the same on every rank before anything starts."""
    same = {key: value for key, value in fields(config).items() if key not in OF_ONE_MACHINE}
    return {**same, **versions(), "code": _code_digest()}


def versions() -> dict[str, str]:
    """Versions of everything that takes part in a decision."""
    own = {"uneven": VERSION, "torch": str(torch.__version__), "numpy": np.__version__}
    return own | ({"plug-ins": ", ".join(in_use())} if in_use() else {})


IN_A_RUN = (
    *("__init__", "balance", "board", "config", "control", "core", "data", "ending", "entries", "errors", "folder"),
    *("frames", "installed", "journal", "loops", "merge", "patience", "plugins", "predict", "registry", "run"),
    *("rundir", "server", "session", "skew", "slurm", "stores", "sync", "tables", "world"),
)
"""The packages and modules of uneven that a rank imports: those that ``uneven.session`` reaches.

Ranks must have the same code in these, and may differ in all others, which only look at runs, start them or play them.
``tests/test_architecture.py`` follows the imports and compares.
"""


@functools.cache
def _code_digest() -> str:
    """Digest of this package's files when first asked for: editing them later does not change what runs."""
    return code_digest(FOLDER)


def code_digest(root: Path) -> str:
    """16 hexadecimal digits of the files in ``root``, a copy of this package, that take part in a run."""
    digest = hashlib.sha256()
    for name in IN_A_RUN:
        folder = root / name
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
