"""The session's loader: torch's ``DataLoader`` with the indices of this rank, decided batch by batch."""

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
    """A missing attribute; also an AttributeError, so that ``hasattr`` is false."""


def _nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderCalls:
    """The callbacks of a loader.

    Attributes:
        enter: before the place in the run is read; a worker that joins has none before it is let in.
        begin: just before a batch is yielded, with its part.
        end: at the end of that iteration: the next batch is requested (and not loaded yet), or the loop is left, as its
            argument says. Each ``begin`` gets exactly one ``end``.
        settle: after a pass over an epoch, before its requeued samples are read.
        over: at the end of the epoch.
    """

    enter: Callable[[], None] = _nothing
    begin: Callable[[Portion], None] = _nothing
    end: Callable[[bool], None] = _nothing
    settle: Callable[[], None] = _nothing
    over: Callable[[], None] = _nothing


class BalancedLoader:
    """Yield this rank's batches: its share of each global batch, by the current split.

    Each ``for`` over the loader is one epoch; the loader counts epochs. Together the ranks use every sample exactly
    once per epoch, in an order that depends only on seed and epoch, and ``batch_size`` samples per iteration. The
    remainder is one smaller iteration, split in the same proportions.

    All ranks run the same number of iterations. A rank without samples (its share is 0, or the last part is smaller
    than the number of workers) gets a padded batch: ``lower`` samples of that part, repeated as needed.
    ``Portion.batch(rank)`` is 0 there, and its weight in the gradient must be 0 too. Padded samples pass through the
    model, so they do change BatchNorm's running statistics.

    **When a split takes effect.** With reader processes, torch draws indices ``lookahead`` batches ahead, so a split
    decided at the end of iteration k takes effect at iteration ``k + 1 + lookahead``. ``split_for(iteration)`` is
    called when the indices of an iteration are drawn, or earlier if no further split will be decided, and must return
    the same on every rank. Iterations that were drawn but not yielded, because the loop was left, are drawn again in
    the next epoch.

    **Asynchronous sampling.** With ``Division.counter`` each rank takes batches of the size of its share from a common
    counter. Every sample is still used once per epoch, but ranks run different numbers of iterations.

    **Streams** (an ``IterableDataset``, or an object with ``__iter__`` but without index and length): every rank must
    read the same samples in the same order, and keeps its slice of every ``batch_size`` of them. Slices are cut when
    they are yielded, so ``lookahead`` is 0; collating happens in this process. A stream keeps its order, with or
    without ``shuffle``; its ``set_epoch``, if there is one, is called before each epoch. One process reads ahead,
    unless ``stream_sharded`` declares that the stream divides itself among ``num_workers`` readers; then its order
    depends on their number and on ``batch_size``.

    Args:
        hands: notified of each batch that is yielded; it knows which of them the model has used.
    """

    def __init__(
        self,
        asked: LoaderOptions,
        division: Division,
        calls: LoaderCalls | None = None,
        hands: InFlightBatches | None = None,
    ) -> None:
        self.dataset = asked.dataset
        self.batch_size = asked.batch_size
        self._asked = asked
        self._division = division
        self._book = division.book
        self._changing = division.changing
        self._calls = calls or LoaderCalls()
        self._hands = hands or InFlightBatches()
        self._plan = division.plan(asked)
        self._source = open_source(asked, division, self._plan, self._hands.unused)
        self._before = Cursor()
        self._handed: Portion | None = None  # since then; converted to a cursor on request
        self._resumed = False
        self._reached = 0  # the script's epoch when the loaded state was saved; its cursor may be in an earlier one
        self._closed = False
        self._running: weakref.ref[Generator[Any, None, bool]] | None = None
        self._begun = Cursor()  # the start of the newest pass
        self._fresh = False  # whether it has handed out nothing yet

    def __len__(self) -> int:
        """Return the iterations in a whole epoch (a resumed one has fewer); a stream of unknown length raises
        TypeError."""
        if self._source.batches is not None:
            return self._source.batches
        length = len(self.dataset) if self._source.length is None else self._source.length
        return length // self.batch_size if self._asked.drop_last else -(-length // self.batch_size)

    def __getattr__(self, name: str) -> Any:
        """Raise an error that explains the attributes of torch's loaders that this one replaces."""
        if name in ("sampler", "batch_sampler"):
            raise _NoSuchPart(
                f"loader.{name}: the session's loader divides the samples by speed and counts its epochs itself: leave "
                f"{name}.set_epoch(epoch) out; loader.epoch is the epoch"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    @property
    def samples(self) -> int | None:
        """The number of samples in an epoch; None for a stream."""
        return self._source.length

    @property
    def lower(self) -> int:
        """The least number of samples in a batch of this rank."""
        return self._plan.lower

    def at_least(self, lower: int) -> None:
        """Set the least batch size from the next pass on, the same on all ranks; a small last part may have fewer."""
        self._plan.lower = lower
        if self.paced is not None:
            self.paced.at_least(lower)

    @property
    def alike(self) -> str:
        """A fingerprint of other options that must be the same on all ranks."""
        return self._source.alike

    @property
    def paced(self) -> PacedSampler | None:
        """The sampler of workers that take batches asynchronously, otherwise None."""
        return self._source.paced

    @property
    def ended(self) -> bool:
        """True if all batches of the current epoch were yielded; always False for streams and elastic runs, because it
        is unknown there."""
        length = self._source.length
        if length is None or self._book is not None:
            return False
        return self._cursor.start >= length - (length % self.batch_size if self._asked.drop_last else 0)

    @property
    def _cursor(self) -> Cursor:
        """The place after the last batch that was yielded."""
        return self._before if self._handed is None else self._before.after(self._handed)

    @_cursor.setter
    def _cursor(self, cursor: Cursor) -> None:
        self._before, self._handed = cursor, None

    @property
    def epoch(self) -> int:
        """The current epoch (also after leaving a loop early); between epochs, the next one."""
        self._calls.enter()
        return max(self._cursor.epoch, self._reached)

    @property
    def iteration(self) -> int:
        """The number of iterations yielded so far in the whole run, and of the next one."""
        self._calls.enter()
        return self._cursor.iteration

    @property
    def lookahead(self) -> int:
        """The number of iterations after the current one whose split is already fixed."""
        return self._source.lookahead

    @property
    def first_samples(self) -> list[float] | None:
        """A fingerprint of this pass: of a stream's first samples, or of a sampler's order; None if ranks cannot
        differ. See :mod:`uneven.run.samples.stream_fingerprint`."""
        return self._source.tell() if self._book is None else None

    def some_samples(self) -> list[float] | None:
        """Return a fingerprint of the data set from a few samples; None if they cannot be read."""
        return self._source.some()

    @property
    def reads_along(self) -> bool:
        """True if this process reads batches between the user's steps."""
        return self._source.reads_along

    def sample(self, samples: int) -> Any:
        """Return a batch for a trial step, collated as in the loop; it uses up nothing of the epoch. A stream raises
        DataError."""
        return self._source.sample(samples)

    def read(self, positions: Any) -> Any:
        """Read a batch of samples by their positions in the current epoch, int64, shape (samples,), in this process."""
        assert isinstance(self._source, IndexedSource)
        return self._source.read(positions)

    def __iter__(self) -> Generator[Any, None, None]:
        """Start an epoch, or finish the one of a loaded state.

        Raises:
            DataError: the loader is closed, or torch's ``update_bn`` iterates over it on several workers.
        """
        if self._division.workers > 1 and sys._getframe(1).f_code is _UPDATES_BATCH_NORM:
            raise DataError(
                "update_bn over the session's loader: each worker would take the statistics of its part of each "
                "batch; give it a torch DataLoader over the whole data set, on every worker"
            )
        return self._started(notify=True)

    def pairs(self) -> Generator[tuple[Portion, Any], None, None]:
        """Yield (part, batch) without calls of ``begin`` and ``end``, for several threads."""
        return self._started(notify=False)

    def _started(self, *, notify: bool) -> Generator[Any, None, None]:
        if self._closed:
            raise DataError("the loader is closed: make a new one with session.loader(...)")
        return self._walk(self._epoch(notify))

    def _walk(self, epoch: Generator[Any, None, bool]) -> Generator[Any, None, None]:
        if (left := self._suspended()) is not None:
            left.close()  # an iterator that the script still holds; its last iteration has ended
        self._running = weakref.ref(epoch)
        whole = False
        try:
            whole = yield from epoch  # None if a newer loop has closed this epoch, True at its end
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
        """End the iteration under way and stop reader processes that ``persistent_workers`` keeps."""
        if self._closed:
            return
        # Without `close`, readers of a loader in a reference cycle end only at garbage collection, and torch waits
        # seconds for each.
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
        """Yield the batches of the abandoned pass again, because no step has used them; raises DataError if others
        count them."""
        if self.paced is not None or self._book is not None:
            raise DataError(
                "a batch was taken from the loader before the loop, and not trained on: here others would count it as "
                "used. To look at a batch, collate some samples of the data set, or use a DataLoader of torch's own"
            )
        self._cursor = self._begun

    def _handed_out(self, notify: bool) -> Generator[Any, None, None]:
        if not isinstance(self._source, IndexedSource) and hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(self._cursor.epoch)
        yield from self._pass(notify)
        self._calls.settle()
        # A worker may be lost in the last exchanges of an epoch: its samples are requeued within the epoch.
        while self._book is not None and self._book.waiting(self._cursor.iteration):
            before = self._cursor
            yield from self._pass(notify)
            if self._changing is not None and self._cursor == before:
                break  # they make no whole batch, and `drop_last` drops them
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
                leaving = True
                try:
                    yield batch
                    leaving = False
                finally:
                    self._calls.end(leaving)

    def place(self) -> tuple[Cursor, tuple[Portion, ...]]:
        """Return the place after the last yielded batch, and the parts that were drawn beyond it."""
        if self.paced is not None:  # a newcomer leases its own samples; it needs only the number of the iteration
            return self._cursor._replace(iteration=self.paced.cut), ()
        return self._cursor, tuple(self._source.drawn)

    def adopt(self, cursor: Cursor, drawn: tuple[Portion, ...]) -> None:
        """Load the result of :meth:`place` on a worker that joins."""
        assert isinstance(self._source, IndexedSource)
        self._source.adopt(drawn)
        self._cursor, self._resumed = cursor, True

    def state_dict(self, lacking: Cursor | None = None) -> dict[str, Any]:
        """Return the progress of the run as JSON-able data: yielded batches count, prefetched ones do not.

        The same on every rank in the same iteration; with asynchronous sampling, in a meeting of all ranks. Batches in
        flight count once an optimizer step includes them; without an optimizer in ``session.setup``, immediately.

        Args:
            lacking: the place from which on samples are not in the saved model.
        """
        places = [self._cursor, *(part.before for part in self._hands.unused())]
        cursor = min(places if lacking is None else [*places, lacking])
        state = write_state(
            cursor,
            seed=self._division.seed,
            shuffle=self._asked.shuffle,
            length=self._source.length,
            batch_size=self.batch_size,
            kind=self._source.kind,
        ) | self._source.state(cursor)
        if self.paced is not None:
            return state | self.paced.place(cursor.epoch)
        if self._changing is not None:
            state |= {"again": self._changing.left(cursor, (*self._hands.unused(), *self.place()[1]))}
        ahead = self._hands.ahead()
        reached = max(self._reached, self._cursor.epoch if ahead is None else ahead.epoch)
        return state if reached <= cursor.epoch else state | {"reached": reached}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from :meth:`state_dict`: the next ``for`` finishes the epoch with exactly the unused samples.

        There may be none: a state taken after the last step of an epoch still belongs to that epoch. The script's work
        after the loop (a scheduler's step, an evaluation) has not happened yet. The number of ranks and
        the global batch may have changed; schema, seed, ``shuffle`` and the length of the data set must be the same.

        Raises:
            CheckpointError: they differ (the message has both values), or this is called inside the loop.
        """
        cursor, self._reached, left, again = self.check_state(state)
        self._source.resume(cursor, state)
        self._resumed = True
        self._hands.clear()
        if self.paced is not None:
            self.paced.resume(cursor.epoch, left)
        if self.paced is None and isinstance(self._source, IndexedSource) and (again or self._changing is not None):
            if self._changing is None:
                self._book = self._changing = RequeuedSamples(tuple(range(self._division.workers)))
                self._source.come_again(self._changing)
            self._changing.resume(cursor, again)
        self._cursor = cursor

    def check_state(self, state: dict[str, Any]) -> tuple[Cursor, int, list[tuple[int, int]], list[tuple[int, int]]]:
        """Check a state without any change, and return its place, the script's epoch, and the runs of positions that
        are left (asynchronous sampling) and that are requeued (elastic runs).

        Raises:
            CheckpointError: see :meth:`load_state_dict`.
        """
        if self._suspended() is not None:
            raise CheckpointError("load_state_dict inside a loop over the loader: load before it starts")
        cursor = read_state(
            state,
            seed=self._division.seed,
            shuffle=self._asked.shuffle,
            length=self._source.length,
            kind=self._source.kind,
        )
        again = read_again(state, cursor)
        left = [] if self.paced is None else [*again, *read_left(state, cursor, self.paced.usable)]
        return cursor, read_reached(state, cursor), left, again
