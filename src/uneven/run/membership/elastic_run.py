"""An elastic run on one worker: all that does not depend on how its members agree on a change.

A new generation becomes known where the way of changing members finds it, perhaps in another thread. Then it waits in
one queue, which the training thread empties between two steps. :mod:`.agreed` and :mod:`.followed` are the two ways.
"""

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import nn

from uneven.errors import ConfigError, PeerError, TrainingError
from uneven.journal import LEFT
from uneven.policy.control.reporter import Report
from uneven.policy.core.membership import Generation, Meeting, Members, generation_of, record_of
from uneven.policy.core.records import MembershipRecord
from uneven.policy.samples.order import Portion, SampleBook
from uneven.policy.samples.requeued import RequeuedSamples
from uneven.run.lines.abortable_group import AbortableGroup, GroupAborted
from uneven.run.lines.control_words import JOIN_PENDING, NONE
from uneven.run.lines.elastic_communicator import ElasticCommunicator
from uneven.run.membership.generations import LeftOut, Membership
from uneven.run.membership.state_transfer import give, load_state, state_of, take
from uneven.run.model.check import travelling

if TYPE_CHECKING:
    from uneven.run.samples.async_sampling.leased_samples import LeasedSamples
    from uneven.run.step.membership_hooks import MembershipHooks

_EVERY_S = 1.0


class PreemptionNotice:
    """A background thread that ends after the first notice, or if ``notice`` raises an error."""

    def __init__(
        self, notice: Callable[[], float | None], heard: Callable[[float], None], every_s: float = _EVERY_S
    ) -> None:
        self._notice = notice
        self._heard = heard  # called once with these seconds
        self._every_s = every_s  # interval between two calls
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uneven-notice", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            if (left_s := self._notice()) is not None:
                self._heard(left_s)
                return
            self._over.wait(self._every_s)


LOOK_S = 0.005


class LeftRun(SystemExit):
    """This worker has left on request, and the others continue. Ends the program with exit code 0."""

    def __init__(self) -> None:
        super().__init__(0)


class ElasticRun:
    """The elastic run of one worker.

    Attributes:
        place: this worker's position among the members.
        generation: the number of earlier changes of members.
        most: the largest number of workers that the run may have at a time.
        changes: whether workers may leave and join.
        alone: whether this worker is the only one, and no other can join.
        joins_later: whether this worker was not there at the start.
        returned: the requeued samples of a run whose workers take the same steps.
        claims: the leases of a run whose workers take samples asynchronously.
        book: the one of these two that is in use: the record of who has which samples.
        changing: the same object if all workers take the same steps; otherwise None.
        counted: returns the samples of an iteration that count for all workers together.
        leaving: whether this worker leaves after its step.
    """

    changes = True
    alone = False
    aside = False  # whether another thread forms groups while this worker sends or receives the state of the run
    claims: "LeasedSamples"

    def __init__(
        self,
        membership: Membership,
        write: Callable[[MembershipRecord], None],  # writes records to the journal
        say: Callable[..., None],
        leave_on: Sequence[int] = (),  # signals with the meaning of SIGTERM
    ) -> None:
        self.membership = membership
        self.most = membership.bounds[1]
        self.joins_later = membership.joins_later
        self._frozen = ""  # digest of the frozen parameters if it is the same on all workers
        self.book: SampleBook
        self.book = self.returned = RequeuedSamples(membership.members)
        # makes all rounds of this worker
        self.rounds = ElasticCommunicator(membership, self, report_length=len(Report._fields))
        self.leaving = False
        self._run: MembershipHooks | None = None
        self._model: nn.Module | None = None
        self._others: tuple[Any, ...] = ()  # optimizers first; all with state_dict and load_state_dict
        self._versions: list[int] = []  # of the parameters when this worker received them as a newcomer
        self._write = write
        self._say = say  # prints a message for the user, and records it as the named event, if there is a name
        # generation, pause in seconds, and of each lost worker its last update; another thread may add to it
        self._queue: deque[tuple[Generation, float, dict[int, int]]] = deque()
        self._iteration = 0
        self._in = not self.joins_later
        self._over = False
        self._watches: list[PreemptionNotice] = []
        # Python allows signal handlers only in the main thread; session.leave() does the same.
        mine = (signal.SIGTERM, *leave_on) if threading.current_thread() is threading.main_thread() else ()
        self._handlers = {number: signal.signal(number, self._on_term) for number in mine}  # before this session

    @property
    def members(self) -> Members:
        return self.membership.members

    @property
    def place(self) -> int:
        return self.membership.place

    @property
    def generation(self) -> int:
        return self.membership.generation.number

    @property
    def changing(self) -> RequeuedSamples | None:
        return self.returned if self.book is self.returned else None

    @property
    def counted(self) -> Callable[[Portion], int]:
        return self.book.counted

    def lease(self, claims: "LeasedSamples") -> None:
        """Let workers take samples asynchronously, before the first batch."""
        self.book = self.claims = claims

    def bind(self, run: "MembershipHooks") -> None:
        """Connect the training loop, once."""
        self._run = run

    def attach(self, model: nn.Module, others: Sequence[Any]) -> None:
        """Remember the model and the user's other objects whose state a newcomer needs."""
        self._model, self._others = model, tuple(others)

    def meet(self, model: nn.Module, frozen: str) -> None:
        """Form the founders' group and broadcast the first one's parameters and buffers, but not frozen parameters with
        the digest ``frozen`` on all workers."""
        self._frozen = frozen
        # A worker that joins later gets them with the state of the run.
        if self.joins_later or self.rounds.circle is not None:
            return
        try:
            circle = self.rounds.circle = self.membership.circle("exchanges")
            for one in travelling(model, frozen):
                flat = one.contiguous()
                circle.wait(circle.broadcast(flat, 0))
                one.copy_(flat)
        except (GroupAborted, TimeoutError) as error:
            gone = self.membership.board.dead(self.membership.members)
            said = "; ".join(f"worker {one}: {why}" for one, why in gone.items())
            raise PeerError(f"session.setup: a worker was gone before the training began ({said or error})") from None

    def leave(self) -> None:
        """Leave after the step under way."""
        self.leaving = True

    def heed(self, notice: Callable[[], float | None]) -> None:
        """Leave when ``notice`` returns the seconds that are left."""
        self._watches.append(PreemptionNotice(notice, self._goes))

    def _goes(self, left_s: float) -> None:
        said = f"worker {self.membership.worker}: its machine goes in {left_s:.0f} s, so it leaves"
        self._say(said, "notice")
        if self._in:
            self.leaving = True
        else:
            signal.raise_signal(signal.SIGTERM)  # the main thread waits to join; only a signal interrupts it

    def _on_term(self, number: int, frame: FrameType | None) -> None:  # finish the step and leave
        if not self._in:
            raise LeftRun  # it waits to join
        self.leaving = True

    def announce(self) -> float:
        """Return this member's announcement for the round that starts."""
        return JOIN_PENDING if self.membership.somebody_asks else NONE

    def drawn(self) -> int:
        """Return the last iteration whose samples were drawn."""
        return self.returned.newest

    def landed(self, settles: int, contributors: Members, groups: tuple[Members, ...]) -> None:
        """Count samples up to the iteration ``settles`` as used: those of ``contributors``, who summed in these
        ``groups``, or all together if there are none."""
        self.returned.exchanged(settles, contributors, groups)

    def spoken_for(self, iteration: int) -> float:
        """Return this worker's samples up to an iteration that are not in every replica, divided by the replicas
        that hold them."""
        return self.returned.spoken_for(self.membership.worker, iteration)

    def leads(self, parties: Sequence[Members], meeting: Meeting | None) -> bool:
        """Return whether this worker is the first of its party among those that it meets, after a loss, too."""
        there = self.members if meeting is None else self.rounds.mine(meeting)
        party = next(one for one in parties if self.membership.worker in one)
        return self.membership.worker == next(one for one in party if one in there)

    def changed(self, generation: Generation, now: bool, began_s: float) -> None:
        """Take a new generation, already for this round if ``now``; the change began at ``began_s`` (monotonic)."""
        self._queue.append((generation, time.monotonic() - began_s, {}))

    def flush(self) -> None:
        """Apply the generations that start with the next round."""
        self.take_up()

    def take_up(self, exchanging: int = -1) -> None:
        """Continue with the members of the generations in the queue, in their order; call it in the training thread.
        The round under way decides about samples up to the iteration ``exchanging``."""
        while self._queue:
            generation, pause_s, arrived = self._queue.popleft()
            border = self.book.changed(
                generation.border, generation.members, exchanging, self.membership.donors(generation)
            )
            for worker, update in arrived.items():
                self.claims.lost(worker, update)
            self._tell(replace(generation, border=border), pause_s)

    def _tell(self, generation: Generation, pause_s: float) -> None:
        assert self._run is not None
        self._run.members_changed(generation)
        if generation.left or generation.came:
            record = record_of(generation, self.membership.worker, self._iteration, time.time(), pause_s)
            self._write(record)
            if self.membership.place == 0:
                self._say(f"{record.why}; workers now: {len(generation.members)}, next iteration: {self._iteration}")
        if self.membership.worker in self.membership.donors(generation).values():
            self._admit(generation)

    def _admit(self, new: Generation) -> None:
        """Give newcomers the state of the run, as their donor."""
        raise NotImplementedError

    def begins(self, part: Portion) -> None:
        """Check that a newcomer's parameters have not changed since it received them; otherwise raise TrainingError."""
        self._iteration = part.iteration
        if self._model is not None and self._versions:
            if [one._version for one in self._model.parameters()] != self._versions:
                raise TrainingError(
                    f"worker {self.membership.worker} joined with the current model, but its parameters changed "
                    "since: load checkpoints before you read loader.epoch or begin the loop"
                )
            self._versions = []

    def step_over(self) -> None:
        """Change members between two steps, if this was announced. Ends the program if this worker leaves."""
        raise NotImplementedError

    def pass_over(self) -> None:
        """Learn, at the end of a pass over an epoch, which samples are requeued in that epoch."""
        assert self._run is not None
        self._run.settle()
        self.flush()

    def tend(self) -> bool:
        """Take up changes while this worker waits for the samples of others; return whether no merge is under way."""
        raise NotImplementedError

    def _leave(self) -> None:
        self._over = True
        self.membership.board.write(f"left/{self.membership.worker}", "")
        said = f"worker {self.membership.worker} got a request to leave, and left after iteration {self._iteration}"
        self._say(said, LEFT)
        raise LeftRun

    def give_state(self, key: str, those: Members, lost: Callable[[], bool]) -> None:
        """Send the state of the run from this worker, the first of these members; raises GroupAborted once ``lost``
        returns that one of them has failed."""
        assert self._run is not None
        assert self._model is not None
        state = {
            "run": {name: one.for_newcomers() for name, one in self._run.transferred()},
            "returned": self.returned.state(),
            "exchanges": self.rounds.exchanges,
            "by": self.rounds.by,
            "generation": self.membership.generation.text(),
            "donor": self.membership.worker,
            **state_of(self._model, self._others, self._frozen),
        }
        give(state, self.membership.board, key, self._group_of(key, those, lost))

    def _group_of(self, key: str, those: Members, lost: Callable[[], bool]) -> Callable[[], AbortableGroup]:
        return partial(self.membership.circle, "state", those, key, lost, aside=self.aside)

    def enter(self) -> None:
        """Join the run and take over its state, on a worker that joins later. Raises PeerError if the run has ended."""
        if self._in or self._run is None or self._model is None:
            return
        new: Generation | None = None
        while not self._in:
            try:
                new = self.membership.ask(self._run.introduction(), self._waits) if new is None else self._next(new)
                self._receive(new)
                self._in = True
            except LeftOut:
                if self.membership.board.dead((self.membership.worker,)):
                    raise
                new = None
            except GroupAborted:
                time.sleep(LOOK_S)

    def _next(self, new: Generation) -> Generation:
        """Return the generation after one that was given up before this newcomer had the state of the run."""
        raise NotImplementedError

    def _receive(self, new: Generation) -> None:
        """Receive the state of the run from a member of this generation. Raises GroupAborted if it does not come."""
        raise NotImplementedError

    def check_in(self, what: str) -> None:
        """Raise ConfigError if this worker joins later and the others have not let it in yet."""
        if not self._in:
            raise ConfigError(
                f"{what} on worker {self.membership.worker}, which has not joined the run yet: read loader.epoch "
                "first, and call it where the others do, in the loop or at the end of an epoch"
            )

    def _waits(self, waited_s: float) -> None:
        if 1.0 <= waited_s < 2.0:
            self._say(f"worker {self.membership.worker} waits to be let in")

    def take_state(self, key: str, those: Members, lost: Callable[[], bool]) -> None:
        """Receive the state of the run from the first of these members; raises GroupAborted once ``lost`` returns
        that it does not come."""
        assert self._run is not None
        assert self._model is not None
        state, nbytes = take(self.membership.board, key, lost, self._group_of(key, those, lost))
        load_state(state, self._model, self._others)
        self.rounds.exchanges, self.rounds.by = state["exchanges"], state["by"]
        self.membership.enter(generation_of(state["generation"]))
        # The generation decides the slots' layout, so before any exchange.
        self.rounds.renew(self.membership.generation)
        self.returned.take_up(state["returned"])
        for name, one in self._run.transferred():
            one.take_over(state["run"][name])
        self._versions = [one._version for one in self._model.parameters()]
        donor = state["donor"]
        said = f"worker {self.membership.worker} has joined, with {nbytes / 1e6:.3g} MB of state from worker {donor}"
        self._say(said, "members")

    def close(self, failed: bool) -> None:
        """End the session; without a failure, wait until all members reach their end."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self.membership.watch.listener = None
        for watch in self._watches:
            watch.close()
        over, self._over = self._over, True
        try:
            if not (over or failed) and self._in:
                self._part_company()
        finally:
            self.membership.close()

    def _part_company(self) -> None:
        """Wait until no member needs this worker any longer."""
        raise NotImplementedError
