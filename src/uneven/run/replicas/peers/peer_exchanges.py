"""Exchanges of parameters: after the step, while the training waits, or in the background thread.

Each of the two has its own line, because two threads must never share a process group.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from uneven.policy.control.ledger import Order
from uneven.policy.core.actions import Exchange
from uneven.policy.core.membership import Meeting
from uneven.policy.core.records import ExchangeRecord
from uneven.run.context.observer import ExchangeObserver
from uneven.run.lines.communicator import RoundPlace, VectorLine, unscaled
from uneven.run.lines.elastic_communicator import ElasticCommunicator
from uneven.run.lines.group_communicator import GroupCommunicator
from uneven.run.lines.rollcall import RollCall
from uneven.run.lines.traffic import TrafficBook
from uneven.run.replicas.peers.background_thread import BackgroundThread
from uneven.run.replicas.peers.overhead import PATIENCE_S
from uneven.run.replicas.peers.replica import ExchangeResult, Given, Replica
from uneven.run.replicas.sparse.exchange import WHOSE, EntriesExchange, Moved, apart


class StepPosition(NamedTuple):
    """A worker's place in the loop that all workers run, after the step of ``iteration``.

    ``clock`` counts steps, because the iterations of threads end in any order. ``shows`` marks an evaluation.
    """

    epoch: int
    iteration: int
    clock: int
    shows: bool = False

    @property
    def number(self) -> int:
        """A number that differs at each place of an epoch."""
        return 2 * self.clock + self.shows


class Exchanges:
    """This worker's lines for parameters, and the background thread.

    Args:
        roll: names the missing workers; None for a single-process run.
        together: whether all workers take the same steps, so that each exchange has one place in the loop.
        shadowed, delayed: whether any exchange runs in the background, and whether any outcome enters some steps later.
        rounds: makes the exchanges if members come and go; otherwise None.
        spoken_for: returns the samples up to an iteration that this worker represents in a party, if parties change.

    Attributes:
        urgent: whether an exchange may start in the background at any cost.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        rank: int,
        roll: RollCall | None,
        together: bool = True,
        timeout_s: float,
        shadowed: bool,
        delayed: bool = False,
        book: TrafficBook,
        observer: ExchangeObserver,
        clock: Callable[[], int],
        on_record: Callable[[ExchangeRecord], None],
        on_nonfinite: Callable[[], None],
        rounds: ElasticCommunicator | None = None,
        spoken_for: Callable[[int], float] | None = None,
        entries: EntriesExchange | None = None,
    ) -> None:
        self._replica = replica
        self._entries = entries
        self._rank = rank
        self._together = together
        self._clock = clock
        self._observer = observer
        self._on_record = on_record
        self._on_nonfinite = on_nonfinite
        self._spoken_for = spoken_for
        self._line = self._aside = None if rounds is None else VectorLine(rounds, book.open("parameters"))
        if roll is not None:
            traffic = book.open("parameters")
            self._line = VectorLine(GroupCommunicator(roll, timeout_s), traffic)
            if shadowed or (delayed and entries is None):
                traffic = book.open("shadow")
                self._aside = VectorLine(GroupCommunicator(roll, timeout_s), traffic)
        self.shadowed = shadowed
        self.urgent = False
        # Workers to which an exchange costs less wait up to timeout_s for this one, so half of it is safe.
        patience_s = min(PATIENCE_S, timeout_s / 2)
        self._thread = BackgroundThread(patience_s)
        self._landed: deque[tuple[ExchangeRecord, bool]] = deque()
        self._rested: Order | None = None  # this worker's samples of it were contributed while it rested

    def free_for(self, exchange: Exchange) -> bool:
        """Return whether it may start in the background: nothing is under way, and its load allows it.
        Raises :class:`TrainingError` if an exchange there has failed."""
        return self._thread.free(1.0 if self.urgent else exchange.background.load)

    @property
    def idle(self) -> bool:
        """True if nothing is under way in the background; raises :class:`TrainingError` if an exchange there has
        failed."""
        return self._thread.free()

    def stepped(self) -> None:
        """Note the end of a step, and report finished exchanges."""
        if self._landed:
            self.write_down()
        if self.shadowed:
            self._thread.stepped()

    def paused(self) -> None:
        self._thread.paused()

    def resumed(self) -> None:
        self._thread.resumed()
        if self._entries is not None:
            self._entries.begin()

    @property
    def exchanging(self) -> bool:
        """True while all workers run an exchange in the background."""
        return self._thread.exchanging

    @property
    def failed(self) -> bool:
        return self._thread.failed

    def meet(self, order: Order) -> None:
        """Exchange in the foreground, waiting for the others.

        Raises:
            PeerError: a worker did not take part.
            TrainingError: a worker is at another step.
        """
        began_s = time.perf_counter()
        if order.exchange.delay:
            self._begin_late(order)
            return
        self._observer.ready()
        met = self._met(order)
        self._observer.done()
        self._land(order, met, time.perf_counter() - began_s)
        self.write_down()

    def _begin_late(self, order: Order) -> None:
        replica, exchange, landed = self._replica, order.exchange, partial(self._land, order)
        if exchange.select is None:
            given = replica.give(exchange, order.merges.weight)
            self._thread.launch(partial(self._sum_late, order, given))
            self._thread.hold(self._thread.wait, partial(self._land_late, order, given))
        elif self._entries is not None and exchange.parties == self._entries.parties:
            self._observer.ready()
            moved = Moved(order.clock, order.merges.weight, order.part, order.rate)
            hear, change = self._entries.begin_late(exchange, moved, landed)
            self._thread.hold(hear, lambda heard: replica.hold(change(heard)))
            self._observer.done()
        else:
            landed(ExchangeResult(0, 0.0, True, 0), 0.0)  # a party of one has no peer
            return
        replica.due = order.clock + exchange.delay

    def _sum_late(self, order: Order, given: Given) -> tuple[int, float]:
        began_s = time.perf_counter()
        sent_bytes = self._total(self._aside, given.vector, order.exchange, at=self._place(order))
        return sent_bytes, time.perf_counter() - began_s

    def _land_late(self, order: Order, given: Given, summed: tuple[int, float]) -> None:
        sent_bytes, took_s = summed
        met = self._replica.combine(order.exchange, given, sent_bytes)
        self._land(order, met, took_s)
        self._replica.land(order.exchange, given, met)

    def enter(self, clock: int) -> bool:
        """Wait for an outcome that is due after ``clock`` steps and apply it; return whether there was one. Raises
        as :meth:`meet`."""
        due = self._replica.due
        if due is None or clock < due:
            return False
        self._observer.ready()
        self._thread.arrive()
        self._replica.enter()
        self._observer.done()
        self.write_down()
        return True

    def _met(self, order: Order) -> ExchangeResult:
        exchange = order.exchange
        if exchange.select is None:
            before = self._weight(order)
            # Asked when the vector is sent, again after a loss: by then the party may have changed.
            weight = (lambda: self._weight(order) / before) if before else unscaled
            total = partial(self._total, self._line, at=self._place(order), groups=order.meeting, weight=weight)
            return self._replica.meet(exchange, before, total, alone=self._alone)
        if self._entries is None or exchange.parties != self._entries.parties:
            return ExchangeResult(0, 0.0, True, 0)  # a party of one has no peer
        return self._entries.meet(exchange, Moved(order.clock, order.merges.weight, order.part, order.rate))

    def _weight(self, order: Order) -> float:
        """Return the samples that this worker's replica represents in an exchange."""
        spoken_for = self._spoken_for if order.exchange.parties else None
        return order.merges.weight if spoken_for is None else spoken_for(order.iteration)

    @property
    def _alone(self) -> bool | None:
        """False if a worker takes part also if its group is only itself; None if its members tell."""
        return False if self._line is not None and self._line.rounds.lonely else None

    def loaded(self) -> None:
        """Drop what belongs to the replica before a checkpoint was loaded."""
        if self._entries is not None:
            self._entries.forget()
        self._thread.arrive(drop=True)
        self._replica.forget()

    @property
    def picks(self) -> bool:
        """True if there are exchanges of picked entries."""
        return self._entries is not None

    def state_dict(self, shown: bool) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the state of merges and unsent entries: vectors (size,), and numbers.
        If the replica holds the model to evaluate (``shown``), it already includes all sites' unsent entries."""
        self._thread.arrive()
        vectors, kept = self._replica.state_dict(shown=shown)
        if self._entries is None or shown:
            return vectors, kept
        return vectors | self._entries.state_dict(), {**kept, WHOSE: float(self._rank)}

    def check(self, vectors: dict[str, Tensor], kept: dict[str, float]) -> None:
        """Raise :class:`CheckpointError` if :meth:`load_state_dict` cannot load these, vectors (size,); nothing is
        changed."""
        held, vectors = apart(vectors)
        if self._entries is not None:
            self._entries.check(held)
        self._replica.check(vectors, apart(kept)[1])

    def load_state_dict(self, vectors: dict[str, Tensor], kept: dict[str, float]) -> None:
        held, vectors = apart(vectors)
        own, kept = apart(kept)
        if self._entries is not None:
            self._entries.load_state_dict(held, round(own.get(WHOSE, -1.0)))
        self._replica.load_state_dict(vectors, kept)

    def begin(self, order: Order, own: Tensor | None = None, over: Callable[[], None] | None = None) -> None:
        """Start an exchange in the background and return immediately; no other may be under way there.

        Args:
            own: the replica to exchange, shape (size,), overwritten; None reads it at that time.
            over: called in the thread of the exchange when it is complete.
        """
        gather = partial(self._gather, order.exchange)
        self._thread.launch(partial(self._beside, order, own, over), gather, order.exchange.background.load)

    def rest(self, order: Order) -> None:
        """Finish the exchanges in the background, on all workers; see :class:`BackgroundThread`."""
        self._thread.rest(partial(self._beside, order, resting=True), partial(self._gather, order.exchange))
        self.write_down()

    def caught_up(self) -> bool:
        """Finish exchanges of entries and delayed ones, on all workers; return whether others may run in the
        background."""
        if self._entries is not None:
            self._entries.catch_up()
        self._thread.arrive()
        if not self.shadowed:  # otherwise rest() does
            self.write_down()
        return self.shadowed

    def mean(self, everybody: Exchange, place: StepPosition | None) -> Tensor:
        """Return the plain mean of all replicas, shape (size,); raise :class:`TrainingError` if a worker is at
        another place."""
        return self._replica.mean(partial(self._total, self._line, at=place), everybody)

    def write_down(self) -> None:
        """Report finished exchanges; call it in the training thread."""
        while self._landed:
            record, finite = self._landed.popleft()
            self._on_record(record)
            if not finite:
                self._on_nonfinite()

    def close(self, failed: bool) -> None:
        """Close thread and lines."""
        self._thread.close()
        entries, self._entries = self._entries, None
        if entries is not None:
            entries.close(failed)
        for line in (self._line, self._aside):
            if line is not None and not failed:  # after a failure a thread may still block in a line
                line.close()
        self._line = self._aside = None

    def _gather(self, exchange: Exchange) -> None:
        """Wait for all members, in the background thread, by a sum of one number."""
        # The dtype must not depend on a rank's torch default: gloo aborts the process if dtypes differ.
        self._total(self._aside, torch.zeros(1, dtype=torch.float32), exchange, words=False)

    def _beside(
        self,
        order: Order,
        own: Tensor | None = None,
        over: Callable[[], None] | None = None,
        resting: bool = False,
    ) -> bool:
        """Exchange once in the background thread; return whether all workers rest."""
        began_s, total = time.perf_counter(), partial(self._total, self._aside)
        weight = 0 if order is self._rested else order.merges.weight
        met = self._replica.meet(order.exchange, weight, total, resting=resting, alone=self._alone, own=own)
        if weight or (order.merges.gap and not resting):
            self._land(order, met, time.perf_counter() - began_s)
        if resting:
            self._rested = order
        if over is not None:
            over()
        return met.resting == len(order.exchange.members)

    def _place(self, order: Order) -> StepPosition | None:
        return StepPosition(order.epoch, order.iteration, order.clock) if self._together else None

    def _total(
        self,
        line: VectorLine | None,
        vector: Tensor,
        exchange: Exchange,
        *,
        at: StepPosition | None = None,
        groups: Meeting | None = None,
        weight: Callable[[], float] = unscaled,
        words: bool = True,
    ) -> int:
        """Sum over the members on ``line``, and check that all are at one place, if there is one."""
        if line is None:
            return 0
        # In the background each worker is at another step, so the step cannot name the exchange.
        where = "the exchange of parameters beside the training" if exchange.beside else ""
        what = f"the exchange of parameters {'beside' if exchange.beside else 'after'} step {self._clock()}"
        here = at or StepPosition(0, 0, 0)
        settles = -1 if at is None or at.shows else at.iteration  # an evaluation's mean changes no replica
        step = (here.epoch, here.number, here.iteration, settles, groups)
        place = RoundPlace(what, *step, exchange.members, exchange.parties, at is not None, where)
        return line.total(vector, place, weight, words=words)

    def _land(self, order: Order, met: ExchangeResult, took_s: float) -> None:
        record = ExchangeRecord(
            rank=self._rank,
            iteration=order.iteration,
            at_s=time.time(),
            moment=order.exchange.moment.value,
            members=len(order.exchange.members),
            samples=order.merges.own,
            gap=order.merges.gap,
            late=self._clock() - order.clock,
            took_s=took_s,
            sent_bytes=met.sent_bytes,
            distance=met.distance,
            dropped=order.dropped,
            threads=order.threads,
            picked=met.picked,
        )
        self._landed.append((record, met.finite))
