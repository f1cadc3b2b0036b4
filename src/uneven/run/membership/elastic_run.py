"""An elastic run on one worker: its reaction to changed members, and the change between two steps."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

from torch import nn

from uneven.errors import ConfigError, PeerError, TrainingError
from uneven.journal import LEFT
from uneven.policy.control.reports import Report
from uneven.policy.core.membership import Generation, Members, generation_of, told
from uneven.policy.core.records import MembershipRecord
from uneven.policy.samples.order import Changing, Portion
from uneven.policy.samples.requeued import RequeuedSamples
from uneven.run.context.participants import ChangingRun
from uneven.run.lines.abortable_group import AbortableGroup, GroupAborted
from uneven.run.lines.control_words import JOIN_PENDING, LEAVING
from uneven.run.lines.elastic_communicator import ElasticCommunicator
from uneven.run.membership.generations import LeftOut, Membership
from uneven.run.membership.preemption_notice import PreemptionNotice
from uneven.run.membership.state_transfer import give, load_state, state_of, take


class LeftRun(SystemExit):
    """This worker has left on request, and the others continue. Ends the program with exit code 0."""

    def __init__(self) -> None:
        super().__init__(0)


class ElasticRun:
    """The elastic run of one worker whose gradients or replicas are summed in the training thread; implements
    :class:`.participants.Participants` and :class:`.elastic_communicator.RoundListener`."""

    changes = True
    alone = False
    beside = False  # whether a background thread makes the exchanges

    def __init__(
        self,
        membership: Membership,
        write: Callable[[MembershipRecord], None],  # writes records to the journal
        say: Callable[..., None],
        leave_on: Sequence[int] = (),  # signals with the meaning of SIGTERM
    ) -> None:
        self.membership = membership
        self.returned = RequeuedSamples(membership.members)  # the requeued samples
        # makes all rounds of this worker
        self.rounds = ElasticCommunicator(membership, self, report_length=len(Report._fields))
        self.leaving = False  # whether this worker leaves after its step
        self.wrap_again: Callable[[], None] = _nothing  # called when members have come
        self._run: ChangingRun | None = None
        self._model: nn.Module | None = None
        self._others: tuple[Any, ...] = ()  # optimizers first; all with state_dict and load_state_dict
        self._versions: list[int] = []  # of the parameters when this worker received them as a newcomer
        self._write = write
        self._say = say  # prints a message for the user, and records it as the named event, if there is a name
        self._later: list[tuple[Generation, float]] = []
        self._iteration = 0
        self._in = not membership.joins_later
        self._over = False
        self._restore_signal: Callable[[], None] = lambda: None
        self._watches: list[PreemptionNotice] = []
        self._listen((signal.SIGTERM, *leave_on))

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
    def most(self) -> int:
        return self.membership.bounds[1]

    @property
    def joins_later(self) -> bool:
        return self.membership.joins_later

    @property
    def changing(self) -> Changing:
        return self.returned

    @property
    def counted(self) -> Callable[[Portion], int]:
        return self.returned.counted

    def bind(self, run: ChangingRun) -> None:
        self._run = run

    def attach(self, model: nn.Module, others: Sequence[Any]) -> None:
        self._model, self._others = model, tuple(others)

    def meet(self, model: nn.Module) -> None:
        """Form the founders' group and broadcast the first one's parameters and buffers."""
        # A worker that joins later gets them with the state of the run.
        if self.membership.joins_later or self.rounds.circle is not None:
            return
        try:
            circle = self.rounds.circle = self.membership.circle("exchanges")
            for one in [*model.parameters(), *model.buffers()]:
                flat = one.detach().contiguous()
                circle.wait(circle.broadcast(flat, 0))
                one.detach().copy_(flat)
        except (GroupAborted, TimeoutError) as error:
            gone = self.membership.board.dead(self.membership.members)
            said = "; ".join(f"worker {one}: {why}" for one, why in gone.items())
            raise PeerError(f"session.setup: a worker was gone before the training began ({said or error})") from None

    # ---------------------------------------------------------------- leaving
    def leave(self) -> None:
        self.leaving = True

    def heed(self, notice: Callable[[], float | None]) -> None:
        self._watches.append(PreemptionNotice(notice, self._goes))

    def _goes(self, left_s: float) -> None:
        said = f"worker {self.membership.worker}: its machine goes in {left_s:.0f} s, so it leaves"
        self._say(said, "notice")
        if self._in:
            self.leaving = True
        else:
            signal.raise_signal(signal.SIGTERM)  # the main thread waits to join; only a signal interrupts it

    def _listen(self, numbers: Sequence[int]) -> None:
        """Handle signals: finish the step and leave."""
        if threading.current_thread() is not threading.main_thread():
            return  # Python allows signal handlers only there; session.leave() does the same
        before = {number: signal.signal(number, self._on_term) for number in numbers}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        self._restore_signal = restore

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        if not self._in:
            raise LeftRun  # it waits to join
        self.leaving = True

    def announce(self) -> float:
        """Return this member's announcement for the next exchange."""
        if self.leaving:
            return LEAVING
        return JOIN_PENDING if self.membership.somebody_asks else 0.0

    def drawn(self) -> int:
        return self.returned.newest

    def landed(self, settles: int, contributors: Members, groups: tuple[Members, ...]) -> None:
        self.returned.exchanged(settles, contributors, groups)

    def spoken_for(self, iteration: int) -> float:
        """Return this worker's samples up to an iteration that are not in every replica, divided by the replicas
        that hold them."""
        return self.returned.spoken_for(self.membership.worker, iteration)

    # ---------------------------------------------------------------- members have changed
    def changed(self, generation: Generation, now: bool, began_s: float) -> None:
        pause_s = time.monotonic() - began_s
        if now:
            at = self.rounds.at
            self._apply(generation, pause_s, -1 if at is None else at.settles)
        else:
            self._later.append((generation, pause_s))

    def flush(self) -> None:
        """Apply generations that start with the next exchange, because the current one is complete."""
        later, self._later = self._later, []
        for generation, pause_s in later:
            self._apply(generation, pause_s, -1)

    def _apply(self, generation: Generation, pause_s: float, exchanging: int) -> None:
        self.returned.changed(generation.border, generation.members, exchanging)
        self.rounds.renew(generation)
        self.tell(generation, pause_s)

    def tell(self, generation: Generation, pause_s: float) -> None:
        assert self._run is not None
        self._run.members_changed(generation)
        if generation.left or generation.came:
            text = told(generation)
            self._write(
                MembershipRecord(
                    rank=self.membership.worker,
                    iteration=self._iteration,
                    at_s=time.time(),
                    generation=generation.number,
                    members=generation.members,
                    came=tuple(sorted(map(int, generation.came))),
                    left=generation.left,
                    border=generation.border,
                    pause_s=pause_s,
                    why=text,
                )
            )
            if self.membership.place == 0:
                self._say(f"{text}; {len(generation.members)} workers go on with iteration {self._iteration}")

    # ---------------------------------------------------------------- around a step
    def begins(self, part: Portion) -> None:
        """Check that a newcomer's parameters have not changed since it received them; otherwise raise TrainingError."""
        self._iteration = part.iteration
        if self._model is not None and self._versions:
            if [one._version for one in self._model.parameters()] != self._versions:
                raise TrainingError(
                    f"worker {self.membership.worker} has joined and was given the model as it is, but its parameters "
                    f"have changed since: load checkpoints before loader.epoch is asked for, or the loop begins"
                )
            self._versions = []

    def step_over(self) -> None:
        """Change members, if announced, after a step and before the next one. Raises LeftRun if this worker leaves."""
        self.flush()
        announced = self.rounds.announced()
        # After a recovery of this exchange the members have already changed here.
        if not any(announced) or self.membership.generation.exchange == self.rounds.exchanges:
            return
        assert self._run is not None
        if self._run.apart:
            return  # a newcomer starts from a merged model; the next merge announces it again
        # A worker that leaves before all have the sums would take along tensors that the others need for a repetition.
        through = LEAVING not in announced or self.rounds.all_through()
        self._change_members(leaving=through and announced[self.membership.place] == LEAVING)

    def pass_over(self) -> None:
        assert self._run is not None
        self._run.settle()
        self.flush()

    def _change_members(self, leaving: bool) -> None:
        began_s = time.monotonic()
        while True:
            new = self.rounds.next_generation(between=True, leaving=leaving)
            if leaving:
                self._leave()
            try:
                self.rounds.hand_over(new, lacking=False)
                self.changed(new, True, began_s)
                if new.came:
                    self.wrap_again()
                    self._give_state(new)
                return
            except GroupAborted:
                continue

    def _leave(self) -> None:
        self._over = True
        self.membership.board.write(f"left/{self.membership.worker}", "")
        said = f"worker {self.membership.worker} was told to leave, and has left after iteration {self._iteration}"
        self._say(said, LEFT)
        raise LeftRun

    # ---------------------------------------------------------------- newcomers
    def _give_state(self, new: Generation) -> None:
        donor, *_ = [one for one in new.members if str(one) not in new.came]
        if self.membership.worker == donor:
            self.give_state(str(new.number), (donor, *sorted(map(int, new.came))))

    def give_state(self, key: str, those: Members, lost: Callable[[], bool] | None = None) -> None:
        """Send the state of the run from this worker, the first of these members; raises GroupAborted if one of
        them has failed."""
        assert self._run is not None
        assert self._model is not None
        state = {
            "run": {name: one.for_newcomers() for name, one in self._run.transferred()},
            "returned": self.returned.state(),
            "exchanges": self.rounds.exchanges,
            "by": self.rounds.by,
            "generation": self.membership.generation.text(),
            **state_of(self._model, self._others),
        }
        give(state, self.membership.board, key, partial(self._group_for, key, those, lost))

    def _group_for(self, key: str, those: Members, lost: Callable[[], bool] | None) -> AbortableGroup:
        return self.membership.circle("state", those, key, lost, aside=self.beside)

    def enter(self) -> None:
        """Join the run and take over its state, on a worker that joins later. Raises PeerError if the run has ended."""
        if self._in or self._run is None or self._model is None:
            return
        new: Generation | None = None
        while not self._in:
            try:
                if new is None:
                    new = self.membership.ask(self._run.introduction(), self._waits)
                    self.rounds.exchanges = new.exchange
                else:
                    new = self.rounds.next_generation(between=True, new=True)
                if self.rounds.circle is None:
                    self.rounds.circle = self.membership.circle("exchanges")
                donor, *_ = [one for one in new.members if str(one) not in new.came]
                self.take_state(str(new.number), (donor, *sorted(map(int, new.came))))
                self._in = True
            except LeftOut:
                new = None
            except GroupAborted:
                continue

    def check_in(self, what: str) -> None:
        """Raise ConfigError if this worker joins later and the others have not let it in yet."""
        if not self._in:
            raise ConfigError(
                f"{what} on worker {self.membership.worker}, which joins the run and is not in it yet: ask for "
                f"loader.epoch before, and call it where the others do, in the loop or at the end of an epoch"
            )

    def _waits(self, waited_s: float) -> None:
        if 1.0 <= waited_s < 2.0:
            self._say(f"worker {self.membership.worker} waits to be let in")

    def take_state(self, key: str, those: Members, lost: Callable[[], bool] | None = None) -> None:
        """Receive the state of the run from the first of these members; raises GroupAborted if members
        have changed before."""
        assert self._run is not None
        assert self._model is not None
        cannot = self.membership.lost if lost is None else lost
        state, nbytes = take(self.membership.board, key, cannot, partial(self._group_for, key, those, lost))
        load_state(state, self._model, self._others)
        self.rounds.exchanges, self.rounds.by = state["exchanges"], state["by"]
        self.membership.enter(generation_of(state["generation"]))
        # The generation decides the slots' layout, so before any exchange.
        self.rounds.renew(self.membership.generation)
        self.returned.take_up(state["returned"])
        for name, one in self._run.transferred():
            one.take_over(state["run"][name])
        self._versions = [one._version for one in self._model.parameters()]
        said = f"worker {self.membership.worker} has joined, with {nbytes / 1e6:.3g} MB of state from worker {those[0]}"
        self._say(said, "members")

    # ---------------------------------------------------------------- the end
    def close(self, failed: bool) -> None:
        """End the session; without a failure, wait until all members reach their end."""
        self._unlisten()
        if self._over:
            self.membership.close()
            return
        self._over = True
        try:
            if not failed and self._in and self.rounds.circle is not None:
                self.membership.part_company(self.rounds.serve)
        finally:
            self.membership.close()

    def _unlisten(self) -> None:
        self._restore_signal()
        for watch in self._watches:
            watch.close()


def _nothing() -> None:
    pass
