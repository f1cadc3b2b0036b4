"""The connection to the other workers: process group, transport of the slow loop, comparison of the ranks at start."""

import contextlib
import functools
import gc
import hashlib
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from uneven.errors import ConfigError, ConflictError, PeerError
from uneven.policy.core.back_end import WorkerDevice, backend_for, through_host
from uneven.policy.core.registry import in_use
from uneven.policy.core.run_config import OF_ONE_MACHINE, RunConfig, fields
from uneven.policy.sync import Outlook
from uneven.run.lines import GroupLines, Lines, ThreadLines, staging
from uneven.run.lines.group_lines import CollectiveTransport, new_group
from uneven.run.lines.in_process_rendezvous import Hub, MeetingPlace
from uneven.run.lines.rollcall import RollCall
from uneven.run.lines.store_group import NO_GLOO, host_backend
from uneven.run.lines.traffic import TrafficBook
from uneven.run.lines.transport import Transport
from uneven.run.measure.meter import Meter
from uneven.runtime.frames import warn
from uneven.runtime.installed import FOLDER, VERSION
from uneven.runtime.rundir import GIVES_UP_WITHIN_S, Expendable, clear_expendable, mark_coming, mark_expendable
from uneven.runtime.tcp_store import fail_after, tcp_store
from uneven.runtime.timeout_call import within
from uneven.runtime.world import World, discover, is_loopback, report_failures


def device_of(world: World) -> torch.device:
    """Return the accelerator (CUDA or ROCm, XPU, MPS) with this worker's local rank, modulo their number; the CPU
    without one."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return torch.device("cpu")
    return torch.device(kind.type, world.local_rank % torch.accelerator.device_count())


def described(device: torch.device) -> WorkerDevice:
    """Return vendor and id of a worker's device; they decide the back end."""
    if device.type != "cuda":
        return WorkerDevice(device.type)
    uuid = str(torch.cuda.get_device_properties(device).uuid) if dist.is_nccl_available() else ""
    return WorkerDevice("rocm" if torch.version.hip else "cuda", uuid)


_LINGER_S = 2.0


class _OwnGroup:
    """The default process group, if a session made it; the last session that uses it destroys it."""

    def __init__(self) -> None:
        self.users = 0
        self._where: tuple[str, int, int] | None = None
        # The store outlives its session, because rank 0 may host it. If it ended with the session, the first worker to
        # join the next session could still connect to the store that is shutting down.
        self._place: MeetingPlace | None = None
        self._meeting = ""

    def meet(self, world: World, timeout_s: float) -> c10d.Store:
        """Return this rendezvous' part of the store.

        Raises:
            RuntimeError, ValueError, OSError: the store cannot be reached within ``timeout_s``.
        """
        where = (world.meeting, world.port, world.rank)
        if self._place is not None and self._where == where:
            with contextlib.suppress(RuntimeError):  # its host process has ended, so connect to a new store below
                return self._enter(self._place, world.rank, timeout_s)
        self._place, self._where = MeetingPlace(within(timeout_s, lambda: _store(world, timeout_s))), where
        return self._enter(self._place, world.rank, timeout_s)

    def _enter(self, place: MeetingPlace, rank: int, timeout_s: float) -> c10d.Store:
        # A new prefix per rendezvous: a new group must not find the addresses that the previous one left in the store.
        self._meeting = f"uneven/{within(timeout_s, lambda: place.store.add(f'uneven/joins/{rank}', 1))}"
        return c10d.PrefixStore(self._meeting, place.store)

    def roll(self, world: World, timeout_s: float) -> RollCall:
        """Return the roll call of the ranks of a session's process group, or of one that the user made."""
        if self.users and self._place is not None:
            return RollCall(self._place, self._meeting, world.rank, world.size, timeout_s)
        return RollCall(MeetingPlace(c10d._get_default_store()), "uneven", world.rank, world.size, timeout_s)

    def forget(self) -> None:
        """Use a new store at the next rendezvous, because something has failed."""
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
    """Connect to the rendezvous store; without a launcher rank 0 hosts it."""
    if not world.port:
        raise ValueError("MASTER_PORT is not set")
    hosts = world.rank == 0 and not world.stored
    # Without waiting for the other ranks: `_await_all` does, and can name the missing ones.
    how: dict[str, Any] = {"is_master": hosts, "wait_for_workers": False, "multi_tenant": True}
    how["timeout"] = timedelta(seconds=timeout_s)
    if hosts and is_loopback(world.meeting):
        with contextlib.suppress(OSError):  # the port is in use, perhaps by our earlier store: torch handles that below
            listening = socket.create_server((world.meeting, world.port))  # torch would listen on every interface
            return tcp_store(world.meeting, world.port, master_listen_fd=listening.detach(), **how)
    store: c10d.Store = tcp_store(world.meeting, world.port, **how)
    fail_after(world.port, timeout_s)  # else the way out of a session would wait for a machine that has lost its power
    return store


_own = _OwnGroup()


@dataclass(slots=True)
class Connection:
    """This worker's connection to the others."""

    transport: Transport  # of the slow loop
    roll: RollCall | None  # names the missing ranks after a failure; None in a single-process run
    own_group: _OwnGroup | None  # the default process group if a session made it
    world: World
    timeout_s: float  # longest wait in an exchange
    traffic: TrafficBook = field(default_factory=TrafficBook)  # bytes sent and received, by line
    staged: bool = False  # whether gradients and replicas travel through host memory; known once there is a model
    leaving: Callable[[bool], None] | None = None  # called first when this worker leaves; True after a failure
    dropped: bool = False  # the session was garbage-collected mid-program, so leaving must not wait for other workers

    @contextlib.contextmanager
    def waiting(self, meter: Meter) -> Iterator[None]:
        """Count the block as waiting in an exchange that the script makes."""
        with meter.waiting():
            if self.roll is not None:
                self.roll.place = "an exchange of the script's own"
            yield
            if self.roll is not None:
                self.roll.place = ""

    def found(self, kinds: Sequence[str]) -> None:
        """Note torch's type of the device of each worker's model, by rank."""
        if not self.world.alone:
            backend = "gloo" if self.roll is None else dist.get_backend_config()  # groups of an elastic run are gloo's
            self.staged = staging.forced or through_host(backend, kinds)

    def lines(self, meter: Meter, refusal: str = "") -> Lines:
        """Return the factory of the callbacks' lines to the other workers.

        Args:
            meter: counts the time that this worker waits.
            refusal: why no line can be opened, if so.
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
            self.world.rank,
            everybody,
            waiting,
            texts=texts,
            timeout_s=self.timeout_s,
            book=self.traffic,
            refusal=refusal,
        )

    def left_by(self, leave: Callable[[bool], None]) -> None:
        """Register a callback for when this worker leaves; it runs before those registered earlier.

        If this one raises an error, the earlier callbacks run as after a failure: they wait for no other worker.
        """
        then = self.leaving

        def leaving(failed: bool) -> None:
            left = False
            try:
                leave(failed)
                left = True
            finally:
                if then is not None:
                    then(failed or not left)

        self.leaving = leaving

    def close(self, failed: bool = False) -> None:
        """Leave the process group. Without a failure rank 0, which may host the store, releases all ranks."""
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
    """Return the process group that averages this worker's gradients; None if they are not averaged."""
    mine = None
    for group in out.gradient_groups:  # new_group is collective: every rank makes all groups, in the same order
        made = dist.group.WORLD if group == members else new_group(group)
        mine = made if rank in group else mine
    if mine is not None and rank == members[0] and dist.get_backend(mine) == NO_GLOO:
        warn(
            "this build of torch has no gloo, so gradients pass through the store of the run, which is slow: take a "
            "policy whose workers push to a server and pull from it, or another build (see docs/platforms.md)"
        )
    return mine


def find_world() -> World:
    """Return this worker's world: the launcher's, or that of a process group that the user made without one. Announce
    this worker to a launcher that waits for its training."""
    report_failures()
    world = discover()
    if world.awaited and world.run_directory is not None:
        mark_coming(world.run_directory, world.rank)
    if not world.alone or not dist.is_initialized() or dist.get_world_size() == 1:
        return world
    rank, size = dist.get_rank(), dist.get_world_size()
    return replace(world, rank=rank, size=size, local_rank=rank, local_size=size)


def connect(world: World, timeout_s: float) -> Connection:
    """Join the existing process group (of Ray Train or the user), or make a new one.

    Raises:
        PeerError: the other ranks could not be reached in time.
        ConfigError: the existing group has another rank or size than ``world``.
    """
    if world.alone:
        return Connection(Hub(1).endpoint(0), None, None, world, timeout_s)
    if _own.users:
        # A session lives as long as its model, in a cycle of references. One that the script has dropped ends now, on
        # all ranks. Otherwise one rank would use its group again, and another one would wait for all in a new group.
        gc.collect()
    if not dist.is_initialized():
        _join(world, timeout_s)
        _own.users = 0  # a group of ours that the user destroyed would still be counted
        own: _OwnGroup | None = _own
    else:
        own = _own if _own.users else None
        if (dist.get_rank(), dist.get_world_size()) != (world.rank, world.size):
            raise ConfigError(
                f"the process group has rank {dist.get_rank()} of {dist.get_world_size()}, but the launcher's "
                f"variables have rank {world.rank} of {world.size}: start the script with one launcher only"
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
        backend = backend_for(_await_all(store, world, limit))
        backend = host_backend() if backend == "gloo" else backend
        dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.size, timeout=limit)
    except (RuntimeError, ValueError, OSError) as error:
        _own.forget()
        if isinstance(error, PeerError):
            raise
        raise PeerError(
            f"rank {world.rank} of {world.size} could not join the others within {timeout_s:g} s "
            f"({str(error).strip().splitlines()[0]}): is MASTER_ADDR:MASTER_PORT rank 0's machine, does rank 0 run, "
            "and is the port free? If it is in use, give another --master-port"
        ) from error


def _await_all(store: c10d.Store, world: World, limit: timedelta) -> list[WorkerDevice]:
    """Wait until every rank has arrived; return the device of each, by rank."""
    keys = [f"here/{rank}" for rank in range(world.size)]
    store.set(keys[world.rank], json.dumps(described(device_of(world))))
    try:
        store.wait(keys, limit)
    except RuntimeError as error:
        missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        if missing:
            if world.rank == 0:  # this process may host the store: the other ranks must find the same before it ends
                time.sleep(_LINGER_S)
            raise PeerError(
                f"start of the run: rank {', '.join(missing)} of {world.size} did not join within "
                f"{limit.total_seconds():g} s: does every rank run, with the same MASTER_ADDR and MASTER_PORT? A "
                "slow start needs a larger timeout_s"
            ) from error
    return [WorkerDevice(*json.loads(store.get(key))) for key in keys]


def compare(transport: Transport, what: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Send ``what`` to all ranks, check that it is the same on each, and return each rank's, by rank.

    Keys that begin with an underscore may differ.

    Raises:
        ConflictError: a value differs; the message names the key, the ranks and both values.
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
    """Return the settings, versions and code digest that must be the same on every rank."""
    same = {key: value for key, value in fields(config).items() if key not in OF_ONE_MACHINE}
    return {**same, **versions(), "code": _code_digest()}


def versions() -> dict[str, str]:
    """Return the versions of all packages that take part in a decision."""
    own = {"uneven": VERSION, "torch": str(torch.__version__), "numpy": np.__version__}
    return own | ({"plug-ins": ", ".join(in_use())} if in_use() else {})


IN_A_RUN = ("__init__", "errors", "journal", "policy", "run", "runtime")
"""The packages and modules that ``uneven.run.session`` imports, directly or not; ranks must have the same code in
these.

``tests/test_architecture.py`` compares the list with the imports.
"""


@functools.cache
def _code_digest() -> str:
    # Cached: editing the files later does not change the code that runs.
    return code_digest(FOLDER)


def code_digest(root: Path) -> str:
    """Return a digest (16 hexadecimal digits) of the run-time files of ``root``, a copy of this package."""
    digest = hashlib.sha256()
    for name in IN_A_RUN:
        folder = root / name
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
