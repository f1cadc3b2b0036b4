"""Changes of members that all agree on after a round: each makes a statement, and the next generation follows.

All workers make the same rounds in the same order, so a round can be repaired. Members change between two rounds
(:mod:`uneven.run.lines.elastic_communicator`), in the thread that makes the rounds.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from uneven.policy.core.membership import Generation, Members
from uneven.run.lines.abortable_group import GroupAborted
from uneven.run.lines.control_words import IDLE, JOIN_PENDING, LEAVING, NONE
from uneven.run.membership.elastic_run import LOOK_S, ElasticRun
from uneven.runtime.membership_board import NEWS

if TYPE_CHECKING:
    from uneven.run.replicas.replica_sync import ReplicaSync


class AgreedMembers(ElasticRun):
    """An elastic run whose training thread makes the rounds."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.wrap_again: Callable[[], None] = _nothing  # called when members have come
        # whether nothing is lost with this worker, given the members' announcements
        self.may_leave: Callable[[Sequence[float]], bool] = lambda announced: True

    def announce(self) -> float:
        return LEAVING if self.leaving else super().announce()

    def changed(self, generation: Generation, now: bool, began_s: float) -> None:
        super().changed(generation, now, began_s)
        if now:  # immediately, because weights and shares of this step depend on it; earlier ones come first
            at = self.rounds.at
            self.take_up(-1 if at is None else at.settles)

    def _tell(self, generation: Generation, pause_s: float) -> None:
        if not self.aside:  # otherwise the thread of the rounds has done so
            self.rounds.renew(generation)
            self.rounds.announced()  # drops them: they have the places of the members before
        super()._tell(generation, pause_s)

    def step_over(self) -> None:
        self.flush()
        announced = self.rounds.announced()
        # After a recovery of this exchange the members have already changed here.
        if not any(announced) or self.membership.generation.exchange == self.rounds.exchanges:
            return
        assert self._run is not None
        if self._run.apart:
            return  # a newcomer starts from a merged model without gradients; the next exchange announces it again
        # A worker that leaves before all have the sums would take along tensors that the others need for a repetition.
        through = LEAVING not in announced or self.rounds.all_through()
        leaves = through and announced[self.membership.place] == LEAVING and self.may_leave(announced)
        while (new := self.rounds.serve(between=True, leaving=leaves)).came or leaves:
            if self.membership.worker not in new.members:
                self._leave()
            self.wrap_again()
            try:
                if self.membership.worker in self.membership.donors(new).values():
                    self._give(new)
                return
            except GroupAborted:
                continue

    def _admit(self, new: Generation) -> None:
        """Do nothing yet: the generation may be given up while its members form their group."""

    def _give(self, new: Generation) -> None:
        def over() -> bool:
            return self.membership.generation.number != new.number or self.membership.lost()

        self.give_state(*self._transfer(new), over)

    def _next(self, new: Generation) -> Generation:
        return self.rounds.next_generation(between=True, new=True)

    def _receive(self, new: Generation) -> None:
        self.rounds.exchanges = new.exchange
        if self.rounds.circle is None:
            self.rounds.circle = self.membership.circle("exchanges")
        self.take_state(*self._transfer(new), self.membership.lost)

    def _transfer(self, new: Generation) -> tuple[str, Members]:
        """Return the key of the state that this worker gives or receives, and the donor with its newcomers."""
        donors = self.membership.donors(new)
        donor = donors.get(self.membership.worker, self.membership.worker)
        return f"{new.number}/{donor}", (donor, *(one for one, gives in donors.items() if gives == donor))

    def _part_company(self) -> None:
        if self.rounds.circle is not None:
            self.membership.part_company(self.rounds.serve)


class BackgroundMembers(AgreedMembers):
    """An elastic run whose replicas are merged by a background thread during the training.

    That thread makes the rounds and changes members. The training thread takes up the changes between two steps. It
    waits only at the end of an epoch, before an evaluation, and before it leaves.

    A sample counts as used when a merge contains the steps made from it. The samples of a merge are recorded before it
    starts (:mod:`uneven.policy.samples.leases`), under the number of its exchange.
    """

    aside = True
    merging: "ReplicaSync"  # once there is a model

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self._says = self._next_word = NONE  # announced with the newest merge, and with the next one
        self._news = 0  # the detector's counter at the newest merge
        self._rested = self._out = False
        self._open = True  # whether a merge may admit newcomers
        self._later: list[tuple[Generation, float]] = []  # generations of the round under way
        self.membership.watch.listener = _nothing  # without a listener the detector does not count changes

    # ---------------------------------------------------------------- in the background thread
    def announce(self) -> float:
        return self._says or ElasticRun.announce(self)

    def changed(self, generation: Generation, now: bool, began_s: float) -> None:
        if now:
            self.rounds.renew(generation)
        self._later.append((generation, time.monotonic() - began_s))

    def flush(self) -> None:
        last = self.rounds.exchanges
        there = self.membership.history.get(self.rounds.by, ())
        later, self._later = self._later, []
        for generation, pause_s in later:
            self.rounds.renew(generation)
            # Members are at most one exchange apart, so a lost member is in this exchange or was last in the one
            # before.
            arrived = {one: last if one in there else last - 1 for one in generation.left}
            self._queue.append((generation, pause_s, arrived))

    def merged(self) -> None:
        """Change members, if announced, once the replica contains a merge."""
        self.claims.gave()
        self.flush()
        said = self.rounds.announced()
        self._rested = bool(said) and all(one == IDLE for one in said)
        # A member that rests is on its way to an evaluation or to the end. A newcomer must get its place from a member
        # in the loop.
        open_ = IDLE not in said
        self._open = open_ or self._rested
        if not (LEAVING in said or (JOIN_PENDING in said and open_)):
            return
        # After a recovery of this exchange the members have already changed here.
        if self.membership.generation.exchange == self.rounds.exchanges:
            return
        new = self.rounds.serve(between=open_, leaving=said[self.membership.place] == LEAVING)
        self._out = self.membership.worker not in new.members
        self.flush()

    def begins_merge(self) -> None:
        """Record the samples of a merge that starts now; call it in the training thread."""
        self._says = self._next_word
        self._news = self.membership.watch.news
        self.claims.gives(self.rounds.exchanges + _OF_A_MERGE)

    # ---------------------------------------------------------------- in the training thread
    @property
    def urgent(self) -> bool:
        return self.membership.watch.news != self._news or (self._open and self.membership.somebody_asks)

    def step_over(self) -> None:
        self.take_up()
        if self.leaving:
            self.claims.stop()
            self.membership.board.count(NEWS, 1)  # so that the others merge soon
            self._until(lambda: self._out, LEAVING)
            self._leave()

    def tend(self) -> bool:
        idle = self.merging.idle
        self.step_over()
        if idle and (self.urgent or self.claims.awaited()):
            self._merge(NONE)
            return False
        return idle

    def quiet(self) -> None:
        """Wait until no merge is under way and the newcomers of the last one have their state."""
        self._until(lambda: True)

    def settle(self) -> None:
        """Wait until all that this worker has learnt is in a merge."""
        self.quiet()
        if self.claims.owes:
            self._merge(NONE)
            self.quiet()

    def rest(self) -> None:
        """Take part in merges until all rest and the others have this worker's steps; does nothing after it has
        left."""
        self._rested = False
        if self._in and not self._over:
            # It starts merge after merge. Otherwise one that waits for the end of an epoch would always be in one of
            # these, and would never rest.
            self.claims.aside()
            self._until(lambda: self._rested, IDLE)

    def _until(self, done: Callable[[], bool], says: float = NONE) -> None:
        """Merge until ``done()`` and no merge is under way, and announce ``says`` with each merge."""
        while True:
            idle = self.merging.idle
            self.take_up()
            if idle:
                if done():
                    return
                self._merge(says)
            time.sleep(LOOK_S)

    def _merge(self, says: float) -> None:
        self._next_word = says
        self.merging.merge()
        self._next_word = NONE

    def _admit(self, new: Generation) -> None:
        with contextlib.suppress(GroupAborted):  # one of them has failed; the others ask again
            self._give(new)


def _nothing(*_: object) -> None: ...


_OF_A_MERGE = 2  # exchanges: one in which all start, and the sum
