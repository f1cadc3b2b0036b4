"""An elastic run in which replicas are merged beside the training: by the shadow's thread, while the training goes on.

The merges of all workers are one row of exchanges, so they are mended, and members change between two of them, as in
any elastic run (:mod:`uneven.run.lines.recovery`); only that this happens in the shadow's thread. The training hears
of it between two of its steps, and waits for it only where it waits for the others anyway: at the end of an epoch,
before an evaluation, and where it leaves.

A sample counts as used when a merge holds the steps made of it. What a merge holds is noted before it begins
(:mod:`uneven.policy.samples.leases`); its number is that of the exchange.

Newcomers come after a merge that nobody has entered on the way to an evaluation or to the end. So whoever lets them in
is in the loop, or ends its epoch, and gives them the place that they begin at.
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
    """This worker's part in the merges beside the training."""

    @property
    def idle(self) -> bool:
        """Whether none is under way.

        Raises:
            TrainingError: one has failed.
        """
        ...

    def merge(self) -> None:
        """Begin one, where none is under way, with all that this worker has learnt."""
        ...


@dataclass(frozen=True, slots=True)
class _News:
    """Others take part; the exchange in which that was found out is complete.

    Attributes:
        arrived: worker that is gone → the last exchange that it was in.
    """

    generation: Generation
    pause_s: float
    arrived: dict[int, int]


class BesideElastic(ClaimingElastic):
    """See the module.

    Attributes:
        merging: once there is a model.
    """

    beside = True

    def __init__(
        self, membership: Membership, write: Callable[[MembershipRecord], None], say: Callable[..., None],
        leave_on: Sequence[int] = (),
    ) -> None:  # fmt: skip
        super().__init__(membership, write, say, leave_on)
        self.merging: Merging | None = None
        self._says = self._next = NONE  # with the merge that was begun last, and with the next one
        self._news = 0  # as of then
        self._rested = self._out = False
        self._heard: deque[_News] = deque()  # from the shadow's thread to the one that trains
        membership.watch.listener = _nothing  # so that it says when there is news

    # ---------------------------------------------------------------- where exchanges are made
    def announce(self) -> float:
        return self._says or (JOIN_PENDING if self.membership.somebody_asks else NONE)

    def changed(self, generation: Generation, now: bool, began_s: float) -> None:
        if now:
            self.recovery.renew(generation)
        self._later.append((generation, time.monotonic() - began_s))

    def flush(self) -> None:
        """An exchange is complete: who is gone was in it, or only in the one before."""
        later, self._later = self._later, []
        last = self.recovery.exchanges
        there = self.membership.history.get(self.recovery.by, ())
        for generation, pause_s in later:
            self.recovery.renew(generation)
            arrived = {one: last if one in there else last - 1 for one in generation.left}
            self._heard.append(_News(generation, pause_s, arrived))

    def merged(self) -> None:
        """A merge is complete, and the replica has it: members may change."""
        self.claims.gave()
        self.flush()
        said = self.recovery.announced()
        self._rested = bool(said) and all(one == IDLE for one in said)
        open_ = IDLE not in said
        if not (LEAVING in said or (JOIN_PENDING in said and open_)):
            return
        # Where members have changed at this very place, those that had completed the exchange have seen to it.
        if self.membership.generation.exchange != self.recovery.exchanges:
            self._change(leaving=said[self.membership.place] == LEAVING, open_=open_)

    def _change(self, leaving: bool, open_: bool) -> None:
        began_s = time.monotonic()
        while True:
            new = self.recovery.next_generation(between=open_, leaving=leaving)
            if leaving:
                self._out = True
                return
            try:
                self.recovery.hand_over(new, lacking=False)
            except GroupAborted:
                continue
            self.changed(new, True, began_s)
            self.flush()
            return

    # ---------------------------------------------------------------- the training
    @property
    def urgent(self) -> bool:
        """Whether there is news, which the next merge sees to."""
        return self.membership.watch.news != self._news or self.membership.somebody_asks

    def begins_merge(self) -> None:
        """A merge begins, with all that this worker has learnt."""
        self._says = self._next
        self._news = self.membership.watch.news
        self.claims.gives(self.recovery.exchanges + _OF_A_MERGE)

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
        """Wait until no merge is under way, and newcomers that came with the last one have their state."""
        self._until(lambda: True)

    def settle(self) -> None:
        """Wait until all that this worker has learnt is in a merge."""
        self.quiet()
        if self.claims.owes:
            self._merge(NONE)
            self.quiet()

    def rest(self) -> None:
        """Take part in merges until all rest; then none is under way, and the others have what this worker has learnt.

        Nothing where this worker has left.
        """
        self._rested = False
        if self._in and not self._over:
            self._until(lambda: self._rested, IDLE)

    def _go(self) -> None:
        self.claims.stop()
        self.membership.board.count(NEWS, 1)  # so that the others merge soon
        self._until(lambda: self._out, LEAVING)
        self._leave()

    def _until(self, done: Callable[[], bool], says: float = NONE) -> None:
        """Merge again and again until it is done and none is under way.

        Args:
            says: this worker, with each.
        """
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
        """One of those that were there gives newcomers what they need; they are awaited in the next merge."""
        donor, *_ = [one for one in new.members if str(one) not in new.came]

        def over() -> bool:
            return self.membership.generation.number != new.number or self.membership.lost()

        if self.membership.worker == donor:
            try:
                self.give_state(str(new.number), (donor, *sorted(map(int, new.came))), over)
            except GroupAborted:
                return  # one of them is gone; the others ask again


def _nothing(dead: dict[int, str]) -> None:
    pass


_OF_A_MERGE = 2
"""Exchanges: one in which all begin, and the sum."""
