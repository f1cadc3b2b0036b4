"""An elastic run whose replicas are merged by a background thread during the training.

All workers make the same merges in the same order, so a merge is repaired, and members change between two of them, as
in any elastic run (:mod:`uneven.run.lines.elastic_communicator`), but in the background thread. The training thread
takes up such changes between two steps. It waits only at the end of an epoch, before an evaluation, and before it
leaves.

A sample counts as used when a merge contains the steps made from it. The samples of a merge are recorded before it
starts (:mod:`uneven.policy.samples.leases`), under the number of its exchange.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from uneven.policy.core.membership import Generation
from uneven.policy.core.records import MembershipRecord
from uneven.run.lines.abortable_group import GroupAborted
from uneven.run.lines.control_words import IDLE, JOIN_PENDING, LEAVING, NONE
from uneven.run.membership.generations import Membership
from uneven.run.membership.leasing_run import ClaimingElastic
from uneven.runtime.membership_board import NEWS

_LOOK_S = 0.005


class Merging(Protocol):
    """The merges that this worker makes in the background."""

    @property
    def idle(self) -> bool:
        """True if no merge is under way; raises TrainingError if one has failed."""

    def merge(self) -> None:
        """Start a merge of all that this worker has learnt, if none is under way."""


@dataclass(frozen=True, slots=True)
class _News:
    """A new generation, as of the exchange that completed its change."""

    generation: Generation
    pause_s: float
    arrived: dict[int, int]  # worker that has failed or left → the last exchange that includes it


class BesideElastic(ClaimingElastic):
    """The elastic run of a policy that merges in the background."""

    beside = True

    def __init__(
        self,
        membership: Membership,
        write: Callable[[MembershipRecord], None],
        say: Callable[..., None],
        leave_on: Sequence[int] = (),
    ) -> None:
        super().__init__(membership, write, say, leave_on)
        self.merging: Merging | None = None  # once there is a model
        self._says = self._next = NONE  # announced with the newest merge, and with the next one
        self._news = 0  # the detector's counter at the newest merge
        self._rested = self._out = False
        self._heard: deque[_News] = deque()  # from the background thread to the training thread
        membership.watch.listener = _nothing  # without a listener the detector does not count changes

    # ---------------------------------------------------------------- where exchanges are made
    def announce(self) -> float:
        return self._says or (JOIN_PENDING if self.membership.somebody_asks else NONE)

    def changed(self, generation: Generation, now: bool, began_s: float) -> None:
        if now:
            self.rounds.renew(generation)
        self._later.append((generation, time.monotonic() - began_s))

    def flush(self) -> None:
        """Take up new generations when an exchange is complete."""
        later, self._later = self._later, []
        last = self.rounds.exchanges
        there = self.membership.history.get(self.rounds.by, ())
        for generation, pause_s in later:
            self.rounds.renew(generation)
            # Members are at most one exchange apart, so a lost member is in this exchange or was last in the one
            # before.
            arrived = {one: last if one in there else last - 1 for one in generation.left}
            self._heard.append(_News(generation, pause_s, arrived))

    def merged(self) -> None:
        """Change members, if announced, once the replica contains a merge."""
        self.claims.gave()
        self.flush()
        said = self.rounds.announced()
        self._rested = bool(said) and all(one == IDLE for one in said)
        # A member that rests is on its way to an evaluation or to the end. A newcomer must get its place from a member
        # in the loop.
        open_ = IDLE not in said
        if not (LEAVING in said or (JOIN_PENDING in said and open_)):
            return
        # After a recovery of this exchange the members have already changed here.
        if self.membership.generation.exchange != self.rounds.exchanges:
            self._change(leaving=said[self.membership.place] == LEAVING, open_=open_)

    def _change(self, leaving: bool, open_: bool) -> None:
        began_s = time.monotonic()
        while True:
            new = self.rounds.next_generation(between=open_, leaving=leaving)
            if leaving:
                self._out = True
                return
            try:
                self.rounds.hand_over(new, lacking=False)
            except GroupAborted:
                continue
            self.changed(new, True, began_s)
            self.flush()
            return

    # ---------------------------------------------------------------- the training
    @property
    def urgent(self) -> bool:
        return self.membership.watch.news != self._news or self.membership.somebody_asks

    def begins_merge(self) -> None:
        """Record the samples of a merge that starts now."""
        self._says = self._next
        self._news = self.membership.watch.news
        self.claims.gives(self.rounds.exchanges + _OF_A_MERGE)

    def step_over(self) -> None:
        self._take_up()
        if self.leaving:
            self._go()

    def tend(self) -> bool:
        idle = self._idle
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
            self._until(lambda: self._rested, IDLE)

    def _go(self) -> None:
        self.claims.stop()
        self.membership.board.count(NEWS, 1)  # so that the others merge soon
        self._until(lambda: self._out, LEAVING)
        self._leave()

    def _until(self, done: Callable[[], bool], says: float = NONE) -> None:
        """Merge until ``done()`` and no merge is under way, and announce ``says`` with each merge."""
        while True:
            idle = self._idle
            self._take_up()
            if idle:
                if done():
                    return
                self._merge(says)
            time.sleep(_LOOK_S)

    @property
    def _idle(self) -> bool:
        assert self.merging is not None
        return self.merging.idle

    def _merge(self, says: float) -> None:
        assert self.merging is not None
        self._next = says
        self.merging.merge()
        self._next = NONE

    # ---------------------------------------------------------------- members have changed
    def _take_up(self) -> None:
        while self._heard:
            news = self._heard.popleft()
            sampler = self.claims.sampler
            new = replace(news.generation, border=0 if sampler is None else sampler.cut)
            self.claims.changed(new.border, new.members)
            for worker, arrived in news.arrived.items():
                self.claims.lost(worker, arrived)
            self.tell(new, news.pause_s)
            if new.came:
                self._welcome(new)

    def _welcome(self, new: Generation) -> None:
        """Give newcomers their state if this worker is the donor."""
        donor, *_ = [one for one in new.members if str(one) not in new.came]

        def over() -> bool:
            return self.membership.generation.number != new.number or self.membership.lost()

        if self.membership.worker == donor:
            try:
                self.give_state(str(new.number), (donor, *sorted(map(int, new.came))), over)
            except GroupAborted:
                return  # one of them has failed; the others ask again


def _nothing(dead: dict[int, str]) -> None:
    pass


_OF_A_MERGE = 2  # exchanges: one in which all start, and the sum
