"""Lines over torch's process groups. Groups are created in one place, because newer torch may re-form them in place."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined] # not in torch's stubs

from uneven.errors import ConfigError
from uneven.policy.core.back_end import takes
from uneven.policy.core.membership import Members
from uneven.run.lines.abortable_group import AbortableGroup, GroupAborted
from uneven.run.lines.line import Carrier, Line, Lines, Waiting, Work
from uneven.run.lines.rollcall import RollCall
from uneven.run.lines.staging import HostCarrier, copy_for, may_stage, on_host
from uneven.run.lines.store_group import host_backend
from uneven.run.lines.traffic import Traffic, TrafficBook
from uneven.run.lines.transport import Rows

Pieces = Callable[[Members], tuple[Mapping[int, Tensor], Mapping[int, Tensor]]]
"""Returns worker → the piece for it, and worker → the tensor for its piece, with the size that it sends, of any shape.
Asked when the pieces are sent, and again after a loss. An outgoing piece does not change before the end."""


class Swap:
    """The pieces that one member sends and receives.

    Received pieces stay in separate memory until the exchange is complete, so a failed one leaves the targets
    unchanged.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._incoming: Mapping[int, Tensor] = {}
        self._members: Members = ()
        self._arrived = torch.empty(0, dtype=torch.uint8)
        self._work: Any = None

    def begin(self, circle: AbortableGroup | None, members: Members) -> None:
        """Start or repeat the exchange among these members."""
        self._members, self._work = members, None
        outgoing, self._incoming = self._pieces(members)
        # As bytes, because pieces may differ in dtype and one collective takes one tensor.
        sent = torch.cat([_bytes(outgoing[one]) for one in members])
        self._arrived = torch.empty(sum(self._incoming[one].nbytes for one in members), dtype=torch.uint8)
        sizes = [[those[one].nbytes for one in members] for those in (outgoing, self._incoming)]
        try:
            self._work = None if circle is None else circle.swap(sent, self._arrived, *sizes)
        except GroupAborted:
            self._work = None

    def wait(self, circle: AbortableGroup) -> bool:
        if self._work is None:
            return False
        circle.wait(self._work)
        return True

    def drop(self) -> list[Any]:
        """Return, and release, the objects that a failed group may still use."""
        held, self._work = [self._work, self._arrived], None
        return held

    def take(self, contributors: Collection[int]) -> None:
        """Copy the pieces of ``contributors`` to their targets, and zeros to the targets of all others."""
        first = 0
        for one in self._members:
            to = self._incoming[one]
            if one in contributors and to.numel():
                to.copy_(self._arrived[first : first + to.nbytes].view(to.dtype).view(to.shape))
            first += to.nbytes
        for one in set(self._incoming) - set(self._members).intersection(contributors):
            self._incoming[one].zero_()


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


def new_group(
    members: Sequence[int] | None = None, timeout_s: float | None = None, backend: str | None = None
) -> dist.ProcessGroup:
    """Return a new group of these ranks, of all if None; all ranks of the run call it, in the same order.

    ``timeout_s`` and ``backend`` are those of the default group if None.
    """
    limit = None if timeout_s is None else timedelta(seconds=timeout_s)
    those = None if members is None else list(members)
    group: dist.ProcessGroup = dist.new_group(those, timeout=limit, backend=backend)
    if (those is None or dist.get_rank() in those) and "gloo" in dist.get_backend_config(group):
        # gloo returns when this member's own connections are up. If it closed the group immediately, as after an error,
        # a member that still connects would fail. This one would then wait for it in its next group.
        sum_now(torch.zeros(1), group)
    return group


def begin_sum(tensor: Tensor, group: Any) -> dist.Work:
    """Start to replace ``tensor``, of one shape on all ranks, by its sum over a group; makes no roll call."""
    # The group's own method: dist.all_reduce around it takes twice the time, and this runs for every bucket.
    work: dist.Work = group.allreduce([tensor])
    return work


def sum_now(tensor: Tensor, group: Any) -> None:
    """Replace ``tensor``, of one shape on all ranks, by its sum over a group, and wait."""
    with on_host(tensor, group) as one:
        dist.all_reduce(one, group=group)


def take_from_first(tensors: Iterable[Tensor], group: Any = None) -> None:
    """Replace tensors by those of the first rank of a group, of the same shapes, and wait."""
    for tensor in tensors:
        with on_host(tensor, group) as one:
            dist.broadcast(one, group=group, group_src=0)


class ReducerGroup(dist.ProcessGroup):
    """A group for DDP's reducer that sums nothing.

    The reducer takes its order of gradients from the first worker of ``group``; it keeps its own with None.
    """

    def __init__(self, group: Any = None) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg] # torch's stubs know only the other constructor
        self._group = group

    def allreduce(self, tensors: list[Tensor], options: Any = None) -> Any:  # type: ignore[override] # one of three
        return _ended()

    def broadcast(self, tensors: list[Tensor], options: Any = None) -> Any:  # type: ignore[override] # one of two
        if self._group is not None:
            take_from_first(tensors, self._group)
        return _ended()


def _ended() -> Any:
    future = torch.futures.Future[None]()
    future.set_result(None)
    return _create_work_from_future(future)


def host_carries(device: torch.device, group: Any) -> bool:
    """Return whether this process waits for a group's exchanges of tensors on ``device``, as gloo carries them.
    With other backends the device waits by itself, in a separate stream."""
    return device.type == "cpu" or not takes(dist.get_backend_config(group), device.type)


def scatter_sum(shard: Tensor, whole: Tensor, group: Any) -> None:
    """Fill ``shard`` with this member's part of the sum of all ``whole``, shape (members · numbers,), and wait."""
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)  # its name from torch 2.13 on
    backend = dist.get_backend_config(group)
    given, into = copy_for(backend, whole), copy_for(backend, shard, sent=False)
    scatter(into.host, given.host, group=group)
    into.put(into.host)


class GatherWork(dist.Work):
    """Fills ``whole``, shape (members · numbers,), with the shards of all members of a group, from now on.

    torch waits for it, inside of ``waiting()``.
    """

    def __init__(
        self, whole: Tensor, shard: Tensor, group: Any, waiting: Callable[[], AbstractContextManager[None]]
    ) -> None:
        super().__init__()
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its name from torch 2.13 on
        backend = dist.get_backend_config(group)
        self._into = copy_for(backend, whole, sent=False)
        self._given = copy_for(backend, shard)  # until the end
        self._waiting = waiting
        self._work = gather(self._into.host, self._given.host, group=group, async_op=True)

    def wait(self, timeout: timedelta | None = None) -> bool:
        with self._waiting():
            self._work.wait()
            self._into.put(self._into.host)
        return True


@dataclass(slots=True)
class _Several:
    """Works that have ended when all have."""

    works: Sequence[Any]

    def wait(self) -> None:
        for work in self.works:
            work.wait()


class _GroupCarrier:
    def __init__(self, group: Any) -> None:
        self._group = group
        self._nccl = "nccl" in dist.get_backend_config(group)
        # gloo's own thread must never destroy a work; see uneven.run.lines.bucket_communicator for the deadlock.
        self._kept: list[Any] = []

    def sum(self, tensor: Tensor) -> Work:
        return self._keep(dist.all_reduce(tensor, group=self._group, async_op=True))

    def broadcast(self, tensor: Tensor, source: int) -> Work:
        return self._keep(dist.broadcast(tensor, source, group=self._group, async_op=True))

    def gather(self, tensor: Tensor, into: list[Tensor]) -> Work:
        return self._keep(dist.all_gather(into, tensor, group=self._group, async_op=True))

    def all_to_all(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> Work:
        mine = self._group.rank()
        incoming[mine].copy_(outgoing[mine])
        takes = [(place, one) for place, one in enumerate(incoming) if place != mine and one.numel()]
        gives = [(place, one) for place, one in enumerate(outgoing) if place != mine and one.numel()]
        if self._nccl and any(one.is_cuda for _, one in (*takes, *gives)):  # NCCL must start them together
            ranks = dist.get_process_group_ranks(self._group)
            operations = [dist.P2POp(dist.irecv, one, ranks[place], self._group) for place, one in takes]
            operations += [dist.P2POp(dist.isend, one, ranks[place], self._group) for place, one in gives]
            return self._keep(*dist.batch_isend_irecv(operations))
        # The group's own methods, as in begin_sum. Receives start before sends: if two members send to each other
        # first, gloo uses one direction after the other.
        asked = [self._group.recv([one], place, 0) for place, one in takes]
        given = [self._group.send([one], place, 0) for place, one in gives]
        return self._keep(*asked, *given)

    def send(self, tensor: Tensor, peer: int) -> Work:
        return self._keep(dist.isend(tensor, peer, group=self._group))

    def receive(self, tensor: Tensor, peer: int) -> Work:
        return self._keep(dist.irecv(tensor, peer, group=self._group))

    def close(self) -> None:
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None

    def _keep(self, *works: Any) -> Work:
        self._kept = [*self._kept[-_MOST:], *works]
        return _Several(works)


class _NoMember:
    """The carrier of a worker that is not on the line; it is never used."""

    def close(self) -> None:
        pass


_MOST = 64  # works kept alive, at least until they have been waited for


class GroupLines(Lines):
    """Lines of a run over process groups; ``texts`` gathers a text from every rank, ``refusal`` is why none can be
    opened."""

    def __init__(
        self,
        rank: int,
        members: tuple[int, ...],
        waiting: Waiting,
        *,
        texts: Callable[[str], Sequence[str]],
        timeout_s: float,
        book: TrafficBook,
        refusal: str = "",
    ) -> None:
        super().__init__(rank, members, waiting, book)
        self._all_texts = texts
        self._timeout_s = timeout_s
        self._refusal = refusal

    def open(self, name: str, members: Sequence[int] | None = None) -> Line:
        if self._refusal:
            raise ConfigError(f"line {name!r} cannot be opened: {self._refusal}")
        return super().open(name, members)

    def _texts(self, mine: str) -> Sequence[str]:
        return self._all_texts(mine)

    def _carrier(self, members: tuple[int, ...]) -> Carrier:
        group = new_group(members, self._timeout_s)
        if self.rank not in members:
            return _NoMember()  # type: ignore[return-value]
        carrier = _GroupCarrier(group)
        return HostCarrier(carrier, dist.get_backend_config(group)) if may_stage() else carrier


_REPORTS = "gathering the reports"


class _Gather:
    def __init__(self, work: dist.Work, table: torch.Tensor, roll: RollCall, traffic: Traffic) -> None:
        self._work = work
        self._table = table
        self._roll = roll
        self._traffic = traffic

    def result(self) -> Rows:
        with self._roll.waiting(_REPORTS), self._traffic.waiting():
            self._work.wait()
        rows: Rows = self._table.numpy()
        return rows


class CollectiveTransport:
    """Implements :class:`uneven.run.lines.transport.Transport`; raises :class:`PeerError` if the group is not formed
    in time."""

    def __init__(self, timeout_s: float, roll: RollCall, traffic: Traffic) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._roll = roll
        self._traffic = traffic
        # Its own group: on a shared one, reports and gradients would have to be issued in one common order.
        with roll.waiting("forming the group for reports"):
            self._group: Any = new_group(timeout_s=timeout_s, backend=host_backend())

    def gather(self, row: Sequence[float]) -> _Gather:
        """Start an all-gather of one row of float64."""
        mine = torch.tensor(row, dtype=torch.float64)
        table = torch.empty((self.size, len(row)), dtype=torch.float64)
        with self._roll.waiting(_REPORTS):
            work = dist.all_gather(list(table.unbind()), mine, group=self._group, async_op=True)
        assert work is not None
        self._traffic.sent_bytes += (self.size - 1) * mine.nbytes
        return _Gather(work, table, self._roll, self._traffic)

    def gather_text(self, text: str) -> tuple[str, ...]:
        """Return all workers' texts, by rank; sent as bytes, never unpickled."""
        payload = torch.tensor(list(text.encode()), dtype=torch.uint8)
        lengths = [int(row[0]) for row in self.gather([float(len(payload))]).result()]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)  # all_gather needs equal lengths
        padded[: len(payload)] = payload
        table = torch.empty((self.size, len(padded)), dtype=torch.uint8)
        with self._roll.waiting("comparing the ranks at start"), self._traffic.waiting():
            self._traffic.sent_bytes += (self.size - 1) * padded.nbytes
            dist.all_gather(list(table.unbind()), padded, group=self._group)
        return tuple(bytes(table[rank, :length].tolist()).decode() for rank, length in enumerate(lengths))

    def close(self) -> None:
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None
