"""What a line can do, whoever carries it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from uneven.errors import ConfigError
from uneven.run.lines.traffic import Traffic, TrafficBook, bytes_of_sum

Waiting = Callable[[str], AbstractContextManager[None]]
"""What is waited for → a block inside of which this worker waits for others. Time in it is an exchange's, and a failure
in it becomes a PeerError that names the missing."""


class Work(Protocol):
    """What a carrier has begun."""

    def wait(self) -> tuple[int, ...] | None:
        """Return when it is done here.

        Returns:
            The ranks whose tensors are in it; None if those of all members are.

        Raises:
            RuntimeError: somebody did not take part.
        """
        ...


class Carrier(Protocol):
    """Moves tensors among the members of one line. ``peer`` and ``source`` are ranks of the run.

    All begin and come back; a tensor may not be touched until the work is done.
    """

    def sum(self, tensor: Tensor) -> Work: ...
    def broadcast(self, tensor: Tensor, source: int) -> Work: ...
    def gather(self, tensor: Tensor, into: list[Tensor]) -> Work: ...
    def all_to_all(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> Work: ...
    def send(self, tensor: Tensor, peer: int) -> Work: ...
    def receive(self, tensor: Tensor, peer: int) -> Work: ...
    def close(self) -> None: ...


class Handle:
    """An exchange that is under way. It must be waited for: only then are its tensors this worker's again."""

    def __init__(self, work: Work, what: str, line: Line) -> None:
        self._work: Work | None = work
        self._what, self._line = what, line
        self._there = line.members

    def wait(self) -> tuple[int, ...]:
        """Return when the exchange is done on this worker. A second time returns at once.

        Returns:
            The ranks whose tensors are in it, the same on all members: all of them, but in an elastic run those of a
            worker that was lost may be missing.

        Raises:
            PeerError: somebody did not take part in time; the message says who.
        """
        work, self._work = self._work, None
        if work is not None:
            with self._line.waiting(self._what), self._line.traffic.waiting():
                there = work.wait()
            self._there = self._there if there is None else there
        return self._there


class Line:
    """One part's line to the same part on other workers. All members make the same calls in the same order.

    Each call begins an exchange and returns a :class:`Handle`: ``line.sum(x).wait()`` waits at once,
    ``handle = line.sum(x)`` … ``handle.wait()`` later. All exchanges work on the tensors given, none makes a copy,
    so they must be contiguous. They must have the same shape and dtype on every member, which only ``ThreadLines``
    checks: between processes another size ends the run, and another dtype of the same size gives wrong numbers.

    Every exchange raises :class:`~uneven.errors.ConfigError` for a tensor that is not contiguous, a rank that is no
    member, and lists of another length than ``members``.

    Attributes:
        name: for messages and the journal.
        rank: this worker.
        members: ranks on the line, ascending.
        waiting: inside of it this worker waits for others.
        traffic: what has passed on it.
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
        """Replace ``tensor`` by its sum over the members."""
        self._flat(tensor)
        sent = bytes_of_sum(tensor.nbytes, len(self.members))
        return self._begin("sum", lambda: self._carrier.sum(tensor), sent)

    def broadcast(self, tensor: Tensor, source: int) -> Handle:
        """Replace ``tensor`` by that of the member ``source``."""
        self._check(source)
        self._flat(tensor)
        sent = (len(self.members) - 1) * tensor.nbytes if source == self.rank else 0
        return self._begin("broadcast", lambda: self._carrier.broadcast(tensor, source), sent)

    def gather(self, tensor: Tensor, into: list[Tensor]) -> Handle:
        """Give ``tensor`` to all; ``into`` holds a tensor of that shape for each member, in the order of members."""
        if len(into) != len(self.members):
            raise ConfigError(f"line {self.name!r}: gather into {len(into)} tensors on {len(self.members)} members")
        self._flat(tensor, *into)
        sent = (len(self.members) - 1) * tensor.nbytes
        return self._begin("gather", lambda: self._carrier.gather(tensor, into), sent)

    def all_to_all(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> Handle:
        """Send the i-th of ``outgoing`` to the i-th member, whose piece for this worker becomes the i-th of
        ``incoming``. Sizes may differ from pair to pair, and be 0."""
        if not len(outgoing) == len(incoming) == len(self.members):
            raise ConfigError(
                f"line {self.name!r}: all_to_all with {len(outgoing)} tensors to send and {len(incoming)} to receive "
                f"on {len(self.members)} members: give one for each, this worker's own included"
            )
        self._flat(*outgoing, *incoming)
        sent = sum(one.nbytes for member, one in zip(self.members, outgoing, strict=True) if member != self.rank)
        return self._begin("all_to_all", lambda: self._carrier.all_to_all(outgoing, incoming), sent)

    def send(self, tensor: Tensor, peer: int) -> Handle:
        """Send ``tensor`` to one other member, which receives it."""
        self._check_other(peer)
        self._flat(tensor)
        return self._begin(f"send to rank {peer}", lambda: self._carrier.send(tensor, peer), tensor.nbytes)

    def receive(self, tensor: Tensor, peer: int) -> Handle:
        """Replace ``tensor`` by what one other member sends."""
        self._check_other(peer)
        self._flat(tensor)
        return self._begin(f"receive from rank {peer}", lambda: self._carrier.receive(tensor, peer), 0)

    def close(self) -> None:
        """Let go of the group."""
        self._carrier.close()

    def _check(self, peer: int) -> None:
        if peer not in self.members:
            raise ConfigError(f"line {self.name!r}: rank {peer} is none of its members, which are {self.members}")

    def _check_other(self, peer: int) -> None:
        self._check(peer)
        if peer == self.rank:
            raise ConfigError(f"line {self.name!r}: rank {peer} is this worker itself; name another member")

    def _flat(self, *tensors: Tensor) -> None:
        """gloo takes the memory from the first element on, whatever the strides: it would exchange other elements."""
        for one in tensors:
            if not one.is_contiguous():
                raise ConfigError(
                    f"line {self.name!r}: a tensor of shape {tuple(one.shape)} and strides {one.stride()} is not "
                    f"contiguous; exchange tensor.contiguous(), and copy the result back"
                )

    def _begin(self, kind: str, begin: Callable[[], Work], sent_bytes: int) -> Handle:
        if self.rank not in self.members:
            raise ConfigError(f"line {self.name!r}: rank {self.rank} is none of its members, which are {self.members}")
        what = f"{kind} on line {self.name!r}"
        with self.waiting(what):  # gloo already fails here where a peer is known to be gone
            work = begin()
        self.traffic.sent_bytes += sent_bytes
        return Handle(work, what, self)


class Lines(ABC):
    """Makes lines; every worker opens the same ones in the same order, also those that it is no member of.

    Attributes:
        rank: this worker.
        members: all ranks of the run.
        opened: all lines, in that order.
        changing: whether workers may leave and join.
        book: counts what passes on them.
    """

    changing = False

    def __init__(self, rank: int, members: tuple[int, ...], waiting: Waiting, book: TrafficBook | None = None) -> None:
        self.rank, self.members = rank, members
        self.opened: list[Line] = []
        self.book = book or TrafficBook()
        self._waiting = waiting

    def open(self, name: str, members: Sequence[int] | None = None) -> Line:
        """A new line.

        Args:
            name: for messages and the journal.
            members: ranks on it; all of the run if None.

        Raises:
            ConfigError: workers open different lines at the same moment, or members that do not exist.
            PeerError: somebody did not open it in time.
        """
        those = self.members if members is None else tuple(sorted(set(members)))
        if not those or not set(those) <= set(self.members):
            raise ConfigError(f"line {name!r} for ranks {those}: the run has {self.members}")
        mine = json.dumps([name, those])
        for rank, other in enumerate(self._texts(mine)):
            if other != mine:
                raise ConfigError(
                    f"line {name!r} is opened on rank {self.rank} while rank {rank} opens {json.loads(other)}: every "
                    f"worker must attach the same parts in the same order, and open the same lines"
                )
        with self._waiting(f"opening line {name!r}"):
            carrier = self._carrier(those)
        line = Line(name, self.rank, those, carrier, self._waiting, self.book.open(name))
        self.opened.append(line)
        return line

    def members_changed(self, members: tuple[int, ...]) -> None:
        """Workers have left or joined; lines of all go on among these."""
        self.members = members
        for line in self.opened:
            line.members = members

    def close(self) -> None:
        """Close all lines."""
        for line in self.opened:
            line.close()
        self.opened.clear()

    @abstractmethod
    def _texts(self, mine: str) -> Sequence[str]:
        """Everybody's, by rank."""

    @abstractmethod
    def _carrier(self, members: tuple[int, ...]) -> Carrier:
        """Called by all ranks of the run, also by those that are no members."""
