"""A worker's end of the parameter server.

::

    client = Client(rank, table, arrays, ZmqLine(directory, shards))
    client.push(step, movement, scale=1 / workers)       # returns immediately
    client.pull(step - staleness).into(arrays)           # waits until every worker has finished this number of steps

Every request returns a :class:`Reply` immediately; only asking for its result waits. Any thread may send requests, one
at a time. A background thread transports them, sends heartbeats, and restores the state of a restarted shard.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from uneven.errors import ConfigError, NonFiniteError, PeerError
from uneven.runtime.parameter_server.connection import ShardLine
from uneven.runtime.parameter_server.pure import roster, vectors
from uneven.runtime.parameter_server.pure.conversation import Held, Link
from uneven.runtime.parameter_server.pure.partition import PartitionTable
from uneven.runtime.parameter_server.pure.wire import DTYPES, Array, Kind, Message, Refusal, Vector, piece_lengths

_GRACE_S = 2.0
"""A shard reports missing workers itself; after this additional time, at most double, the shard counts as missing."""


class Client:
    """One worker's connection to all shards of the parameter server.

    Args:
        rank: this worker, 0 to workers − 1.
        table: the sharding of the tensors.
        arrays: the initial tensors, flat, one array each. The lowest rank's become the server's parameters.
        line: the connection to the shards; the client closes it, also if the constructor raises.
        clock: steps that this worker has finished, in a run that resumes from a checkpoint.
        timeout_s: longest wait for a result.
        most_kept: largest number of updates that are in flight, or on the server but not in this worker's newest copy;
            a push beyond it waits for the oldest. A restarted shard gets its state from them.

    Raises:
        ConfigError: the arrays do not fit the table.
    """

    def __init__(
        self,
        rank: int,
        table: PartitionTable,
        arrays: Sequence[Array],
        line: ShardLine,
        *,
        clock: int = 0,
        timeout_s: float = 60.0,
        most_kept: int = 8,
    ) -> None:
        if line.shards != len(table.shards):
            line.close()
            raise ConfigError(
                f"a table for {len(table.shards)} shards, but a connection to {line.shards}: give all the same "
                "--servers"
            )
        self.rank = rank
        self.table = table
        self.timeout_s = timeout_s
        self.most_kept = most_kept
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._replies: dict[tuple[int, int], Reply] = {}
        self._heard_s = dict.fromkeys(range(line.shards), -math.inf)
        self._hurried_s = math.inf
        self._used = [shard for shard in range(line.shards) if table.elements(shard)]
        try:
            first = {shard: Held(0, self._packed(shard, arrays)) for shard in self._used}
        except ConfigError:
            line.close()
            raise
        self._links = {
            shard: Link(rank, table.fingerprint, table.dtype, table.elements(shard), held, timeout_s, clock=clock)
            for shard, held in first.items()
        }
        self.line = line
        line.open(self)

    def push(self, step: int, arrays: Sequence[Array], *, scale: float = 1.0) -> "Reply":
        """Add ``scale`` times the arrays (flat, one per tensor) to the parameters, and report ``step`` as finished.

        The arrays are copied before this returns. The reply is done when every shard has the update in its copy.

        Raises:
            PeerError: too many updates are kept and the shards do not answer.
            ConfigError: the arrays do not fit the table, or the scale is not above 0.
        """
        if not scale > 0:
            raise ConfigError(f"scale={scale}: give a number above 0")
        return self._update(Kind.PUSH, step + 1, scale, arrays)

    def push_pull(self, step: int, arrays: Sequence[Array], *, scale: float = 1.0, clock: int = 0) -> "Reply":
        """Combine :meth:`push` and :meth:`pull`: all workers that wait for one ``clock`` this way get the same copy."""
        if not scale > 0:
            raise ConfigError(f"scale={scale}: give a number above 0")
        return self._update(Kind.PUSH, step + 1, scale, arrays, extra=clock + 1, version=int(1e3 * self.timeout_s))

    def pull(self, clock: int = 0) -> "Reply":
        """Request the parameters after every worker has finished ``clock`` steps, with this worker's pushes so far."""
        return self._ask(Kind.PULL, clock, self.timeout_s)

    def meet(self, count: int) -> "Reply":
        """Request the parameters, the same for all, as of when every worker has come to meeting ``count``, from 1.

        They include every earlier request. Workers that have left but still send heartbeats are waited for too, and
        remain left. A worker that waits here does not delay the pulls of others.
        """
        return self._ask(Kind.MEET, count, self.timeout_s)

    def remove_member(self, rank: int) -> "Reply":
        """Declare a worker failed: no worker waits for it, and the server rejects its messages. The reply's ``clock``
        is the final number of its steps in the parameters."""
        return self._start(Kind.BURY, 0, 0.0, dict.fromkeys(self._used, ()), extra=rank)

    def through(self, epochs: int) -> None:
        """Report that this worker has finished ``epochs`` epochs, so workers in an earlier one do not wait for it."""
        with self._changed:
            for shard in [one for one, link in self._links.items() if link.through != epochs]:
                self._links[shard].through = epochs
                self.line.post(shard, [self._links[shard].beat()])

    def exchange(self, step: int, arrays: Sequence[Array], *, alpha: float) -> "Reply":
        """Do EASGD's elastic exchange: the copy moves by d = α (x − x̃), α in (0, 1]; the arrays x, flat, do not
        change. ``reply.into(arrays)`` moves a replica by −d."""
        if not 0 < alpha <= 1:
            raise ConfigError(f"alpha={alpha}: give a number above 0 and at most 1")
        return self._update(Kind.EXCHANGE, step + 1, alpha, arrays)

    def gradient(self, step: int, arrays: Sequence[Array], *, weight: float, quorum: int) -> "Reply":
        """Contribute to the mean of ``step``, which closes after ``quorum`` contributions. Later ones are dropped."""
        self._make_room()
        packed = {shard: self._packed(shard, arrays) for shard in self._used}
        # A rejected update also cancels the requests after it. The lock keeps the two together, or only the gradient
        # would be cancelled.
        with self._changed:
            self._start(Kind.GRADIENT, step, weight, packed, extra=quorum)
            return self.mean(step)

    def movement(
        self, step: int, arrays: Sequence[Array], *, weight: float, quorum: int, momentum: float, grace: float
    ) -> "Reply":
        """Contribute to the open merge, which closes after ``quorum`` contributions; the reply is the copy after it.

        The copy takes an outer step with Nesterov momentum on the weighted mean of the movements. A movement that
        misses one merge counts in the next. The wait lasts as long as the shards send heartbeats; but see
        :meth:`hurry`. ``grace`` is the additional wait of a quorum, as a part of its first member's wait.
        """
        if not weight > 0:
            raise ConfigError(f"weight={weight}: give a number above 0")
        return self._update(Kind.MOVEMENT, step + 1, weight, arrays, extra=quorum, momentum=momentum, grace=grace)

    def kept(self, wanted: Sequence[Array] = ()) -> "Reply":
        """Request the velocity of the outer steps, shaped like the copy; before the first step, ``wanted`` sets it."""
        if not wanted:
            return self._ask(Kind.ASK, 0, 0.0)
        return self._start(Kind.KEEP, 0, 0.0, {shard: self._packed(shard, wanted) for shard in self._used})

    def mean(self, step: int) -> "Reply":
        """Request the mean of ``step`` without contributing; a shard keeps the last few."""
        return self._ask(Kind.RESULT, step, self.timeout_s)

    def close(self, *, leave: bool = True) -> None:
        """Close the connection; pushes without a result may be lost. Without ``leave`` the shards find out late."""
        if leave:
            self.leave()
        self.line.close()

    def leave(self) -> None:
        """Ask the shards not to wait for this worker. A later request makes it a member again."""
        with self._changed:
            for shard, link in self._links.items():
                self.line.post(shard, [link.leave()])

    def received(self, shard: int, message: Message) -> None:
        if shard not in self._links:
            return
        with self._changed:
            self._heard_s[shard] = time.monotonic()
            out, answers = self._links[shard].receive(message)
            self.line.post(shard, out)
            for number, answer in answers:
                reply = self._replies.pop((shard, number), None)
                if reply is not None:
                    reply.answers[shard] = answer
            if answers:
                self._changed.notify_all()

    def beat(self, shard: int) -> None:
        if shard not in self._links:
            return
        with self._changed:  # under the lock: messages are posted in the order of their numbers
            self.line.post(shard, [self._links[shard].beat()])

    def broken(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Apply the normal time limit to movements inside the block, even if the shards are alive."""
        self._hurried_s = time.monotonic()
        with self._changed:
            self._changed.notify_all()
        try:
            yield
        finally:
            self._hurried_s = math.inf

    def wait(
        self, done: Callable[[], bool], missing: Callable[[], list[int]], what: str, *, patient: bool = False
    ) -> None:
        """Wait until ``done``; if ``patient``, as long as the ``missing`` shards send heartbeats, except inside
        :meth:`hurry`. Raises PeerError with the missing shards if the connection has ended or the time-out has
        passed."""
        limit_s, began_s = self.timeout_s + min(_GRACE_S, self.timeout_s), time.monotonic()
        with self._changed:
            while not done() and self._error is None:
                heard_s = min(self._heard_s[shard] for shard in missing()) if patient else -math.inf
                left_s = max(began_s, min(heard_s, self._hurried_s)) + limit_s - time.monotonic()
                if left_s <= 0:
                    names = ", ".join(f"shard {shard} ({self.line.where(shard)})" for shard in missing())
                    why = f"no answer to {what} within {self.timeout_s:g} s from {names}"
                    if heard_s > self._hurried_s:
                        why = f"{what} has waited {self.timeout_s:g} s for a quorum at {names}: a late worker may hang"
                    raise PeerError(f"rank {self.rank}: {why}")
                self._changed.wait(left_s)
            if self._error is not None and not done():
                raise PeerError(f"rank {self.rank}: the line to the shards has ended: {self._error}") from self._error

    def _update(self, kind: Kind, clock: int, value: float, arrays: Sequence[Array], **more: Any) -> "Reply":
        self._make_room()
        packed = {shard: self._packed(shard, arrays) for shard in self._used}
        return self._start(kind, clock, value, packed, **more)

    def _ask(self, kind: Kind, clock: int, value: float) -> "Reply":
        return self._start(kind, clock, value, dict.fromkeys(self._used, ()))

    def _start(self, kind: Kind, clock: int, value: float, packed: dict[int, Vector], **more: Any) -> "Reply":
        """Send a request to each shard; ``more`` are further fields of its message."""
        reply = Reply(self, kind, clock, packed, value)
        with self._changed:
            for shard, link in self._links.items():
                number, out = link.request(kind, clock=clock, value=value, vector=packed[shard], **more)
                self._replies[shard, number] = reply
                reply.numbers[shard] = number
                self.line.post(shard, out)
        return reply

    def _make_room(self) -> None:
        def kept() -> int:
            return max(len(link.kept) for link in self._links.values())

        with self._changed:
            full = kept() >= self.most_kept
        if full:
            self.pull().result()  # updates in the pulled copy need not be kept

    def _packed(self, shard: int, arrays: Sequence[Array]) -> Vector:
        """Return the part of ``arrays`` (flat, one per tensor) that a shard holds, copied into pieces."""
        dtype = DTYPES[self.table.dtype]
        if tuple(array.size for array in arrays) != self.table.sizes or any(a.dtype != dtype for a in arrays):
            found = [f"{array.size} of {array.dtype}" for array in arrays]
            raise ConfigError(
                f"the table is for tensors of {self.table.sizes} elements of {dtype}, not {found}: give the model's "
                "tensors"
            )
        pieces = [np.empty(length, dtype) for length in piece_lengths(self.table.elements(shard), dtype.itemsize)]
        for tensor, start, stop, number, offset in self.table.moves(shard):
            pieces[number][offset : offset + stop - start] = arrays[tensor][start:stop]
        return tuple(pieces)

    def forget(self, numbers: dict[int, int]) -> None:
        """Cancel the wait for these requests, by shard."""
        with self._changed:
            for shard, number in numbers.items():
                self._links[shard].forget(number)
                self._replies.pop((shard, number), None)


class Reply:
    """The future result of a request; ``answers`` has the shards' answers so far."""

    def __init__(self, client: Client, kind: Kind, clock: int, sent: dict[int, Vector], value: float) -> None:
        self.numbers: dict[int, int] = {}
        self.answers: dict[int, Message] = {}
        self._client = client
        self._kind = kind
        self._clock = clock
        self._sent = sent
        self._value = value

    @property
    def done(self) -> bool:
        return len(self.answers) == len(self._sent)

    def result(self) -> "Reply":
        """Wait for all shards and return this reply.

        Raises:
            PeerError: a shard has not answered, has rejected the request, or has waited too long for workers; the
                message names them.
            NonFiniteError: the update holds or would produce a NaN or an infinity.
        """
        self._wait()
        what, client = self._what, self._client
        for shard, answer in self.answers.items():
            if answer.kind is Kind.MISSING:
                behind = ", ".join(f"{roster.called(one.rank)} (finished {one.clock} steps)" for one in answer.entries)
                raise PeerError(
                    f"rank {client.rank}: {what} waited {client.timeout_s:g} s for {behind or 'no worker'} (shard "
                    f"{shard})"
                )
            if answer.kind is Kind.GONE:
                raise PeerError(
                    f"the mean of step {self._clock} is no longer stored, the newest is {answer.extra}: pull more often"
                )
            if answer.kind is Kind.REFUSED:
                reason = list(Refusal)[answer.extra]
                if reason is Refusal.VALUE:
                    raise NonFiniteError("update of the parameter server", (client.rank,), self._clock)
                raise PeerError(f"shard {shard} rejected {what} of rank {client.rank}: {reason.value}")
        return self

    @property
    def _what(self) -> str:
        return f"{self._kind.name.lower()} of clock {self._clock}"

    def _wait(self) -> None:
        try:
            missing = lambda: [shard for shard in self._sent if shard not in self.answers]  # noqa: E731
            self._client.wait(lambda: self.done, missing, self._what, patient=self._kind is Kind.MOVEMENT)
        except PeerError:
            self._client.forget(self.numbers)
            raise

    def left_out(self) -> bool:
        """Wait for a mean; return whether a shard's mean lacks this worker's contribution or is no longer kept."""
        self._wait()
        if any(answer.kind is Kind.GONE for answer in self.answers.values()):
            return True
        return self.result().late

    def into(self, arrays: Sequence[Array]) -> "Reply":
        """Wait, and write the copy (or the mean) into ``arrays``, flat; after an exchange, move them by −d."""
        self.result()
        for shard, answer in self.answers.items():
            pieces, exchanged = answer.vector, self._kind is Kind.EXCHANGE
            if exchanged:
                pieces = vectors.difference(self._sent[shard], answer.vector, self._value)
            for tensor, start, stop, number, offset in self._client.table.moves(shard):
                target, piece = arrays[tensor][start:stop], pieces[number][offset : offset + stop - start]
                if exchanged:
                    np.subtract(target, piece, out=target)
                else:
                    target[:] = piece
        return self

    @property
    def version(self) -> int:
        """The number of updates in the received copy, the least of all shards. Only after :meth:`result`."""
        return min(answer.version for answer in self.answers.values())

    @property
    def clock(self) -> int:
        """The steps of a failed worker that all shards have. Only after :meth:`result` of
        :meth:`Client.remove_member`."""
        return min(entry.clock for answer in self.answers.values() for entry in answer.entries)

    @property
    def least(self) -> int:
        """The steps that every counted worker had finished in the received copy. Only after :meth:`result`."""
        counted = [one.clock for answer in self.answers.values() for one in answer.entries if one.here]
        return min(counted, default=0)

    @property
    def late(self) -> bool:
        """True if a shard's mean of the step lacks this worker's gradient. Only after :meth:`result`."""
        return any(answer.kind is Kind.MEAN and not answer.value for answer in self.answers.values())

    @property
    def newest(self) -> int:
        """The newest step whose mean is complete on all shards. Only after :meth:`result` of a mean."""
        return min(answer.extra for answer in self.answers.values())


class SiteNews(NamedTuple):
    """The progress of the other members."""

    clock: int  # the least one among those in the earliest current epoch
    epochs: int  # 1 + that epoch; 0 if all others wait in a meeting or have left
    left: bool  # True if all have


class ClockFollower(Client):
    """A client with rank ``known.FOLLOWER``. The other members also wait for its clock, which its pushes advance."""

    def follow(self, clock: int, epochs: int, into: Array) -> SiteNews:
        """Wait until the others' clock reaches ``clock``, or their epoch differs from ``epochs``, as last reported.
        ``into``, shape (size,), receives the copy. Errors as of :meth:`Client.pull`."""
        reply = self._start(Kind.FOLLOW, clock, self.timeout_s, dict.fromkeys(self._used, ()), extra=epochs)
        (answer,) = reply.into([into]).answers.values()
        left = not any(one.here for one in answer.entries if one.rank != self.rank)
        return SiteNews(answer.clock, answer.extra, left)
