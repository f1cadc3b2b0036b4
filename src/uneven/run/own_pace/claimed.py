"""Samples taken from one list where workers leave and join: what a lost worker had comes again in the same epoch.

Who has what is written in the store that the launcher keeps (:mod:`uneven.data.claims`). To take samples costs a
question and an answer, beside the training; to note that some are on their way to the others costs a message.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from uneven.data.claims import Book, HeldSamples, Run, book_of, holding_of, merged
from uneven.data.order import Portion
from uneven.data.supply import EPOCHS, Interval, SamplesWanted
from uneven.errors import PeerError
from uneven.run.own_pace.sample_counter import StoredSampleCounter
from uneven.run.own_pace.store import SessionStore

Members = tuple[int, ...]

_LOOK_S = 0.005


class ClaimedSamples(StoredSampleCounter):
    """See the module; stands where :class:`StoredSampleCounter` does.

    Args:
        members: that the run begins with.
        tend: looks after what has happened to the others; called while this worker waits for them. Says whether nothing
            of this worker's is under way to them.
        there: those that take part, as this worker knows it after that.

    Attributes:
        notes: whether it is written down what each update holds, so that it must hold just that.
    """

    notes = True

    def __init__(
        self, store: SessionStore, timeout_s: float, *, ahead: bool, members: Members, tend: Callable[[], bool],
        there: Callable[[], Members],
    ) -> None:  # fmt: skip
        super().__init__(store, timeout_s, ahead=ahead)
        self._eras: list[tuple[int, Members]] = [(0, members)]
        self._tend, self._there = tend, there
        self._lock = threading.Lock()  # the training, the thread that asks and a shadow all change the next two
        self._holding = HeldSamples()
        self._learnt: list[Portion] = []  # trained on since the last update
        self._books: dict[str, str] = {}  # as last seen
        self._gone: dict[int, int] = {}  # worker → its last update that others have

    # ---------------------------------------------------------------- what this worker has
    def learnt(self, part: Portion) -> None:
        """This worker has trained on a batch; its replica has it, and nobody else."""
        with self._lock:
            self._learnt.append(part)
            self._holding = self._holding.since(part.epoch)

    @property
    def owes(self) -> bool:
        """Whether its replica has something that nobody else has, as far as updates have begun."""
        return bool(self._learnt)

    @property
    def over(self) -> int:
        """The epoch that the newest pass is over; −1 before the first."""
        return -1 if self.sampler is None else self.sampler.pass_over

    def gives(self, update: int) -> None:
        """An update begins with all that it has learnt."""
        with self._lock:
            unused = {(part.epoch, part.start) for part in (self.sampler.unused if self.sampler is not None else ())}
            runs: dict[int, list[Run]] = {}
            for part in self._learnt:
                if (part.epoch, part.start) not in unused:
                    runs.setdefault(part.epoch, []).append((part.start, part.end))
            self._learnt = [part for part in self._learnt if (part.epoch, part.start) in unused]
            self._holding = self._holding.gives(update, {epoch: merged(those) for epoch, those in runs.items()})
            self._store.keep(*self._noted())  # before anything of it is sent, or what has arrived could come again

    def gave(self) -> None:
        """It has arrived."""
        with self._lock:
            self._holding = self._holding.gave()

    def aside(self, flag: bool) -> None:
        """Nobody waits for what this worker holds as long as it takes no part."""
        with self._lock:
            self._holding = replace(self._holding, aside=flag)
            self._note()

    def _note(self) -> None:
        self._store.put(*self._noted())

    def _noted(self) -> tuple[str, str]:
        return self._key_of(self._store.rank), self._holding.text()

    # ---------------------------------------------------------------- members
    def members(self, iteration: int) -> Members:
        """In the order of the shares of one of this worker's iterations."""
        return next(members for first, members in reversed(self._eras) if first <= iteration or first == 0)

    def changed(self, border: int, members: Members) -> None:
        """Others take part; the shares of iterations from ``border`` on are theirs."""
        self._eras = [era for era in self._eras if era[0] < border or era[0] == 0] + [(border, members)]

    def counted(self, part: Portion) -> int:
        """Samples of all in the iteration of this worker's batch."""
        return part.size

    def lost(self, worker: int, arrived: int) -> None:
        """A worker is gone, for ever; what it had and had not given comes again.

        Args:
            arrived: its last update that others have.
        """
        self._gone[worker] = arrived
        holding = self._holding_of(worker)
        now = 0 if self.sampler is None else self.sampler.pass_over
        epochs = {int(one) for one in (*holding.times, *holding.held)} | set(range(max(0, now - 1), now + 2 + EPOCHS))
        for epoch in sorted(epochs):
            self._take_back(epoch, worker, holding, arrived)

    def _take_back(self, epoch: int, worker: int, holding: HeldSamples, arrived: int) -> None:
        def back(book: Book) -> Book:
            return book.leave(worker, holding.undone(epoch, worker, book, arrived))

        self._change(epoch, back)

    def leave(self) -> None:
        """This worker takes no more, and what it has is for the others; all that it has learnt has arrived."""
        self.stop()
        with self._lock:
            holding = self._holding = self._holding.gave()
            self._note()
        self.lost(self._store.rank, holding.update)

    # ---------------------------------------------------------------- the end of an epoch
    def waiting(self, iteration: int) -> int:
        """Whether something of the epoch comes again, or may: waits until all have given what they hold of it.

        Raises:
            PeerError: a worker that is alive keeps the others waiting for longer than the time-out.
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
            holdings = {one: self._holding_of(one) for one in self._there() if one != self._store.rank}
            busy = {one for one, it in holdings.items() if not it.aside and it.undone(epoch, one, book, 0)}
            forgotten = [one for one in map(int, book.taken) if one in self._gone and one not in book.gone]
            for one in forgotten:  # it was taken for gone, and was not quite
                self._take_back(epoch, one, self._holding_of(one), self._gone[one])
            unknown = [one for one in map(int, book.taken) if one not in (*book.gone, *holdings, self._store.rank)]
            if quiet and not busy and not forgotten and not unknown:
                return 0
            if (now := (holdings, book)) != before or not (busy or unknown):
                before, until_s = now, time.monotonic() + self._timeout_s
            if time.monotonic() > until_s:
                who = ", ".join(map(str, sorted({*busy, *unknown})))
                raise PeerError(
                    f"the end of epoch {epoch}: worker {who} has samples of it in hand and has done nothing with them "
                    f"for {self._timeout_s:g} s, but is alive: it hangs, or is only slow and needs a larger timeout_s"
                )
            time.sleep(_LOOK_S)

    def awaited(self) -> bool:
        """Whether another worker has begun an update that this one has not, where all make the same ones."""
        others = (self._holding_of(one) for one in self._there() if one != self._store.rank)
        return any(it.update > self._holding.update for it in others)

    # ---------------------------------------------------------------- as the counter
    def _taken(self, life: int, epoch: int, wanted: SamplesWanted) -> Interval | None:
        found: list[Run | None] = []

        def take(book: Book) -> Book:
            after, run = book.take(self._store.rank, wanted.length, wanted.run)
            found.append(run)
            return after

        book = self._change(epoch, take, life)
        if (run := found[-1]) is not None:
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
        """Where the counter of an epoch is, and what is not trained on; exact where nobody trains meanwhile."""
        book = self._book(epoch)
        those = [int(one) for one in book.taken if int(one) not in book.gone]
        held = [run for one in those for run in self._holding_of(one).undone(epoch, one, book, 0)]
        return book.next, [*book.again, *held]

    def held(self) -> dict[str, object]:
        """Nothing that the store would not say; nobody waits for this worker's samples meanwhile."""
        self.aside(True)
        return {}

    def forget(self) -> None:
        super().forget()
        self.aside(False)

    def learn(self, words: Iterable[dict[str, object]]) -> None:
        """There is nothing to be learnt from these."""

    def state(self) -> int:
        """For a newcomer: states loaded so far."""
        return self._lives

    def adopt(self, state: int) -> None:
        """Inverse of :meth:`state`."""
        self._lives = state

    # ---------------------------------------------------------------- the store
    def _change(self, epoch: int, change: Callable[[Book], Book], life: int | None = None) -> Book:
        """Change the book of an epoch as a whole, however many do so at a time."""
        key = f"book/{self._lives if life is None else life}/{epoch}"
        before = self._books.get(key, "")
        while True:
            old = book_of(before)
            new = change(old)
            after = before if new == old else new.text()
            found = self._store.swap(key, before, after) if after else self._text(key)
            self._books[key] = found
            if found == after:
                return new
            before = found

    def _book(self, epoch: int) -> Book:
        return book_of(self._text(f"book/{self._lives}/{epoch}"))

    def _holding_of(self, worker: int) -> HeldSamples:
        return holding_of(self._text(self._key_of(worker)))

    def _key_of(self, worker: int) -> str:
        return f"holds/{self._lives}/{worker}"

    def _text(self, key: str) -> str:
        return self._store.texts([key])[0] or ""


class Unclaimed:
    """Where nobody leaves or joins, and so asks who has what; stands where :class:`ClaimedSamples` does."""

    notes = owes = False
    over = -1

    def learnt(self, part: Portion) -> None: ...

    def gives(self, update: int) -> None: ...

    def gave(self) -> None: ...
