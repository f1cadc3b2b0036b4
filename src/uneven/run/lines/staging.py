"""The way of tensors through host memory, if the back end does not take them from the device.

Everything that workers exchange passes here: buckets of gradients (:class:`HostRounds`), tensors on lines
(:class:`HostCarrier`), and vectors of replicas, which are in host memory then (:mod:`uneven.run.replicas.flat`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from uneven.policy.core.back_end import takes
from uneven.policy.core.membership import Members
from uneven.run.lines.communicator import RoundPlace, SummedInPlace, Weight, unscaled
from uneven.run.lines.control_words import ControlWords
from uneven.run.lines.line import Carrier, Work

if TYPE_CHECKING:
    from uneven.run.lines.bucket_communicator import BucketCommunicator
    from uneven.run.lines.elastic_communicator import ElasticCommunicator

_PINNED = ("cuda", "xpu")  # devices that copy from and to pinned memory while they compute

forced = False
"""Whether tensors in host memory are copied as well; :func:`uneven.testing.staging.staging_forced` sets it."""


def may_stage() -> bool:
    """Return whether any tensor of this process can need the way through host memory."""
    return forced or torch.accelerator.is_available()


def is_taken(tensor: Tensor, backend: str = "gloo") -> bool:
    """Return whether a back end takes a tensor of any shape from its own memory."""
    kind = tensor.device.type
    return takes(backend, kind) and not (forced and kind == "cpu")


def host_room(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return uninitialized host memory of this shape for copies from and to ``device``."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type in _PINNED)


def mark_copied(device: torch.device) -> Any:
    """Return an event behind the copies that were issued so far; None if the host made them itself."""
    if device.type == "cpu":
        return None
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return event


class HostCopy:
    """A tensor of any shape, and the one in host memory that is exchanged instead of it.

    Attributes:
        own: the tensor.
        host: in host memory; ``own`` itself if the back end takes it.
    """

    __slots__ = ("_copied", "host", "own")

    def __init__(self, own: Tensor, *, taken: bool) -> None:
        self.own = own
        self.host = own if taken else host_room(own.shape, own.dtype, own.device)
        self._copied: Any = None

    def fetch(self) -> None:
        """Start to copy the tensor to the host, behind the work that computes it."""
        if self.host is not self.own:
            self.host.copy_(self.own, non_blocking=True)
            self._copied = mark_copied(self.own.device)

    def is_here(self) -> bool:
        """Return whether the copy is complete, without waiting."""
        return self._copied is None or self._copied.query()

    def wait(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()

    def put(self, values: Tensor) -> None:
        """Replace the tensor by ``values`` in host memory, of its shape, which stay until the next :meth:`fetch`."""
        if values is not self.own:
            self.own.copy_(values, non_blocking=self.own.device.type in _PINNED)


def copy_for(backend: str, tensor: Tensor, *, sent: bool = True) -> HostCopy:
    """Return the copy of a tensor of any shape for a back end; unless it is ``sent``, the copy has no values."""
    copy = HostCopy(tensor, taken=is_taken(tensor, backend))
    if sent:
        copy.fetch()
        copy.wait()
    return copy


@contextmanager
def on_host(tensor: Tensor, group: Any = None) -> Iterator[Tensor]:
    """Yield the tensor, of any shape, or a copy that replaces it at the end if the group does not take it."""
    copy = copy_for(dist.get_backend_config(group), tensor)
    yield copy.host
    copy.put(copy.host)


@dataclass(slots=True)
class _Bucket:
    """One tensor of a round, and the objects reused in each exchange of it."""

    copy: HostCopy
    sum_room: Tensor | None  # memory of the sum, if that is not the copy
    weight: Weight = unscaled
    piece: Any = None  # what the caller has
    inner: Any = None  # the same of the copy, once its exchange has begun

    def land(self) -> None:
        self.copy.put(self.inner.sum)
        self.piece.fine, self.piece.sent_bytes = self.inner.fine, self.inner.sent_bytes
        if self.sum_room is not None:  # after a loss the sum has other memory
            self.sum_room = self.inner.sum


class HostRounds:
    """Rounds of gradients through host memory, with the methods of :class:`.bucket_communicator.BucketCommunicator`.

    A bucket is copied while the backward pass continues. Its exchange begins once the copy is complete. Each further
    bucket tests that, and the end of the pass waits for it, while the device still computes.

    Args:
        rounds: exchanges the copies.
    """

    in_place = whole = True

    def __init__(self, rounds: "BucketCommunicator | ElasticCommunicator") -> None:
        self._rounds = rounds
        self._buckets: list[_Bucket] = []  # of this round, then those of the last one that have no successor yet
        self._added = self._begun = 0  # in this round

    def meet(self, device: torch.device, ends: Callable[[], None]) -> ControlWords | None:
        return self._rounds.meet(torch.device("cpu"), ends)

    def begin(self, place: RoundPlace) -> None:
        self._rounds.begin(place)

    def add(self, own: Tensor, weight: Weight = unscaled, *, into: Tensor | None = None) -> SummedInPlace:
        at, self._added = self._added, self._added + 1
        if at >= len(self._buckets) or self._buckets[at].copy.own is not own:
            room = None if self._rounds.in_place else host_room(own.shape, own.dtype, own.device)
            self._buckets[at:] = [_Bucket(HostCopy(own, taken=own.is_sparse or is_taken(own)), room)]
        bucket = self._buckets[at]
        bucket.weight, bucket.piece = weight, SummedInPlace(own)
        bucket.copy.fetch()
        self._exchange()
        return bucket.piece

    def _exchange(self, *, wait: bool = False) -> None:
        """Begin the exchange of the copies that are complete, in order; of all if ``wait``."""
        for bucket in self._buckets[self._begun : self._added]:
            if wait:
                bucket.copy.wait()
            elif not bucket.copy.is_here():
                return
            bucket.inner = self._rounds.add(bucket.copy.host, bucket.weight, into=bucket.sum_room)
            self._begun += 1

    def land(self, *, words: bool = False) -> Members:
        self._exchange(wait=True)
        landed, self._added, self._begun = self._buckets[: self._added], 0, 0
        members = self._rounds.land(words=words)
        for bucket in landed:
            bucket.land()
        return members

    def nonfinite(self) -> bool:
        return self._rounds.nonfinite()


@dataclass(slots=True)
class _Arriving:
    """An exchange of copies, which replace their tensors at its end."""

    work: Work
    copies: Sequence[HostCopy]

    def wait(self) -> Members | None:
        there = self.work.wait()
        for copy in self.copies:
            copy.put(copy.host)
        return there


class HostCarrier:
    """A carrier of tensors through host memory; implements :class:`.line.Carrier`.

    Args:
        carrier: exchanges the copies, or the tensors that its ``backend`` takes.
    """

    def __init__(self, carrier: Carrier, backend: str = "gloo") -> None:
        self._carrier = carrier
        self._backend = backend

    def sum(self, tensor: Tensor) -> Work:
        copy = copy_for(self._backend, tensor)
        return _Arriving(self._carrier.sum(copy.host), [copy])

    def broadcast(self, tensor: Tensor, source: int) -> Work:
        copy = copy_for(self._backend, tensor)
        return _Arriving(self._carrier.broadcast(copy.host, source), [copy])

    def gather(self, tensor: Tensor, into: list[Tensor]) -> Work:
        given, arriving = copy_for(self._backend, tensor), self._arriving(into)
        return _Arriving(self._carrier.gather(given.host, [one.host for one in arriving]), arriving)

    def all_to_all(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> Work:
        given, arriving = [copy_for(self._backend, one).host for one in outgoing], self._arriving(incoming)
        return _Arriving(self._carrier.all_to_all(given, [one.host for one in arriving]), arriving)

    def send(self, tensor: Tensor, peer: int) -> Work:
        return self._carrier.send(copy_for(self._backend, tensor).host, peer)

    def receive(self, tensor: Tensor, peer: int) -> Work:
        copies = self._arriving([tensor])
        return _Arriving(self._carrier.receive(copies[0].host, peer), copies)

    def close(self) -> None:
        self._carrier.close()

    def _arriving(self, tensors: Sequence[Tensor]) -> list[HostCopy]:
        return [copy_for(self._backend, one, sent=False) for one in tensors]
