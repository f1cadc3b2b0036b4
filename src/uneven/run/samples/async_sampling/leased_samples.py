"""A sample counter for runs whose workers leave and join: the samples of a lost worker are requeued in the same epoch.

The launcher's store records the samples of each worker (:mod:`uneven.policy.samples.leases`). Taking samples costs a
round trip in a background thread; recording that some are being sent costs one message.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from uneven.errors import PeerError
from uneven.policy.samples.leases import HeldSamples, Run, SampleLeases, book_of, holding_of, merged
from uneven.policy.samples.order import Portion
from uneven.policy.samples.supply import EPOCHS, Interval, SamplesWanted
from uneven.run.samples.async_sampling.evaluation_barrier import EvaluationBarrier, ShutdownHandshake
from uneven.run.samples.async_sampling.sample_counter import StoredSampleCounter
from uneven.run.samples.async_sampling.session_store import SessionStore

Members = tuple[int, ...]

_LOOK_S = 0.005


class LeasedSamples(StoredSampleCounter):
    """The sample counter of an elastic run.

    Args:
        members: of the first iteration.
        tend: handles changes of the membership while this worker waits for the others. Returns whether no update of
            this worker is under way.
        there: returns the current members; called after ``tend``.
    """

    notes = True  # the store records the samples in each update, so an update must contain exactly those

    def __init__(
        self,
        store: SessionStore,
        timeout_s: float,
        *,
        ahead: bool,
        members: Members,
        tend: Callable[[], bool],
        there: Callable[[], Members],
    ) -> None:
        super().__init__(store, timeout_s, ahead=ahead)
        self.evaluations = 0  # that this worker has reached
        self._eras: list[tuple[int, Members]] = [(0, members)]
        self._tend = tend
        self.there = there
        # The training thread, the thread that asks the store and the background exchange change the next two.
        self._lock = threading.Lock()
        self._holding = HeldSamples()
        self._learnt: list[Portion] = []  # trained on since the last update
        self._books: dict[str, str] = {}  # as last seen; `_changing` is held from reading one to the store's answer
        self._changing = threading.Lock()
        self._gone: dict[int, int] = {}  # worker → its last update that arrived

    def learnt(self, part: Portion) -> None:
        """Record that this worker has trained on a batch, and no other worker has its update yet."""
        with self._lock:
            self._learnt.append(part)
            self._holding = self._holding.since(part.epoch)

    @property
    def owes(self) -> bool:
        """True if this replica has trained on samples that are in no update yet."""
        return bool(self._learnt)

    @property
    def over(self) -> int:
        """The epoch of the newest pass; −1 before the first."""
        return -1 if self.sampler is None else self.sampler.pass_over

    def gives(self, update: int) -> None:
        """Start an update with all batches learnt so far, except those that the sampler counts as unused."""
        with self._lock:
            unused = {(part.epoch, part.start) for part in (self.sampler.unused if self.sampler is not None else ())}
            runs: dict[int, list[Run]] = {}
            for part in self._learnt:
                if (part.epoch, part.start) not in unused:
                    runs.setdefault(part.epoch, []).append((part.start, part.end))
            self._learnt = [part for part in self._learnt if (part.epoch, part.start) in unused]
            self._holding = self._holding.gives(update, {epoch: merged(those) for epoch, those in runs.items()})
            # Before the update is sent: if this worker were lost in between, samples that arrived would be requeued.
            self._store.keep(*self._noted())

    def gave(self) -> None:
        with self._lock:
            self._holding = self._holding.gave()

    def aside(self) -> None:
        """Record that this worker is on its way to its next evaluation, or to its end. It waits there for the others,
        and those that have not come there do not wait for the samples that it holds."""
        with self._lock:
            self._holding = replace(self._holding, aside=self.evaluations + 1)
            self._note()

    def _note(self) -> None:
        self._store.put(*self._noted())

    def _noted(self) -> tuple[str, str]:
        return self._key_of(self._store.rank), self._holding.text()

    def members(self, iteration: int) -> Members:
        return next(members for first, members in reversed(self._eras) if first <= iteration or first == 0)

    def changed(
        self, border: int, members: Members, exchanging: int = -1, donors: Mapping[int, int] | None = None
    ) -> int:
        """Use the new members for the shares of batches that this worker has not made; other workers have other
        borders."""
        border = 0 if self.sampler is None else self.sampler.cut
        self._eras = [era for era in self._eras if era[0] < border or era[0] == 0] + [(border, members)]
        return border

    def counted(self, part: Portion) -> int:
        """Return the samples of all workers in the iteration of this worker's batch."""
        return part.size

    def lost(self, worker: int, arrived: int) -> None:
        """Requeue the samples of a lost worker that are in no update up to ``arrived``, its last one to arrive."""
        self._gone[worker] = arrived
        holding = self._holding_of(worker)
        now = 0 if self.sampler is None else self.sampler.pass_over
        epochs = {int(one) for one in (*holding.times, *holding.held)} | set(range(max(0, now - 1), now + 2 + EPOCHS))
        for epoch in sorted(epochs):
            self._take_back(epoch, worker, holding, arrived)

    def _take_back(self, epoch: int, worker: int, holding: HeldSamples, arrived: int) -> None:
        self._change(epoch, lambda book: book.leave(worker, holding.undone(epoch, worker, book, arrived)))

    def leave(self) -> None:
        """Stop taking samples and requeue the unused ones, after all updates of this worker have arrived."""
        self.stop()
        with self._lock:
            holding = self._holding = self._holding.gave()
            self._note()
        self.lost(self._store.rank, holding.update)

    def waiting(self, iteration: int) -> int:
        """Wait for the end of the epoch; return 1 when samples are requeued, 0 when all updates have arrived.

        Raises:
            PeerError: a live worker holds samples and makes no progress within the time-out.
        """
        assert self.sampler is not None
        epoch, until_s = self.sampler.pass_over, time.monotonic() + self._timeout_s
        with self._lock:
            self._holding = self._holding.since(epoch)
            self._note()
        before: object = None
        while True:
            quiet = self._tend()
            book = self._book(epoch)
            if book.again:
                return 1
            holdings = self._holdings_of_others()
            busy = {one for one, it in holdings.items() if not self._waits_for_me(it) and it.undone(epoch, one, book)}
            forgotten = [one for one in map(int, book.taken) if one in self._gone and one not in book.gone]
            for one in forgotten:  # declared lost, but it took samples of this epoch after that
                self._take_back(epoch, one, self._holding_of(one), self._gone[one])
            unknown = [one for one in map(int, book.taken) if one not in (*book.gone, *holdings, self._store.rank)]
            if quiet and not busy and not forgotten and not unknown:
                return 0
            if (now := (holdings, book)) != before or not (busy or unknown):  # progress restarts the time-out
                before, until_s = now, time.monotonic() + self._timeout_s
            if time.monotonic() > until_s:
                who = ", ".join(map(str, sorted({*busy, *unknown})))
                raise PeerError(
                    f"the end of epoch {epoch}: worker {who} has unfinished samples of it and made no progress for "
                    f"{self._timeout_s:g} s, but is alive: it hangs, or is slow and needs a larger timeout_s"
                )
            time.sleep(_LOOK_S)

    def awaited(self) -> bool:
        """Return whether another worker has started an update that this one has not, and is not on its way to an
        evaluation. For runs with common updates."""
        others = self._holdings_of_others().values()
        return any(it.update > self._holding.update and not self._waits_for_me(it) for it in others)

    def _taken(self, life: int, epoch: int, wanted: SamplesWanted) -> Interval | None:
        found: list[Run | None] = []

        def take(book: SampleLeases) -> SampleLeases:
            after, run = book.take(self._store.rank, wanted.length, wanted.run)
            found.append(run)
            return after

        book = self._change(epoch, take, life)
        if (run := found[-1]) is not None:  # the last one: `take` is called again when the swap fails
            with self._lock:
                self._holding = self._holding.took(epoch, book.taken[str(self._store.rank)][0], run)
                self._note()
        return run

    def reached(self, epoch: int) -> int:
        return self._book(epoch).next

    def restart(self) -> None:
        super().restart()
        self._holding, self._learnt = HeldSamples(), []

    def known(self, epoch: int) -> tuple[int, list[Interval]] | None:
        """Return the counter of an epoch and the runs not trained on; exact only while no worker trains."""
        book = self._book(epoch)
        those = [int(one) for one in book.taken if int(one) not in book.gone]
        held = [run for one in those for run in self._holding_of(one).undone(epoch, one, book)]
        runs = [*book.again, *held]
        return book.next, runs if self.sampler is None else self.sampler.positions(epoch, runs)

    def held(self) -> dict[str, object]:
        self.aside()
        self.evaluations += 1
        return {}  # the store knows the samples already

    def learn(self, words: Iterable[dict[str, object]]) -> None: ...

    def state(self) -> int:
        return self._lives

    def adopt(self, state: int) -> None:
        self._lives = state

    def _change(
        self, epoch: int, change: Callable[[SampleLeases], SampleLeases], life: int | None = None
    ) -> SampleLeases:
        """Change the book of an epoch atomically; ``change`` is called again when another worker was faster."""
        key = f"book/{self._lives if life is None else life}/{epoch}"
        # One thread at a time: from a text older than this worker's last take, the next take would be the same one. The
        # store would then answer with the text that has it, as after a successful swap.
        with self._changing:
            while True:  # compare and swap: starts from the text last seen, which saves a read when it is current
                old = book_of(before := self._books.get(key, ""))
                new = change(old)
                after = before if new == old else new.text()
                self._books[key] = self._store.swap(key, before, after) if after else self._text(key)
                if self._books[key] == after:
                    return new

    def _book(self, epoch: int) -> SampleLeases:
        return book_of(self._text(f"book/{self._lives}/{epoch}"))

    def _holding_of(self, worker: int) -> HeldSamples:
        return holding_of(self._text(self._key_of(worker)))

    def _waits_for_me(self, one: HeldSamples) -> bool:
        return one.aside > self.evaluations

    def _holdings_of_others(self) -> dict[int, HeldSamples]:
        others = [one for one in self.there() if one != self._store.rank]
        texts = self._store.texts([self._key_of(one) for one in others]) if others else []
        return {one: holding_of(text) for one, text in zip(others, texts, strict=True)}

    def _key_of(self, worker: int) -> str:
        return f"holds/{self._lives}/{worker}"

    def _text(self, key: str) -> str:
        return self._store.texts([key])[0] or ""


class NoLeases:
    """The replacement for :class:`LeasedSamples` in a run whose membership does not change; records nothing."""

    notes = owes = False
    over = -1

    def learnt(self, part: Portion) -> None: ...

    def gives(self, update: int) -> None: ...

    def gave(self) -> None: ...


class BatchInHand:
    """The recorder that passes each batch to ``learnt`` once, at the end of its step or earlier."""

    def __init__(self, learnt: Callable[[Portion], object]) -> None:
        self.part: Portion | None = None  # None between two steps
        self.trained = False  # whether an optimizer has made a step on the batch
        self._learnt = learnt
        self._early: Portion | None = None  # a batch recorded before the end of its step

    def begins(self, part: Portion) -> None:
        self.part, self.trained = part, False

    def learns(self) -> None:
        """Record the current batch now, because its update is about to be sent."""
        if self.part is not None and self.part != self._early:
            self._early = self.part
            self._learnt(self.part)

    def gives(self) -> int:
        """Record the current batch if an optimizer has made a step on it; return the unfinished steps, 0 or 1."""
        if self.part is None or not self.trained:
            return 0
        self.learns()
        return 1  # the caller adds it to the clock, so that this update differs from the one before

    def ends(self, part: Portion) -> None:
        if part != self._early:
            self._learnt(part)
        self.part = self._early = None


@dataclass(frozen=True, slots=True)
class OwnPace:
    """The sample counter, evaluation barrier and shutdown handshake of one worker."""

    rank: int
    counter: StoredSampleCounter
    barrier: EvaluationBarrier
    shutdown: ShutdownHandshake

    def for_newcomers(self) -> dict[str, Any]:
        assert isinstance(self.counter, LeasedSamples)
        sampler = self.counter.sampler
        left = None if sampler is None else sampler.left()
        return {"met": self.barrier.number, "lives": self.counter.state(), "left": left}

    def take_over(self, state: dict[str, Any]) -> None:
        assert isinstance(self.counter, LeasedSamples)
        self.barrier.number = self.counter.evaluations = state["met"]
        self.counter.adopt(state["lives"])
        self.counter.changed(0, self.counter.there())
        if self.counter.sampler is not None:
            self.counter.sampler.adopt(state["left"])


def make_own_pace(rank: int, size: int, timeout_s: float, *, ahead: bool) -> OwnPace:
    """Make the objects of one worker, in a run whose membership does not change.

    Args:
        timeout_s: longest wait for the other workers.
        ahead: see :class:`uneven.policy.samples.supply.SampleCounter`.
    """
    store = SessionStore(rank, size)  # numbered by order, so all ranks make their sessions in the same order
    counter = StoredSampleCounter(store, timeout_s, ahead=ahead)
    barrier = EvaluationBarrier(store, counter, timeout_s, lambda: tuple(range(size)))
    return OwnPace(rank, counter, barrier, ShutdownHandshake(store))
