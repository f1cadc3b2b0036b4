"""The rows of a shard for the workers of its machine, who read them in place and write their gradients next to them.

::

    rows       of each group that does not grow; only the shard can write them
    state      life of the shard, updates in the rows, last update of each worker; only the shard writes it
    regions    a part for each worker, who writes its gradients there
    posts      a pipe for the places of gradients; the thread that trains writes into it, which wakes the shard

A row may be read while the shard writes it, as in Hogwild. The state is written after the rows, and read before them.
So a worker that finds its last update in the state finds it in the rows.
"""

import json
import math
import os
import struct
import weakref
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from uneven.embedding.kernels import kernels
from uneven.embedding.pure.row_optimizers import CACHE_LINE, Bags, Floats, zeros
from uneven.embedding.pure.shard_tables import ShardSpec
from uneven.embedding.pure.table_wire import (
    ENTRY_BYTES,
    HEADER_BYTES,
    MOST_GROUPS,
    PlacedArrays,
    TableMessage,
    arrays_of,
    encode,
)
from uneven.runtime.messages.keys import boot
from uneven.runtime.messages.shared_memory import AVAILABLE, SharedMemory, attached

_REGION_BYTES = 1 << 32  # of addresses; only what was written takes memory
_VERSION, _SEQUENCES = 1, 2  # places in the state, after the life
_POST = struct.Struct("<IIQ")  # rank, size of header and entries, their place: a write so short is whole or not there
_MOST_POSTS = 4096  # in one turn: all that the pipe holds
_MOST_HEAD = HEADER_BYTES + ENTRY_BYTES * MOST_GROUPS


class SharedShard:
    """The shard's side. ``life``: of the shard; ``members``: number of workers."""

    def __init__(self, life: int, members: int) -> None:
        self._state = SharedMemory("uneven-state", 8 * (_SEQUENCES + members), read_only=True)
        self._numbers = self._state.bytes.view(np.int64)
        self._numbers[0] = life
        self.fd, self._posts = os.pipe()
        os.set_blocking(self.fd, False)
        for one in (self.fd, self._posts):
            weakref.finalize(self, os.close, one)
        self._rows: dict[int, SharedMemory] = {}
        # One memory for all workers: each has two descriptors, and a process may be limited to 1024.
        self._regions = SharedMemory("uneven-regions", members * _REGION_BYTES)

    def rows(self, group: int, rows: int, dim: int) -> Floats:
        """Return zeros of shape (rows, dim), aligned to a cache line; not shared if no descriptor is left. Raises
        MemoryError if they do not fit."""
        try:
            if 4 * rows * dim > psutil.virtual_memory().total:  # the system would allow it, and end the process later
                raise MemoryError(f"{rows} rows of {dim} numbers")
            self._rows[group] = SharedMemory("uneven-rows", 4 * rows * dim, read_only=True)
        except OSError:
            return zeros(rows, dim)
        found: Floats = self._rows[group].bytes.view(np.float32).reshape(rows, dim)
        return found

    @property
    def offer(self) -> str:
        """The text of :meth:`SharedReader.of`."""
        rows = {group: one.fd for group, one in self._rows.items()}
        return json.dumps([boot(), os.getpid(), self._state.fd, self._regions.fd, self._posts, rows])

    def region(self, rank: int) -> npt.NDArray[np.uint8]:
        """Return the bytes that a worker may write; none of an unknown worker."""
        return self._regions.bytes[rank * _REGION_BYTES : (rank + 1) * _REGION_BYTES]

    def taken(self) -> list[list[bytes]]:
        """Return the frames of the gradients that workers have posted since the last call, in their order."""
        try:
            posts = os.read(self.fd, _MOST_POSTS * _POST.size)
        except BlockingIOError:
            return []
        found = []
        for rank, size, place in _POST.iter_unpack(posts[: len(posts) // _POST.size * _POST.size]):
            head = self.region(rank)[place : place + min(size, _MOST_HEAD)].tobytes()
            found.append([head[:HEADER_BYTES], b"", head[HEADER_BYTES:]])
        return found

    def note(self, rank: int, sequence: int, version: int) -> None:
        """Publish the updates that the rows have: of a worker, and of all."""
        self._numbers[_VERSION] = version
        self._numbers[_SEQUENCES + rank] = sequence


class SharedReader:
    """A worker's side. Raises OSError or ValueError if it cannot reach the memory that ``text`` offers."""

    def __init__(self, text: str, life: int, rank: int, spec: ShardSpec) -> None:
        machine, pid, state, regions, pipe, found = json.loads(text)
        if machine != boot():
            raise ValueError(machine)
        self._numbers = attached(pid, state).view(np.int64)
        if self._numbers[0] != life:  # in another container, a process with the shard's number
            raise ValueError(pid)
        self._rows: dict[int, Floats] = {
            group: attached(pid, fd).view(np.float32).reshape(one.rows, one.width)
            for group, one in enumerate(spec.groups)
            if (fd := found.get(str(group))) is not None
        }
        self._region = attached(pid, regions, write=True, start=rank * _REGION_BYTES, size=_REGION_BYTES)
        self._posts = os.open(f"/proc/{pid}/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._posts)
        self.life = life
        self._kernels = kernels()
        self._place = _SEQUENCES + rank
        self._held: dict[int, tuple[int, float]] = {}  # place → end, and the update whose arrays are there
        self.lookups = self.read = 0  # since the last gradient
        self.sent = 0  # the last update that went by the socket: later ones must not overtake it

    @classmethod
    def of(cls, text: str, life: int, rank: int, spec: ShardSpec) -> "SharedReader | None":
        """Return a reader of a shard's memory, or None on another machine or without a compiled lookup."""
        try:
            return cls(text, life, rank, spec) if can_share() else None
        except (OSError, ValueError):  # no such process or descriptor, or another user's; or another process's memory
            return None

    @property
    def version(self) -> int:
        return int(self._numbers[_VERSION])

    @property
    def sequence(self) -> int:
        """This worker's last update in the rows."""
        return int(self._numbers[self._place])

    def reads(self, bags: Bags) -> bool:
        return bags.group in self._rows

    def lookup(self, bags: Bags) -> Floats:
        """Return the sum of each bag's rows, shape (bags, dim)."""
        return self._kernels.lookup(self._rows[bags.group], bags)

    def count(self, bags: Sequence[Bags], lookups: int) -> None:
        """Count the rows of these bags, and lookups; the next gradient reports them."""
        self.lookups += lookups
        self.read += sum(len(one.ids) for one in bags if one.ids is not None)

    def counted(self) -> dict[str, int]:
        """Return the lookups since the last call, and the rows."""
        found = {"lookups": self.lookups, "read": self.read}
        self.lookups = self.read = 0
        return found

    def reserve(self, bags: Sequence[Bags], done: int) -> int | None:
        """Return a place in the region for the arrays of these bags, or None if it is full or they must be sent.

        Places of the updates up to ``done`` are free: the link keeps them no longer."""
        if done < self.sent:
            return None
        self._held = {place: one for place, one in self._held.items() if one[1] > done}
        sizes = [_head(bags), *(one.nbytes for one in arrays_of(bags))]
        size = sum(-(-one // CACHE_LINE) * CACHE_LINE for one in sizes)
        at = 0  # the lowest place that is free, so that the region's used part stays small
        for place, (stop, _) in sorted(self._held.items()):
            if place - at >= size:
                break
            at = stop
        if at + size > len(self._region):
            return None
        self._held[at] = at + size, math.inf
        return at + _head(bags)  # the rest of the message is before them

    def put(self, bags: Sequence[Bags], place: int) -> tuple[Bags, ...]:
        """Copy the arrays of some bags into a reserved place, and return the bags with these arrays."""
        into, placed = PlacedArrays(self._region, place), []

        def copied(array: npt.NDArray[Any] | None) -> Any:
            if array is None:
                return None
            found = into.next(array.size, array.dtype).reshape(array.shape)
            found[...] = array
            return found

        for one in bags:
            ids, lengths, weights, values = (copied(a) for a in (one.ids, one.lengths, one.weights, one.values))
            placed.append(replace(one, ids=ids, lengths=lengths, weights=weights, values=values))
        return tuple(placed)

    def post(self, message: TableMessage) -> bool:
        """Post a gradient that is in a reserved place; return False if it must be sent. Its update frees the place."""
        assert message.place is not None
        at = message.place - _head(message.bags)
        self._held[at] = self._held[at][0], message.sequence
        header, _, entries = encode(message)
        self._region[at : message.place] = np.frombuffer(header + entries, np.uint8)
        try:
            os.write(self._posts, _POST.pack(message.rank, message.place - at, at))
        except OSError:  # the pipe is full, or the shard has died
            return False
        return True


def _head(bags: Sequence[Bags]) -> int:
    return HEADER_BYTES + ENTRY_BYTES * len(bags)


def shared_by(life: int, members: int) -> SharedShard | None:
    """Return what a new shard shares with workers, or None where that is not possible."""
    if not can_share():
        return None
    try:
        return SharedShard(life, members)
    except OSError:  # an old kernel, or a container that forbids it
        return None


def can_share() -> bool:
    """Return whether shards of this machine offer their rows. A lookup without a compiled loop would copy them."""
    return AVAILABLE and find_spec("numba") is not None
