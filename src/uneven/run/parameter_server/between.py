"""What the parameter server of a site tells those of the others, and hears of them: Gaia's mirror client and server.

A thread of the site's first worker, which keeps the server. It takes part there as a member that takes no steps, so a
worker that waits for all clocks waits for what other sites have to send, too::

    follow the site's clock ─► what its copy has moved ─► pick, send ─► hear others ─► add it to the copy ─► follow …

Each message says how far its site is. At the end of an epoch some workers find no more samples: nobody waits for their
clocks, nor for a site that is in a later epoch, or whose workers all wait in ``session.evaluated()`` or have left. So
the clock of a site is that of its workers in the first epoch that anybody there is in, and falls back to the least of
all of them when that is another one; a site begins an epoch when all others are in it, too.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from uneven.entries import Accumulator, Picked, pack, unpack
from uneven.errors import NonFiniteError, PeerError
from uneven.run.entries.bandwidth import LineThreshold
from uneven.run.entries.post import Post
from uneven.run.lines.traffic import Traffic
from uneven.run.parameters.plans import Plans
from uneven.server.follower import ClockFollower, SiteNews
from uneven.server.known import FOLLOWER
from uneven.server.line import ShardLine
from uneven.server.partition import PartitionTable
from uneven.server.wire import Array

_HEAD = struct.Struct("<QQ")
_ALL = (1 << 64) - 1
"""Meetings that those have come to who have left."""

_PATIENCE_S = 1e9
"""Workers that wait for this thread say when that takes too long."""

_ENDS_WITHIN_S = 10.0


@dataclass(slots=True)
class OtherSite:
    """Another site, as its messages say.

    Attributes:
        speaker: rank of its first worker.
        traffic: from this site to it.
        clock: its own, up to which all that was significant there has been heard.
        epochs: as in ``SiteNews``.
        meetings: how often its workers have come to ``session.evaluated()``, all of them.
    """

    speaker: int
    traffic: Traffic
    clock: int = 0
    epochs: int = 0
    meetings: int = 0


class BetweenSites:
    """One site's part.

    Args:
        plans: of the site's first worker, used by nobody else, which say what is picked and how far a site may lead.
        rate: the learning rate as a part of the first one, now.
        post: whose peers are the speakers of the others.
    """

    def __init__(self, plans: Plans, others: Sequence[OtherSite], post: Post, rate: Callable[[], float]) -> None:
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
        self._base: Array  # the copy as this thread knows it, shape (size,)
        self._clock = 0
        self._epochs = 0  # as told last
        self._met = 0
        post.patient = lambda: not self._ended.is_set()

    @property
    def held(self) -> Array:
        """What the site has moved and not sent, shape (size,)."""
        return self._sums.held

    def begin(
        self, table: PartitionTable, values: Array, line: ShardLine, clock: int, told: Callable[[Exception], None]
    ) -> None:
        """Training begins.

        Args:
            values: what the copy begins with, shape (size,).
            clock: steps that the site's workers have finished.
            told: hears why this has failed, in its thread.
        """
        self._clock, self._base, self._told = clock, values.copy(), told
        self._sums = Accumulator(np.zeros_like(values))
        for other in self._others:
            other.clock = clock
        self._client = ClockFollower(FOLLOWER, table, [values], line, clock=clock, timeout_s=_PATIENCE_S)
        self._thread = threading.Thread(target=self._run, name="uneven-between-sites", daemon=True)
        self._thread.start()

    def close(self, failed: bool) -> None:
        """Wait until all workers of all sites have left; at once where something has failed.

        Raises:
            PeerError: it has failed by itself.
        """
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
        """One turn; whether there are more."""
        values, before = np.empty_like(self._base), self._clock
        news = self._client.follow(self._clock + 1, self._epochs, values)
        self._clock, self._epochs = news.clock if news.epochs else before, news.epochs
        # Where anybody moves, what is ahead of the clock waits for it: others are to hear of no step before its time.
        if self._clock > before or not self._epochs:
            self._base, moved = values, np.subtract(values, self._base, out=self._base)
        else:
            moved = np.zeros_like(values)
        lead = self._tell(moved, _ALL if news.left else self._met + (not self._epochs))
        heard = self._hear(lead, news)
        self._client.push(self._clock - 1, [heard])
        self._base += heard
        self._client.through(self._epochs)  # where nobody moves, it is 0, and no clock from before holds afterwards
        if not self._epochs and not news.left:
            self._met += 1
            self._client.meet(self._met).result()
        return not news.left

    def _tell(self, moved: Array, meetings: int) -> int:
        """Send what is significant of what the copy has moved; how far a site may lead."""
        far = self._plans.at(max(0, self._clock - 1)).exchanges[-1]
        assert far.select is not None
        picked = Picked(len(moved), np.zeros(0, np.int64), moved[:0])
        if moved.any():  # else all of it was told, or is held back
            self._sums.add(moved)
            picked = self._sums.take(self._threshold.within(far.select), self._base, self._rate())
        message = _HEAD.pack(self._epochs, meetings) + pack(picked, self._clock)
        for other in self._others:
            self._post.send(other.speaker, message)
            other.traffic.sent_bytes += len(message)
        self._threshold.sent_bytes = len(message) * len(self._others)
        return far.lead

    def _hear(self, lead: int, news: SiteNews) -> Array:
        """The sum of what lies here of steps that are not ahead by more than the lead, and of what is waited for.

        Shape (size,).
        """
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
        if news.left or other.meetings > self._met:  # nobody moves there until all are here
            return False
        if not self._epochs or other.epochs != self._epochs:
            return other.epochs < self._epochs or not self._epochs
        return other.clock < due
