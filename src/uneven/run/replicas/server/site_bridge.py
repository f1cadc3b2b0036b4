"""The exchange of significant updates between sites' parameter servers: Gaia's mirror client and server.

A thread of the site's first worker, which keeps the server. It is a member without steps there, so a worker that waits
for all clocks also waits for other sites' updates::

    follow the site's clock ─► movement of its copy ─► pick, send ─► receive ─► add to the copy ─► follow …

Each message holds its site's clock. At the end of an epoch some workers have no samples left. No worker waits for their
clocks, or a site in a later epoch, or one whose workers all wait in ``session.evaluation_model()`` or have left. So a
site's clock is that of its workers in the earliest epoch that any of them is in. It falls back to the least clock of
all of them when that epoch changes. A site starts an epoch when all others are in it too.
"""

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from uneven.errors import NonFiniteError, PeerError
from uneven.policy.control.step_plans import StepPlans
from uneven.policy.select import Accumulator, Picked, pack, unpack
from uneven.run.lines.traffic import Traffic
from uneven.run.replicas.sparse.unsent import LineThreshold
from uneven.runtime.messages.peer_messages import PeerMessages
from uneven.runtime.parameter_server.client import ClockFollower, SiteNews
from uneven.runtime.parameter_server.connection import ShardLine
from uneven.runtime.parameter_server.pure.partition import PartitionTable
from uneven.runtime.parameter_server.pure.roster import FOLLOWER
from uneven.runtime.parameter_server.pure.wire import Array

_HEAD = struct.Struct("<QQ")
_ALL = (1 << 64) - 1  # meetings of a site whose workers have left
_PATIENCE_S = 1e9  # no time-out here: the workers that wait for this thread have their own
_ENDS_WITHIN_S = 10.0


@dataclass(slots=True)
class OtherSite:
    """Another site, as of its newest message.

    Attributes:
        speaker: rank of its first worker.
        clock: its clock, up to which this site has received all significant updates.
        meetings: number of calls of ``session.evaluation_model()`` that all its workers have reached.
    """

    speaker: int
    traffic: Traffic
    clock: int = 0
    epochs: int = 0
    meetings: int = 0


class BetweenSites:
    """One site's part.

    Args:
        plans: of the site's first worker, used by this thread only: what is picked, and how far a site may lead.
        rate: returns the learning rate as a part of the first one.
        post: its peers are the speakers of the others.
    """

    def __init__(
        self, plans: StepPlans, others: Sequence[OtherSite], post: PeerMessages, rate: Callable[[], float]
    ) -> None:
        self._plans = plans
        self._others = list(others)
        self._post = post
        self._rate = rate
        self._threshold = LineThreshold()
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._told: Callable[[Exception], None] = lambda error: None
        self._client: ClockFollower
        self._sums: Accumulator
        self._base: Array  # this thread's version of the copy, shape (size,)
        self._clock = 0
        self._epochs = 0  # as last received from the server
        self._met = 0
        post.patient = lambda: not self._ended.is_set()

    @property
    def held(self) -> Array:
        """The site's movement that it has not sent, shape (size,)."""
        return self._sums.held

    def begin(
        self, table: PartitionTable, values: Array, line: ShardLine, clock: int, told: Callable[[Exception], None]
    ) -> None:
        """Start the thread; ``values`` are the initial copy, shape (size,), after ``clock`` steps of the site's
        workers. The thread calls ``told`` with its error."""
        self._clock, self._base, self._told = clock, values.copy(), told
        self._sums = Accumulator(np.zeros_like(values))
        for other in self._others:
            other.clock = clock
        self._client = ClockFollower(FOLLOWER, table, [values], line, clock=clock, timeout_s=_PATIENCE_S)
        self._thread = threading.Thread(target=self._run, name="uneven-between-sites", daemon=True)
        self._thread.start()

    def close(self, failed: bool) -> None:
        """Wait until all workers of all sites have left, or stop immediately if something has failed.
        Raises :class:`PeerError` if the thread itself has failed."""
        if self._thread is None:
            self._post.close(failed)
            return
        if failed:
            self._ended.set()
            self._client.broken(PeerError("the session has ended"))
        self._thread.join(_ENDS_WITHIN_S if failed else None)
        if self._error is not None and not failed:
            raise self._error

    # ---------------------------------------------------------------- the thread
    def _run(self) -> None:
        try:
            while self._follow():
                pass
            self._post.close(failed=False)
        except (RuntimeError, PeerError, NonFiniteError) as error:
            self._error = PeerError(f"the exchange between sites has ended: {error}")
            self._post.close(failed=True)
            self._told(self._error)
        finally:
            self._client.close()

    def _follow(self) -> bool:
        """Take one turn; return whether there are more."""
        values, before = np.empty_like(self._base), self._clock
        news = self._client.follow(self._clock + 1, self._epochs, values)
        self._clock, self._epochs = news.clock if news.epochs else before, news.epochs
        # While any worker trains, movement ahead of the clock waits: other sites must not receive a step early.
        if self._clock > before or not self._epochs:
            self._base, moved = values, np.subtract(values, self._base, out=self._base)
        else:
            moved = np.zeros_like(values)
        lead = self._tell(moved, _ALL if news.left else self._met + (not self._epochs))
        heard = self._hear(lead, news)
        self._client.push(self._clock - 1, [heard])
        self._base += heard
        self._client.through(self._epochs)  # 0 if no worker trains; earlier clocks are then void
        if not self._epochs and not news.left:
            self._met += 1
            self._client.meet(self._met).result()
        return not news.left

    def _tell(self, moved: Array, meetings: int) -> int:
        """Send the significant part of the copy's movement; return how far a site may lead."""
        exchange = self._plans.at(max(0, self._clock - 1)).exchanges[-1]
        assert exchange.select is not None
        picked = Picked(len(moved), np.zeros(0, np.int64), moved[:0])
        if moved.any():  # otherwise nothing new can be significant
            self._sums.add(moved)
            picked = self._sums.take(self._threshold.within(exchange.select), self._base, self._rate())
        message = _HEAD.pack(self._epochs, meetings) + pack(picked, self._clock)
        for other in self._others:
            self._post.send(other.speaker, message)
            other.traffic.sent_bytes += len(message)
        self._threshold.sent_bytes = len(message) * len(self._others)
        return exchange.far.lead

    def _hear(self, lead: int, news: SiteNews) -> Array:
        """Return the sum, shape (size,), of updates that lead by at most ``lead`` and those that this site awaits."""
        total = np.zeros_like(self._base)
        for other in self._others:
            while self._awaits(other, self._clock - lead, news) or (
                other.clock < self._clock + lead and self._post.arrived(other.speaker)
            ):
                with other.traffic.waiting():
                    message = self._post.receive(other.speaker)
                found = unpack(message[_HEAD.size :], len(total), total.dtype.itemsize)
                other.epochs, other.meetings = _HEAD.unpack(message[: _HEAD.size])
                other.clock = found.clock
                found.picked.add_to(total)
        return total

    def _awaits(self, other: OtherSite, due: int, news: SiteNews) -> bool:
        if news.left or other.meetings > self._met:  # no worker trains there until this site has met too
            return False
        if not self._epochs or other.epochs != self._epochs:
            return other.epochs < self._epochs or not self._epochs
        return other.clock < due
