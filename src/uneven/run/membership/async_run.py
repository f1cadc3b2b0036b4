"""An elastic run of workers that take samples asynchronously: members change without waiting for each other.

Workers send their updates to a keeper (a parameter server), so no exchange between members must be repeated. The next
generation follows from the workers that have failed, ask to join or leave. The first worker to see that writes it to
the store (:func:`uneven.policy.core.membership.replaced`), and each worker takes it up between two of its steps.

The keeper learns of a failure immediately, from a background thread, because others may wait there for the failed
worker. Its answer is final: the last update of that worker that has arrived, and so its samples to requeue
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
_CLOSING = "closing"  # written by the first worker that reaches the end of the run


class Removal(Protocol):
    """The removal of a failed worker from its keepers: when ``done``, ``clock`` is its last update that all of them
    have."""

    @property
    def done(self) -> bool: ...

    @property
    def clock(self) -> int: ...


class Keeper(Protocol):
    """The object that stores the updates of all workers, such as the client of a parameter server."""

    def remove_member(self, worker: int) -> Removal | None:
        """Remove a failed worker: no worker waits for it, and its further updates are rejected.

        Returns immediately; None if this worker is not connected to the keeper yet.
        """

    def settle(self) -> None:
        """Send it all updates that this worker has not sent yet."""


class OwnPaceElastic(ClaimingElastic):
    """The elastic run of a policy with asynchronous workers; implements :class:`.elastic_run.ElasticRun`."""

    def __init__(
        self,
        membership: Membership,
        write: Callable[[MembershipRecord], None],
        say: Callable[..., None],
        leave_on: Sequence[int] = (),
    ) -> None:
        super().__init__(membership, write, say, leave_on)
        self.keeper: Keeper | None = None  # once there is one
        self._met = False
        self._news = -1
        self._closing = False
        self._owed: list[Generation] = []  # generations whose newcomers get their state from this worker
        self._served: dict[str, str] = {}
        self._removed = threading.Lock()
        self._gone: set[int] = set()
        self._burials: dict[int, Removal | None] = {}  # removals whose last update is not known yet

    def meet(self, model: nn.Module) -> None:
        """Form the founders' group and drop it, because they make no further exchanges."""
        super().meet(model)
        circle, self.rounds.circle = self.rounds.circle, None
        if circle is not None:
            circle.drop()
        self._met = True
        self.membership.watch.listener = self._heard

    # ---------------------------------------------------------------- what has happened
    def _heard(self, dead: dict[int, str]) -> None:  # called by the failure detector's thread
        for worker in dead:
            self._bury(worker)

    def _bury(self, worker: int) -> None:
        with self._removed:
            # Done already, unless the keeper could not be reached then (None): try again.
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
        # The order matters: updates, then the leases of their samples, then the membership. Only after that the keeper
        # may reject this worker's updates.
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
            return  # it has failed; it asks for nothing more

    def _cannot(self, other: int) -> bool:
        return self.membership.board.any_of((DEAD, "left"), other)

    def enter(self) -> None:
        if self._in or self._run is None or self._model is None:
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
                # The attempt is part of the key, so that a donor's answer to an earlier attempt is not read.
                board.write(f"wants/{new.number}/{worker}", str(attempt))
                self.take_state(f"{new.number}/{worker}/{attempt}", (donor, worker), partial(self._in_vain, donor))
                board.write(f"in/{worker}", "")
                self._in = True
            except LeftOut:
                new = None
            except GroupAborted:
                time.sleep(_LOOK_S)

    def _in_vain(self, donor: int) -> bool:
        """Return whether to ask another donor for the state. Raises PeerError if the run is about to end."""
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
