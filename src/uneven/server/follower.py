"""The member of a shard that takes no steps, but follows the clock of those who do."""

from __future__ import annotations

from typing import NamedTuple

from uneven.server.client import Client
from uneven.server.wire import Array, Kind


class SiteNews(NamedTuple):
    """How far the others are.

    Attributes:
        clock: the least of those in the first epoch that anybody is in.
        epochs: 1 + that epoch; 0 where nobody moves, as all others wait in a meeting or have left.
        left: whether all have.
    """

    clock: int
    epochs: int
    left: bool


class ClockFollower(Client):
    """See the module; its rank is ``known.FOLLOWER``. The others wait for its clock, too, which its pushes advance."""

    def follow(self, clock: int, epochs: int, into: Array) -> SiteNews:
        """Wait until the others' clock has come so far, or they are in another epoch than was said.

        Args:
            epochs: as it was said last.
            into: for the copy as it is then, shape (size,); it holds all that this member has pushed.

        Raises:
            PeerError: as :meth:`Client.pull`.
        """
        reply = self._start(Kind.FOLLOW, clock, self.timeout_s, dict.fromkeys(self._used, ()), extra=epochs)
        (answer,) = reply.into([into]).answers.values()
        left = not any(one.here for one in answer.entries if one.rank != self.rank)
        return SiteNews(answer.clock, answer.extra, left)
