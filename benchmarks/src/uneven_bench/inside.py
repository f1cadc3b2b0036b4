"""Observe the inside of a session: the one file of tests and benches that knows where its parts are.

::

    inside(session).rounds(before=lambda number: strike(number), after=lambda made: log(made.contributors))
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from uneven.policy.core.records import ExchangeRecord
from uneven.run.session import Session

Members = tuple[int, ...]


class Round(NamedTuple):
    """A complete round of sums of an elastic run."""

    number: int
    what: str  # its name in messages
    settles: int  # the iteration up to which samples count as used; −1 for none
    contributors: Members
    groups: tuple[Members, ...] | None  # the groups of its members; None for one sum over all members
    sums: list[Tensor]  # must not be changed


def inside(session: Session) -> "Inside":
    """Return the observer of a session, after its ``setup`` and before its first batch."""
    return Inside(session)


class Inside:
    """Observes one session. No observer changes what the session computes."""

    def __init__(self, session: Session) -> None:
        self._loop = session._loop
        self._threads = session._threads

    @property
    def part(self) -> Any:
        """The batch in hand, a ``Portion``, of this thread; None without one."""
        return self._loop.part if self._threads._running is None else self._threads._running._here.seat.part

    @property
    def sync(self) -> Any:
        """The exchanges of the policy."""
        return self._loop.model.agreement

    @property
    def gradients(self) -> Any:
        """The exchange of gradients."""
        return self._loop.gradients

    @property
    def elastic(self) -> Any:
        """The elastic run, or the fixed members."""
        return self._loop.context.participants

    @property
    def traffic(self) -> Any:
        """The bytes sent on each line."""
        return self._loop.context.connection.traffic

    @property
    def exchanges(self) -> int:
        """Complete rounds of an elastic run."""
        return int(self.elastic.rounds.exchanges)

    @property
    def noted(self) -> int:
        """The number of this worker's newest update whose samples are noted."""
        return int(self.elastic.claims._holding.update)

    def rounds(
        self, before: Callable[[int], object] | None = None, after: Callable[[Round], object] | None = None
    ) -> None:
        """Call ``before`` with the number of each round that starts, and ``after`` with each complete round."""
        rounds = self.elastic.rounds
        begin, complete = rounds.begin, rounds.complete

        def beginning(at: Any) -> None:
            if before is not None:
                before(rounds.exchanges)
            begin(at)

        def completing(contributors: Members) -> Any:
            number, at, by = rounds.exchanges, rounds.at, rounds.by
            groups = None if at.groups is None else at.groups(by, rounds.membership.history[by])
            pieces = complete(contributors)
            if after is not None:
                sums = [piece.sum for piece in pieces]
                after(Round(number, at.what, at.settles, contributors, groups, sums))
            return pieces

        rounds.begin, rounds.complete = beginning, completing

    def fail_round(self, until: Callable[[], object]) -> None:
        """Let the next round fail on this worker: it receives the sums, calls ``until``, and treats them as lost."""
        rounds = self.elastic.rounds
        wait = rounds._wait

        def late() -> bool:
            rounds._wait = wait
            rounds._received(rounds.circle)
            until()
            return False

        rounds._wait = late

    def updates(
        self,
        *,
        begins: Callable[[int], object] = lambda update: None,
        gives: Callable[[int, Any], object] = lambda update, samples: None,
        gave: Callable[[int], object] = lambda update: None,
        lost: Callable[[int, int], object] = lambda worker, arrived: None,
    ) -> None:
        """Observe the updates of a worker that leases its samples.

        Args:
            begins: called with the number of an update before its samples are noted.
            gives: called after that, with the noted samples.
            gave: called when the update has arrived.
            lost: called with a lost worker and the number of its last update that has arrived.
        """
        leases = self.elastic.claims
        noting, arriving, losing = leases.gives, leases.gave, leases.lost

        def giving(update: int) -> None:
            begins(update)
            noting(update)
            gives(update, leases._holding.given)

        def given() -> None:
            gave(leases._holding.update)
            arriving()

        def gone(worker: int, arrived: int) -> None:
            lost(worker, arrived)
            losing(worker, arrived)

        leases.gives, leases.gave, leases.lost = giving, given, gone

    def records(self, callback: Callable[[ExchangeRecord], object]) -> None:
        """Send the records of exchanges to ``callback`` instead of the journal."""
        self.sync._on_record = callback

    def cut_parameters(self) -> None:
        """Close the connections of the exchange of parameters, as at the end of this process."""
        lines = self.sync.aggregator.lines
        (lines.aside or lines.waited).close()

    @property
    def sparse(self) -> Any:
        """The exchange of picked entries among sites."""
        return self.sync.aggregator.entries
