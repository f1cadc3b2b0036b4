"""An elastic run in which each worker goes at its own pace: nobody waits until all know that members have changed.

Members owe each other nothing here: what a worker gives goes to somebody who keeps it for all (a parameter server), so
there is no exchange to be made anew. The next generation follows from who is gone, asks or leaves, and whoever sees
that first writes it down (:func:`uneven.policy.core.membership.replaced`). Each worker takes it up between two of its
steps.

That a worker is gone is told to who keeps things at once, beside the training, as others may wait for it there. The
answer says what of it has arrived, for ever, and so which of its samples come again
(:mod:`uneven.policy.samples.leases`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from torch import nn

from uneven.errors import PeerError
from uneven.policy.core.membership import Generation
from uneven.policy.core.records import MembershipRecord
from uneven.run.lines.abortable_group import GroupAborted
from uneven.run.membership.generations import LeftOut, Membership
from uneven.run.membership.leasing_run import ClaimingElastic
from uneven.runtime.membership_board import DEAD

_LOOK_S = 0.005
_CLOSING = "closing"
"""Written by the first worker that comes to the end of the run."""


class Removal(Protocol):
    """What becomes of the word that a worker is gone.

    Attributes:
        done: whether all who keep things for workers have heard it.
        clock: then, the last update of that worker's that all of them have.
    """

    @property
    def done(self) -> bool: ...

    @property
    def clock(self) -> int: ...


class Keeper(Protocol):
    """Whoever keeps for all what workers give to each other."""

    def remove_member(self, worker: int) -> Removal | None:
        """A worker is gone: nobody shall wait for it, and nothing is taken from it any more.

        Returns at once; None where this worker does not reach the keeper yet.
        """
        ...

    def settle(self) -> None:
        """Give it what this worker has learnt and not given yet."""
        ...


class OwnPaceElastic(ClaimingElastic):
    """See the module; stands where :class:`.elastic.Elastic` does.

    Attributes:
        keeper: once there is one.
    """

    def __init__(
        self, membership: Membership, write: Callable[[MembershipRecord], None], say: Callable[..., None],
        leave_on: Sequence[int] = (),
    ) -> None:  # fmt: skip
        super().__init__(membership, write, say, leave_on)
        self.keeper: Keeper | None = None
        self._met = False
        self._news = -1
        self._closing = False
        self._owed: list[Generation] = []  # to whose newcomers this worker gives their state
        self._served: dict[str, str] = {}
        self._removed = threading.Lock()
        self._gone: set[int] = set()
        self._burials: dict[int, Removal | None] = {}  # of which it is not known yet what has arrived

    def meet(self, model: nn.Module) -> None:
        """See :meth:`Elastic.meet`. The founders need each other no more after it."""
        super().meet(model)
        circle, self.recovery.circle = self.recovery.circle, None
        if circle is not None:
            circle.drop()
        self._met = True
        self.membership.watch.listener = self._heard

    # ---------------------------------------------------------------- what has happened
    def _heard(self, dead: dict[int, str]) -> None:
        """In the thread that looks after the others."""
        for worker in dead:
            self._bury(worker)

    def _bury(self, worker: int) -> None:
        with self._removed:
            if worker in self._gone and self._burials.get(worker, self) is not None:
                return
            self._gone.add(worker)
            self._burials[worker] = None if self.keeper is None else self.keeper.remove_member(worker)

    def step_over(self) -> None:
        news = self.membership.watch.news != self._news or self.membership.somebody_asks
        if news or self._owed or self._burials:
            self.tend()
        if self.leaving:
            self._go()

    def tend(self) -> bool:
        """See :meth:`ClaimingElastic.tend`; never waits for the others.

        Raises:
            LeftOut, PeerError: see :meth:`Membership.follow`.
        """
        began_s = time.monotonic()
        self._news = self.membership.watch.news
        for new in self.membership.follow(closing=self._closing):
            self._take_up(new, began_s)
        for worker in self.membership.watch.dead:
            self._bury(worker)
        with self._removed:
            burials = list(self._burials.items())
        for worker, burial in burials:
            if burial is None:
                self._bury(worker)
            elif burial.done:
                self.claims.lost(worker, burial.clock)
                with self._removed:
                    del self._burials[worker]
        if self._owed and not self._closing:
            self._give_states()
        return True

    def _take_up(self, new: Generation, began_s: float) -> None:
        for worker in new.left:
            self._bury(worker)
        sampler = self.claims.sampler
        own = replace(new, border=0 if sampler is None else sampler.cut)
        self.claims.changed(own.border, own.members)
        self.tell(own, time.monotonic() - began_s)
        if new.came and self.membership.worker == self._donor(new):
            self._owed.append(new)

    @staticmethod
    def _donor(new: Generation) -> int:
        return next(one for one in new.members if str(one) not in new.came)

    # ---------------------------------------------------------------- leaving
    def _go(self) -> None:
        assert self.keeper is not None
        self.keeper.settle()
        self.claims.leave()
        self.membership.follow(leaving=True)
        self.keeper.remove_member(self.membership.worker)
        self._leave()

    # ---------------------------------------------------------------- newcomers
    def _give_states(self) -> None:
        board = self.membership.board
        for new in list(self._owed):
            waiting = [one for one in map(int, new.came) if board.look(f"in/{one}") is None and one not in self._gone]
            if not waiting:
                self._owed.remove(new)
            for worker in waiting:
                wanted = f"wants/{new.number}/{worker}"
                if (attempt := board.look(wanted)) is not None and self._served.get(wanted) != attempt:
                    self._served[wanted] = attempt
                    self._give(f"{new.number}/{worker}/{attempt}", worker)

    def _give(self, key: str, worker: int) -> None:
        try:
            self.give_state(key, (self.membership.worker, worker), lambda: self._cannot(worker))
        except GroupAborted:
            return  # it is gone

    def _cannot(self, other: int) -> bool:
        """Whether another worker can give or take nothing any more."""
        return self.membership.board.any_of((DEAD, "left"), other)

    def enter(self) -> None:
        if self._in or self._run is None or self._attached is None:
            return
        new: Generation | None = None
        attempt, worker, board = 0, self.membership.worker, self.membership.board
        while not self._in:
            try:
                if new is None:
                    new = self.membership.ask(self._run.introduction(), self._waits)
                else:
                    new = [new, *self.membership.follow()][-1]
                attempt += 1
                donor = self._donor(new)
                board.write(f"wants/{new.number}/{worker}", str(attempt))
                self.take_state(f"{new.number}/{worker}/{attempt}", (donor, worker), partial(self._in_vain, donor))
                board.write(f"in/{worker}", "")
                self._in = True
            except LeftOut:
                new = None
            except GroupAborted:
                time.sleep(_LOOK_S)

    def _in_vain(self, donor: int) -> bool:
        """Whether this worker must look for another one that gives it the state of the run.

        Raises:
            PeerError: nobody will any more.
        """
        board = self.membership.board
        if board.look(_CLOSING) is not None:
            board.write(f"through/{self.membership.worker}", "")
            raise PeerError(f"worker {self.membership.worker} came too late: the run comes to its end")
        return self._cannot(donor)

    # ---------------------------------------------------------------- the end
    def close(self, failed: bool) -> None:
        self._unlisten()
        self.membership.watch.listener = None
        over, self._over = self._over, True
        try:
            if not (over or failed) and self._in and self._met:
                self._closing = True
                self.membership.board.write(_CLOSING, "")
                self.claims.aside(True)
                self.membership.part_company(self._follow)
        finally:
            self.membership.close()

    def _follow(self) -> None:
        self.membership.follow(closing=True)
