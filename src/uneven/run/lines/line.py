"""The interface of a line, independent of its transport."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from uneven.errors import ConfigError
from uneven.run.lines.traffic import Traffic, TrafficBook, bytes_of_sum

Waiting = Callable[[str], AbstractContextManager[None]]
"""A function from the name of an exchange to a context in which this worker waits for others. Time inside counts as
communication, and a failure inside becomes a PeerError with the missing ranks."""


class Work(Protocol):
    """A started exchange."""

    def wait(self) -> tuple[int, ...] | None:
        """Wait until it has ended here; return the ranks whose tensors are in it, or None for all members.
        Raises :class:`RuntimeError` if a worker did not take part."""


class Carrier(Protocol):
    """The transport of tensors among the members of one line. ``peer`` and ``source`` are ranks of the run.

    All methods start an exchange and return; its tensors must not be used until the work is done.
    """

    def sum(self, tensor: Tensor) -> Work: ...
    def broadcast(self, tensor: Tensor, source: int) -> Work: ...
    def gather(self, tensor: Tensor, into: list[Tensor]) -> Work: ...
    def all_to_all(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> Work: ...
    def send(self, tensor: Tensor, peer: int) -> Work: ...
    def receive(self, tensor: Tensor, peer: int) -> Work: ...
    def close(self) -> None: ...


class Handle:
    """An exchange under way. Wait for it before you use its tensors again."""

    def __init__(self, work: Work, what: str, line: "Line") -> None:
        self._work: Work | None = work
        self._what = what
        self._line = line
        self._there = line.members

    def wait(self) -> tuple[int, ...]:
        """Wait until the exchange has ended on this worker; a second call returns immediately.

        Returns:
            The ranks whose tensors are in it, the same on all members. In an elastic run a lost worker's may be
            missing.

        Raises:
            PeerError: a worker did not take part in time; the message names it.
        """
        work, self._work = self._work, None
        if work is not None:
            with self._line.waiting(self._what), self._line.traffic.waiting():
                there = work.wait()
            self._there = self._there if there is None else there
        return self._there


class Line:
    """A component's line to the same component on other workers. All members make the same calls in the same order.

    Each call starts an exchange and returns a :class:`Handle`: ``line.sum(x).wait()`` waits immediately,
    ``handle = line.sum(x)`` … ``handle.wait()`` later. Exchanges work in place without a copy, so tensors must be
    contiguous. They must have the same shape and dtype on every member. Only ``ThreadLines`` checks this: between
    processes another size ends the run, and another dtype of the same size gives wrong numbers.

    Every exchange raises :class:`~uneven.errors.ConfigError` for a tensor that is not contiguous, a rank that is not a
    member, and lists of another length than ``members``.

    Attributes:
        name: for messages and the journal.
        rank: this worker.
        members: ranks on the line, ascending.
        waiting: a context in which this worker waits for others.
        traffic: bytes and waits on this line.
    """

    def __init__(
        self, name: str, rank: int, members: tuple[int, ...], carrier: Carrier, waiting: Waiting, traffic: Traffic
    ) -> None:
        self.name = name
        self.rank = rank
        self.members = members
        self.waiting = waiting
        self.traffic = traffic
        self._carrier = carrier

    def sum(self, tensor: Tensor) -> Handle:
        """Replace ``tensor``, any shape, by its sum over the members."""
        self._flat(tensor)
        sent = bytes_of_sum(tensor.nbytes, len(self.members))
        return self._begin("sum", lambda: self._carrier.sum(tensor), sent)

    def broadcast(self, tensor: Tensor, source: int) -> Handle:
        """Replace ``tensor``, any shape, by that of the member ``source``."""
        self._check(source)
        self._flat(tensor)
        sent = (len(self.members) - 1) * tensor.nbytes if source == self.rank else 0
        return self._begin("broadcast", lambda: self._carrier.broadcast(tensor, source), sent)

    def gather(self, tensor: Tensor, into: list[Tensor]) -> Handle:
        """Send ``tensor`` to all; ``into`` has a tensor of the same shape for each member, in the order of members."""
        if len(into) != len(self.members):
            raise ConfigError(f"line {self.name!r}: gather into {len(into)} tensors on {len(self.members)} members")
        self._flat(tensor, *into)
        sent = (len(self.members) - 1) * tensor.nbytes
        return self._begin("gather", lambda: self._carrier.gather(tensor, into), sent)

    def all_to_all(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> Handle:
        """Exchange pieces, any shape: the i-th of ``outgoing`` goes to the i-th member, whose piece arrives in the i-th
        of ``incoming``. Sizes may differ from pair to pair, and be 0."""
        if not len(outgoing) == len(incoming) == len(self.members):
            raise ConfigError(
                f"line {self.name!r}: all_to_all with {len(outgoing)} tensors to send and {len(incoming)} to receive "
                f"on {len(self.members)} members: give one for each, this worker's own included"
            )
        self._flat(*outgoing, *incoming)
        sent = sum(one.nbytes for member, one in zip(self.members, outgoing, strict=True) if member != self.rank)
        return self._begin("all_to_all", lambda: self._carrier.all_to_all(outgoing, incoming), sent)

    def send(self, tensor: Tensor, peer: int) -> Handle:
        """Send ``tensor``, any shape, to one other member, which must receive it."""
        self._check_other(peer)
        self._flat(tensor)
        return self._begin(f"send to rank {peer}", lambda: self._carrier.send(tensor, peer), tensor.nbytes)

    def receive(self, tensor: Tensor, peer: int) -> Handle:
        """Replace ``tensor`` by one that another member sends, of the same shape."""
        self._check_other(peer)
        self._flat(tensor)
        return self._begin(f"receive from rank {peer}", lambda: self._carrier.receive(tensor, peer), 0)

    def close(self) -> None:
        self._carrier.close()

    def _check(self, peer: int) -> None:
        if peer not in self.members:
            raise ConfigError(f"line {self.name!r}: rank {peer} is not one of its members, {self.members}")

    def _check_other(self, peer: int) -> None:
        self._check(peer)
        if peer == self.rank:
            raise ConfigError(f"line {self.name!r}: rank {peer} is this worker itself; name another member")

    def _flat(self, *tensors: Tensor) -> None:
        # gloo reads memory from the first element on and ignores strides, so it would exchange other elements.
        for one in tensors:
            if not one.is_contiguous():
                raise ConfigError(
                    f"line {self.name!r}: a tensor of shape {tuple(one.shape)} and strides {one.stride()} is not "
                    f"contiguous; exchange tensor.contiguous(), and copy the result back"
                )

    def _begin(self, kind: str, begin: Callable[[], Work], sent_bytes: int) -> Handle:
        if self.rank not in self.members:
            raise ConfigError(f"line {self.name!r}: rank {self.rank} is not one of its members, {self.members}")
        what = f"{kind} on line {self.name!r}"
        with self.waiting(what):  # gloo raises here already if a peer is known to have failed
            work = begin()
        self.traffic.sent_bytes += sent_bytes
        return Handle(work, what, self)


class Lines(ABC):
    """A factory of lines; every worker opens the same ones in the same order, including those without itself as a
    member.

    Attributes:
        rank: this worker.
        members: all ranks of the run.
        opened: all lines, in that order.
        changing: whether workers may leave and join.
        book: counts the traffic on them.
    """

    changing = False

    def __init__(self, rank: int, members: tuple[int, ...], waiting: Waiting, book: TrafficBook | None = None) -> None:
        self.rank = rank
        self.members = members
        self.opened: list[Line] = []
        self.book = book or TrafficBook()
        self._waiting = waiting

    def open(self, name: str, members: Sequence[int] | None = None) -> Line:
        """Return a new line.

        Args:
            name: for messages and the journal.
            members: ranks on it; all of the run if None.

        Raises:
            ConfigError: workers open different lines at the same time, or a member does not exist.
            PeerError: a worker did not open it in time.
        """
        those = self.members if members is None else tuple(sorted(set(members)))
        if not those or not set(those) <= set(self.members):
            raise ConfigError(f"line {name!r} for ranks {those}: the run has {self.members}")
        mine = json.dumps([name, those])
        # Without this comparison, workers that open lines in different orders would mix the lines' tensors.
        for rank, other in enumerate(self._texts(mine)):
            if other != mine:
                raise ConfigError(
                    f"line {name!r} is opened on rank {self.rank} while rank {rank} opens {json.loads(other)}: every "
                    f"worker must attach the same callbacks in the same order, and open the same lines"
                )
        with self._waiting(f"opening line {name!r}"):
            carrier = self._carrier(those)
        line = Line(name, self.rank, those, carrier, self._waiting, self.book.open(name))
        self.opened.append(line)
        return line

    def members_changed(self, members: tuple[int, ...]) -> None:
        """Change the members; lines continue among these."""
        self.members = members
        for line in self.opened:
            line.members = members

    def close(self) -> None:
        for line in self.opened:
            line.close()
        self.opened.clear()

    @abstractmethod
    def _texts(self, mine: str) -> Sequence[str]:
        """Return every worker's text, by rank."""

    @abstractmethod
    def _carrier(self, members: tuple[int, ...]) -> Carrier:
        """Create a carrier; called by all ranks of the run, including those that are not members."""
