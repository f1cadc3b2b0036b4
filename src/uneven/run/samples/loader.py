"""``BalancedLoader``: torch's own ``DataLoader``, which learns batch by batch which samples are this rank's."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from torch.optim.swa_utils import update_bn

from uneven.errors import CheckpointError, DataError
from uneven.policy.samples.loader_state import read_again, read_left, read_reached, read_state, write_state
from uneven.policy.samples.order import Cursor, Portion
from uneven.policy.samples.paced import PacedSampler
from uneven.policy.samples.requeued import RequeuedSamples
from uneven.run.samples.in_flight import InFlightBatches
from uneven.run.samples.indexed import IndexedSource
from uneven.run.samples.opening import Division, LoaderOptions, open_source

_UPDATES_BATCH_NORM = inspect.unwrap(update_bn).__code__


class _NoSuchPart(DataError, AttributeError):
    """So that ``hasattr`` is false."""


def _nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderCalls:
    """Whom a loader calls as it goes.

    Attributes:
        enter: before the place in the run is asked for, as a worker that joins has none before it is let in.
        begin: just before a batch is handed out, with its part.
        end: when that iteration is over: the next batch is asked for (before any of it is loaded), or the loop is
            left. Each ``begin`` gets exactly one ``end``.
        settle: when a pass over an epoch is over, before it is asked what comes again in it.
        over: when the epoch has no more batches.
    """

    enter: Callable[[], None] = _nothing
    begin: Callable[[Portion], None] = _nothing
    end: Callable[[], None] = _nothing
    settle: Callable[[], None] = _nothing
    over: Callable[[], None] = _nothing


class BalancedLoader:
    """The batches of one rank, its share of each global batch as the split moves.

    Each ``for`` over the loader is one epoch, and the epochs count themselves. Together the ranks use every
    sample exactly once an epoch, in an order that depends on nothing but seed and epoch, and
    ``batch_size`` samples in every iteration; what is left at the end is one smaller iteration, split in the
    same proportions.

    All ranks run the same number of iterations. A rank that gets no sample (in a last part smaller than the
    number of workers, or where its share is 0) is handed ``lower`` samples all the same, the first of that
    part repeated as needed; ``Portion.batch(rank)`` is 0 there, and so must be their weight in the gradient.
    They pass through the model, so whatever counts samples in the forward pass (BatchNorm's running
    statistics) sees them.

    **When a split takes effect.** With reader processes, torch draws indices ``lookahead`` batches ahead:
    while the user has the batch of iteration k, those up to ``k + lookahead`` are drawn. So a split decided
    when iteration k ends can take effect at iteration ``k + 1 + lookahead``. ``split_for(iteration)`` is
    asked each time that an iteration's indices are drawn, or some iterations before where no split will be decided any
    more, and must give the same answer on every rank.
    Iterations that were drawn but never handed out (the loop was left early) are drawn again, and asked for
    again, in the next epoch.

    **At one's own pace.** With ``Division.counter`` each rank takes its batches, as large as its share, from one
    counter when it asks for them: still every sample once an epoch, but as many iterations as a rank comes to.

    **Streams** (an ``IterableDataset``, or an object with ``__iter__`` that has no index and length): every
    rank must read the same samples in the same order, and keeps its slice of every ``batch_size`` of them.
    Slices are cut when they are handed out, so ``lookahead`` is 0; collating happens in this process. A
    stream keeps its own order, ``shuffle`` or not; if it has ``set_epoch``, that is called before each
    epoch. One process reads ahead, unless ``stream_sharded`` says that the stream divides itself among
    ``num_workers`` readers; then its order depends on their number and on ``batch_size``.

    Args:
        hands: notified of each batch that is handed out; it knows which of them are in the model.

    Raises:
        DataError: the data set can be neither indexed nor iterated, or is empty; the global batch is too
            small; or options that do not go together.
    """

    def __init__(
        self,
        asked: LoaderOptions,
        division: Division,
        calls: LoaderCalls | None = None,
        hands: InFlightBatches | None = None,
    ) -> None:
        self.dataset, self.batch_size = asked.dataset, asked.batch_size
        self._asked, self._division = asked, division
        self._changing = division.changing
        self._calls = calls or LoaderCalls()
        self._hands = hands or InFlightBatches()
        self._plan = division.plan(asked)
        self._source = open_source(asked, division, self._plan, self._hands.unused)
        self._before = Cursor()
        self._handed: Portion | None = None  # since then; a cursor is made of it where somebody asks
        self._resumed = False
        self._reached = 0  # the epoch that the script was in when a state was saved that goes on from an earlier one
        self._closed = False
        self._running: weakref.ref[Generator[Any, None, bool]] | None = None
        self._begun = Cursor()  # where the newest pass did
        self._fresh = False  # whether it has handed out nothing yet

    def __len__(self) -> int:
        """Iterations in a whole epoch; a resumed epoch has fewer left.

        Raises:
            TypeError: the data set is a stream that does not know its length.
        """
        if self._source.batches is not None:
            return self._source.batches
        length = len(self.dataset) if self._source.length is None else self._source.length
        return length // self.batch_size if self._asked.drop_last else -(-length // self.batch_size)

    def __getattr__(self, name: str) -> Any:
        """Refuse what a loader of torch's has, and this one does itself."""
        if name in ("sampler", "batch_sampler"):
            raise _NoSuchPart(
                f"loader.{name}: the session's loader divides the samples by speed and counts its epochs itself: leave "
                f"{name}.set_epoch(epoch) out; loader.epoch is the epoch"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    @property
    def samples(self) -> int | None:
        """Samples in an epoch; None for a stream."""
        return self._source.length

    @property
    def lower(self) -> int:
        """Least samples in a batch of this rank."""
        return self._plan.lower

    def at_least(self, lower: int) -> None:
        """Give no rank a smaller batch from the next pass on, if the last part allows it; the same on all ranks."""
        self._plan.lower = lower
        if self.paced is not None:
            self.paced.at_least(lower)

    @property
    def alike(self) -> str:
        """What else must be the same on all ranks."""
        return self._source.alike

    @property
    def paced(self) -> PacedSampler | None:
        """What draws the batches where workers take them at their own pace."""
        return self._source.paced

    @property
    def ended(self) -> bool:
        """Whether all batches of the epoch in progress were handed out; not known of a stream, nor where workers leave
        and join."""
        length = self._source.length
        if length is None or self._changing is not None:
            return False
        return self._cursor.start >= length - (length % self.batch_size if self._asked.drop_last else 0)

    @property
    def _cursor(self) -> Cursor:
        """Behind what was handed out last."""
        return self._before if self._handed is None else self._before.after(self._handed)

    @_cursor.setter
    def _cursor(self, cursor: Cursor) -> None:
        self._before, self._handed = cursor, None

    @property
    def epoch(self) -> int:
        """The epoch in progress (after leaving a loop early, still that one); between epochs, the next."""
        self._calls.enter()
        return max(self._cursor.epoch, self._reached)

    @property
    def iteration(self) -> int:
        """Iterations handed out so far, over the whole run; the next one has this number."""
        self._calls.enter()
        return self._cursor.iteration

    @property
    def lookahead(self) -> int:
        """Iterations after the one in the user's hands whose split cannot be changed any more."""
        return self._source.lookahead

    @property
    def first_samples(self) -> list[float] | None:
        """What tells a stream's first samples in this pass, or a sampler's order, from those of other ranks; None where
        ranks cannot differ. See :mod:`uneven.run.samples.stream_fingerprint`."""
        return self._source.tell() if self._changing is None else None

    def some_samples(self) -> list[float] | None:
        """What tells the data set from those of other ranks, by a few samples; None where they cannot be read."""
        return self._source.some()

    @property
    def reads_along(self) -> bool:
        """Whether batches are read in this process, between the user's steps."""
        return self._source.reads_along

    def sample(self, samples: int) -> Any:
        """A batch of so many samples to try a step on, put together as in the loop; nothing of the epoch is used up.

        Raises:
            DataError: the data set is a stream: what was read of it would be missing in the epoch.
        """
        return self._source.sample(samples)

    def read(self, positions: Any) -> Any:
        """A batch of the samples at these positions of the epoch in progress, int64, shape (samples,), read here."""
        assert isinstance(self._source, IndexedSource)
        return self._source.read(positions)

    def __iter__(self) -> Generator[Any, None, None]:
        """Start an epoch, or finish the one that a loaded state was in the middle of.

        Raises:
            DataError: the loader is closed; or torch's ``update_bn`` asks on several workers.
        """
        if self._division.workers > 1 and sys._getframe(1).f_code is _UPDATES_BATCH_NORM:
            raise DataError(
                "update_bn over the session's loader: each worker would take the statistics of its part of each "
                "batch; give it a torch DataLoader over the whole data set, on every worker"
            )
        return self._started(notify=True)

    def pairs(self) -> Generator[tuple[Portion, Any], None, None]:
        """The same, each batch with its part, and without a word to ``begin`` and ``end``: for several threads."""
        return self._started(notify=False)

    def _started(self, *, notify: bool) -> Generator[Any, None, None]:
        if self._closed:
            raise DataError("the loader is closed: make a new one with session.loader(...)")
        return self._walk(self._epoch(notify))

    def _walk(self, epoch: Generator[Any, None, bool]) -> Generator[Any, None, None]:
        if (left := self._suspended()) is not None:
            left.close()  # an iterator that somebody still holds; its last iteration is over
        self._running = weakref.ref(epoch)
        whole = False
        try:
            whole = yield from epoch
        finally:
            if self._running() is epoch:
                self._hands.put_down(whole)
        if not whole and not self._closed:
            raise DataError(
                "a loop over the session's loader continues after another one has begun: a loader has one place in the "
                "run, and the second loop took it. To evaluate on the training data, iterate over a DataLoader of "
                "torch's own, or use session.evaluate(dataset, …); to start again, drop the first iterator"
            )

    def close(self) -> None:
        """End the iteration in progress, and the reader processes where ``persistent_workers`` keeps them.

        Dropping the loader does the same. But where it is part of a cycle of references (its callbacks lead
        back to it), that is left to the garbage collector, and torch then waits seconds for each reader.
        """
        if self._closed:
            return
        if (left := self._suspended()) is not None:
            left.close()
        self._source.close()
        self._closed = True

    def _suspended(self) -> Generator[Any, None, bool] | None:
        epoch = self._running() if self._running is not None else None
        if epoch is None or inspect.getgeneratorstate(epoch) != inspect.GEN_SUSPENDED:
            return None
        return epoch

    def _epoch(self, notify: bool) -> Generator[Any, None, bool]:
        self._calls.enter()
        resumed, self._resumed = self._resumed, False
        if self._cursor.start > 0 and not resumed:
            self._cursor = Cursor(epoch=self.epoch + 1, iteration=self.iteration)
            if self._hands.peeked:
                self._go_back()
            self._hands.clear()
        self._begun = self._cursor
        self._fresh = True
        while self._cursor.epoch < self._reached:
            yield from self._handed_out(notify)
        yield from self._handed_out(notify)
        return True

    def _go_back(self) -> None:
        """Nothing of the pass that was left has been trained on, so its batches come again.

        Raises:
            DataError: they cannot.
        """
        if self.paced is not None or self._changing is not None:
            raise DataError(
                "a batch was taken from the loader before the loop, and not trained on: here others would count it as "
                "used. To look at a batch, collate some samples of the data set, or use a DataLoader of torch's own"
            )
        self._cursor = self._begun

    def _handed_out(self, notify: bool) -> Generator[Any, None, None]:
        if self._source.length is None and hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(self._cursor.epoch)
        yield from self._pass(notify)
        self._calls.settle()
        # A worker may be lost in the last exchanges of an epoch; what it had comes again now.
        while self._changing is not None and self._changing.waiting(self._cursor.iteration):
            yield from self._pass(notify)
            self._calls.settle()
        self._calls.over()
        self._cursor = self._cursor.next_epoch()

    def _pass(self, notify: bool) -> Generator[Any, None, None]:
        with closing(self._source.pairs(self._cursor)) as pairs:
            for part, batch in pairs:
                self._handed = part
                if not notify:
                    yield part, batch
                    continue
                self._calls.begin(part)
                if self._fresh:
                    self._fresh = self._hands.trained = False
                self._hands.hand(part, batch)
                try:
                    yield batch
                finally:
                    self._calls.end()

    def place(self) -> tuple[Cursor, tuple[Portion, ...]]:
        """Behind what was handed out last, and the parts of all that were drawn beyond that."""
        if self.paced is not None:  # a newcomer takes samples of its own; shares are known from there on
            return self._cursor._replace(iteration=self.paced.cut), ()
        return self._cursor, tuple(self._source.drawn)

    def adopt(self, cursor: Cursor, drawn: tuple[Portion, ...]) -> None:
        """Inverse of :meth:`place`, on a worker that joins: it goes on where the others are."""
        assert isinstance(self._source, IndexedSource)
        self._source.adopt(drawn)
        self._cursor, self._resumed = cursor, True

    def state_dict(self, lacking: Cursor | None = None) -> dict[str, Any]:
        """Where the run is, JSON-able: what was handed out counts, what was only read ahead does not.

        The same on every rank that is in the same iteration; where workers take samples at their own pace, on every
        rank in a meeting of all. Batches in the user's hands count as used when an optimizer step has taken them in;
        without an optimizer in ``session.setup``, whose steps could be seen, at once.

        Args:
            lacking: from where on the samples are not in the model that is saved.
        """
        places = [self._cursor, *(part.before for part in self._hands.unused())]
        cursor = min(places if lacking is None else [*places, lacking])
        state = write_state(
            cursor, seed=self._division.seed, shuffle=self._asked.shuffle, length=self._source.length,
            batch_size=self.batch_size, kind=self._source.kind,
        ) | self._source.state(cursor)  # fmt: skip
        if self.paced is not None:
            return state | self.paced.place(cursor.epoch)
        if self._changing is not None:
            state |= {"again": self._changing.left(cursor, (*self._hands.unused(), *self.place()[1]))}
        ahead = self._hands.ahead()
        reached = max(self._reached, self._cursor.epoch if ahead is None else ahead.epoch)
        return state if reached <= cursor.epoch else state | {"reached": reached}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`: the next ``for`` ends the epoch with just the samples not yet used.

        That may be none: a state taken in the loop after the last step of an epoch still belongs to that epoch, as what
        the script does after the loop (a scheduler's step, an evaluation) has not happened yet.

        The number of ranks and the global batch may differ from the run that wrote it; schema, seed,
        ``shuffle`` and the length of the data set may not.

        Raises:
            CheckpointError: naming what differs, with both values; or called inside the loop.
        """
        cursor, self._reached, left, again = self.check_state(state)
        self._source.resume(cursor, state)
        self._resumed = True
        self._hands.clear()
        if self.paced is not None:
            self.paced.resume(cursor.epoch, left)
        if self.paced is None and isinstance(self._source, IndexedSource) and (again or self._changing is not None):
            if self._changing is None:
                self._changing = RequeuedSamples(tuple(range(self._division.workers)))
                self._source.come_again(self._changing)
            self._changing.resume(cursor, again)
        self._cursor = cursor

    def check_state(self, state: dict[str, Any]) -> tuple[Cursor, int, list[tuple[int, int]], list[tuple[int, int]]]:
        """The place that ``state`` names, the epoch that the script was in, what is left of the place's epoch at
        one's own pace, and what comes again in it. Nothing is changed.

        Raises:
            CheckpointError: see :meth:`load_state_dict`.
        """
        if self._suspended() is not None:
            raise CheckpointError("load_state_dict inside a loop over the loader: load before it starts")
        cursor = read_state(
            state, seed=self._division.seed, shuffle=self._asked.shuffle, length=self._source.length,
            kind=self._source.kind,
        )  # fmt: skip
        again = read_again(state, cursor)
        left = [] if self.paced is None else [*again, *read_left(state, cursor, self.paced.usable)]
        return cursor, read_reached(state, cursor), left, again
