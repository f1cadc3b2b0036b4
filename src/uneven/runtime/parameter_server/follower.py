"""The member of a shard that takes no steps, but follows the clock of the workers."""

from __future__ import annotations

from typing import NamedTuple

from uneven.runtime.parameter_server.client import Client
from uneven.runtime.parameter_server.pure.wire import Array, Kind


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
