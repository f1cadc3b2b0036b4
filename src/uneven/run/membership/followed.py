"""Changes of members that each worker adopts separately, because they have no common rounds.

Workers send their updates to a keeper (a parameter server), so no exchange between members must be repeated. The next
generation follows from the workers that have failed, ask to join or leave. The first worker to see that writes it to
the store (:func:`uneven.policy.core.membership.replaced`), and each worker takes it up between two of its steps.

The keeper learns of a failure immediately, from a background thread, because others may wait there for the failed
worker. Its answer is final: the last update of that worker that has arrived, and so its samples to requeue
(:mod:`uneven.policy.samples.leases`).
"""

import contextlib
import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from uneven.errors import PeerError
from uneven.policy.core.membership import Generation
from uneven.run.lines.abortable_group import GroupAborted
from uneven.run.membership.elastic_run import LOOK_S, ElasticRun
from uneven.runtime.membership_board import DEAD

if TYPE_CHECKING:
    from uneven.run.replicas.replica_sync import ReplicaSync
    from uneven.runtime.parameter_server import Reply

_CLOSING = "closing"  # written by the first worker that reaches the end of the run


class FollowedMembers(ElasticRun):
    """An elastic run whose workers send their updates to a keeper.

    Attributes:
        keeper: sends this worker's updates, and removes failed workers from the shards; None until there is one.
    """

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.keeper: ReplicaSync | None = None
        self._met = False
        self._news = -1
        self._closing = False
        self._attempts = 0  # to receive the state of the run
        self._owed: list[Generation] = []  # generations whose newcomers get their state from this worker
        self._served: dict[str, str] = {}
        self._removed = threading.Lock()
        self._gone: set[int] = set()
        self._removals: dict[int, Reply | None] = {}  # whose last update is not known yet

    def meet(self, model: nn.Module, frozen: str) -> None:
        """Form the founders' group and drop it, because they make no further exchanges."""
        super().meet(model, frozen)
        circle, self.rounds.circle = self.rounds.circle, None
        if circle is not None:
            circle.drop()
        self._met = True
        self.membership.watch.listener = self._remove

    def _remove(self, dead: Iterable[int]) -> None:  # called by the failure detector's thread, too
        with self._removed:
            for worker in dead:
                # Done already, unless the keeper could not be reached then (None): try again.
                if worker not in self._gone or self._removals.get(worker, self) is None:
                    self._gone.add(worker)
                    self._removals[worker] = None if self.keeper is None else self.keeper.remove_member(worker)

    def step_over(self) -> None:
        news = self.membership.watch.news != self._news or self.membership.somebody_asks
        if news or self._owed or self._removals or self.leaving:
            self.tend()
        if self.leaving and not self._owed:  # otherwise a newcomer needs its state
            assert self.keeper is not None
            # The order matters: updates, then the leases of their samples, then the membership. Only after that the
            # keeper may reject this worker's updates.
            self.keeper.settle()
            self.claims.leave()
            self._go()
            self.keeper.remove_member(self.membership.worker)
            self._leave()

    def _go(self) -> None:
        """Leave the members; the last one that has the state of the run first gives it to newcomers that ask now."""
        until_s = time.monotonic() + self.membership.timeout_s
        while self.tend(leaving=True) and self._owed:
            if time.monotonic() > until_s:
                came = ", ".join(one for new in self._owed for one in new.came)
                raise PeerError(
                    f"worker {self.membership.worker} leaves last and has the state of the run, but worker {came} did "
                    f"not take it within {self.membership.timeout_s:g} s"
                )
            time.sleep(LOOK_S)

    def tend(self, *, leaving: bool = False) -> bool:
        began_s = time.monotonic()
        self._news = self.membership.watch.news
        for new in self.membership.follow(leaving=leaving, closing=self._closing):
            self._remove(new.left)
            self.changed(new, True, began_s)
        self.take_up()
        self._remove(self.membership.watch.dead)
        with self._removed:
            removals = list(self._removals.items())
        self._remove(worker for worker, removal in removals if removal is None)
        for worker, removal in removals:
            if removal is not None and removal.done:
                self.claims.lost(worker, removal.clock)
                with self._removed:
                    del self._removals[worker]
        if not self._closing:
            self._give_states()
        return True

    def _admit(self, new: Generation) -> None:
        self._owed.append(new)

    def _give_states(self) -> None:
        board = self.membership.board
        for new in list(self._owed):
            mine = [one for one, gives in self.membership.donors(new).items() if gives == self.membership.worker]
            waiting = [one for one in mine if board.look(f"in/{one}") is None and one not in self._gone]
            if not waiting:
                self._owed.remove(new)
            for worker in waiting:
                wanted = f"wants/{new.number}/{worker}"
                if (attempt := board.look(wanted)) is not None and self._served.get(wanted) != attempt:
                    self._served[wanted] = attempt
                    those = self.membership.worker, worker
                    # One that has failed asks for nothing more.
                    with contextlib.suppress(GroupAborted):
                        self.give_state(f"{new.number}/{worker}/{attempt}", those, partial(self._cannot, worker))

    def _cannot(self, other: int) -> bool:
        return self.membership.board.any_of((DEAD, "left"), other)

    def _next(self, new: Generation) -> Generation:
        return [new, *self.membership.follow()][-1]

    def _receive(self, new: Generation) -> None:
        worker, board = self.membership.worker, self.membership.board
        donor = self.membership.donors(new)[worker]
        self._attempts += 1
        # The attempt is part of the key, so that a donor's answer to an earlier attempt is not read.
        board.write(f"wants/{new.number}/{worker}", str(self._attempts))
        self.take_state(f"{new.number}/{worker}/{self._attempts}", (donor, worker), partial(self._in_vain, donor))
        board.write(f"in/{worker}", "")

    def _in_vain(self, donor: int) -> bool:
        """Return whether to ask another donor for the state. Raises PeerError if the run is about to end."""
        board = self.membership.board
        if board.look(_CLOSING) is not None:
            board.write(f"through/{self.membership.worker}", "")
            raise PeerError(f"worker {self.membership.worker} came too late: the run is ending")
        return self._cannot(donor) or self._cannot(self.membership.worker)

    def _part_company(self) -> None:
        if self._met:
            self._closing = True
            self.membership.board.write(_CLOSING, "")
            self.claims.aside()
            self.membership.part_company(partial(self.membership.follow, closing=True))
