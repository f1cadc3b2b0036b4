"""``BalancedLoader``: torch's own ``DataLoader``, which learns batch by batch which samples are this rank's."""

from __future__ import annotations

import inspect
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, cast

from torch.utils.data import DataLoader

from uneven.data.costs import SampleCosts
from uneven.data.hands import Hands
from uneven.data.indexed import IndexedSource, PlannedSampler, Sampler
from uneven.data.order import Changing, Cursor, EpochPlan, Portion, SplitSource, never
from uneven.data.paced import PacedSampler, Positions
from uneven.data.returned import Returned
from uneven.data.sampled import EpochOrders, SampledOrders, check_samplers
from uneven.data.sharded import Shards, ShardSource
from uneven.data.state import read_again, read_left, read_reached, read_state, write_state
from uneven.data.stream import StreamSource, is_stream
from uneven.data.supply import SampleCounter
from uneven.errors import CheckpointError, DataError, UnknownNameError

# What the loader decides itself: batches out of order could not be told from one another.
_OURS = frozenset(("in_order",))
_PASSED = frozenset(inspect.signature(DataLoader.__init__).parameters) - _OURS - {"self", "dataset"}


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

    **At one's own pace.** With ``sample_counter`` each rank takes its batches, as large as its share, from one counter
    when it asks for them: still every sample once an epoch, but as many iterations as a rank comes to.

    **Streams** (an ``IterableDataset``, or an object with ``__iter__`` that has no index and length): every
    rank must read the same samples in the same order, and keeps its slice of every ``batch_size`` of them.
    Slices are cut when they are handed out, so ``lookahead`` is 0; collating happens in this process. A
    stream keeps its own order, ``shuffle`` or not; if it has ``set_epoch``, that is called before each
    epoch. One process reads ahead, unless ``stream_sharded`` says that the stream divides itself among
    ``num_workers`` readers; then its order depends on their number and on ``batch_size``.

    Args:
        batch_size: the global batch X, of all ranks together.
        split_for: iteration → shares of all ranks, adding up to ``batch_size``.
        lower: least samples in a batch, where the last part allows it, and in a padded one always.
        begin: called just before a batch is handed out, with its part.
        end: called when that iteration is over: the next batch is asked for (before any of it is loaded), or
            the loop is left. Each ``begin`` gets exactly one ``end``.
        over: called when the epoch has no more batches.
        hands: notified of each batch that is handed out; it knows which of them are in the model.
        sample_counter: the counter of all ranks, where each streams at its own pace.
        settled: whether ``split_for`` gives the same answer from now on, but for what is decided already.
        changing: where workers leave and join: whose samples are split among whom, and what comes again.
        enter: called before the place in the run is asked for, as a worker that joins has none before it is let in.
        settle: called when a pass over an epoch is over, before it is asked what comes again in it.
        stream_sharded: see above.
        shards: of a stream of which each rank has a shard of its own, how long they are; see :mod:`.sharded`.
        sampler: draws the order of an epoch, the same on all ranks; see :mod:`.sampled`.
        cost: of each sample, an array, or a function of its index: batches are divided by it; see :mod:`.costs`.
        padded: a part costs its number of samples times the greatest cost among them, not the sum.
        batch_sampler: draws lists of at most ``batch_size`` indices; each is a global batch.
        dataloader: anything else that torch's ``DataLoader`` takes (``num_workers``, ``collate_fn``,
            ``pin_memory``, ``prefetch_factor``, …), except ``in_order``.

    Raises:
        DataError: the data set can be neither indexed nor iterated, or is empty; the global batch is too
            small; a keyword that the loader decides itself.
        UnknownNameError: a keyword that ``DataLoader`` does not have.
    """

    def __init__(
        self, *, dataset: Any, batch_size: int, rank: int, world_size: int, seed: int, split_for: SplitSource,
        shuffle: bool = True, drop_last: bool = False, lower: int = 1,
        begin: Callable[[Portion], None] | None = None, end: Callable[[], None] | None = None,
        over: Callable[[], None] | None = None, hands: Hands | None = None,
        sample_counter: SampleCounter | None = None, settled: Callable[[], bool] = never,
        changing: Changing | None = None, enter: Callable[[], None] | None = None,
        settle: Callable[[], None] | None = None,
        stream_sharded: bool = False, shards: Shards | None = None, sampler: Any = None, batch_sampler: Any = None,
        cost: Any = None, padded: bool = False, **dataloader: Any,
    ) -> None:  # fmt: skip
        _check_keywords(dataloader)
        _check_sizes(batch_size, world_size, lower)
        plan = EpochPlan(
            batch_size=batch_size, workers=world_size, split_for=split_for, lower=lower, drop_last=drop_last,
            settled=settled, changing=changing,
        )  # fmt: skip
        self._workers = world_size
        self._changing = changing
        self._enter: Callable[[], None] = enter or _nothing
        self._settle: Callable[[], None] = settle or _nothing
        self.dataset = dataset
        self.batch_size = batch_size
        self._begin: Callable[[Portion], None] = begin or _nothing
        self._end: Callable[[], None] = end or _nothing
        self._over: Callable[[], None] = over or _nothing
        self._hands = hands or Hands()
        self._before = Cursor()
        self._handed: Portion | None = None  # since then; a cursor is made of it where somebody asks
        self._resumed = False
        self._reached = 0  # the epoch that the script was in when a state was saved that goes on from an earlier one
        self._closed = False
        self._running: weakref.ref[Generator[Any, None, None]] | None = None
        self._drop_last = drop_last
        self._seed, self._shuffle = seed, shuffle
        self._source: IndexedSource | StreamSource | ShardSource
        self._orders: EpochOrders | None = None
        self.alike = ""  # what else must be the same on all ranks
        self._length: int | None
        self.paced: PacedSampler | None = None
        check_samplers(sampler, batch_sampler, stream=is_stream(dataset), drop_last=drop_last)
        _check_cost(cost, padded, is_stream(dataset), changing is not None, sample_counter is not None)
        if shards is not None:
            self._length = sum(shards.lengths)
            self._source = ShardSource(
                dataset, shards=shards, rank=rank, split_for=split_for, lower=lower, drop_last=drop_last,
                options=dataloader,
            )  # fmt: skip
        elif is_stream(dataset):
            self._length = None
            if sample_counter is not None:
                raise DataError(
                    "a stream has no index by which workers could each take samples at their own pace: give a data set "
                    "with __len__ and __getitem__, or a policy under which workers wait for each other"
                )
            self._source = StreamSource(dataset, plan=plan, rank=rank, sharded=stream_sharded, options=dataloader)
        else:
            size = _checked_length(dataset, batch_size, drop_last)
            orders, drawn = EpochOrders(size, seed, shuffle), sampler if batch_sampler is None else batch_sampler
            if drawn is not None:
                orders = SampledOrders(
                    drawn, batch_size=batch_size, batched=batch_sampler is not None, size=size, seed=seed
                )
            self._orders, self._length = orders, orders.length
            costs = None
            if cost is not None:
                values = [cost(index) for index in range(size)] if callable(cost) else cost
                costs = SampleCosts(values, size, padded=padded)
                self.alike = costs.digest
            indices: Sampler = PlannedSampler(plan=plan, rank=rank, orders=orders, costs=costs)
            if sample_counter is not None:
                orders.check_paced()
                usable = self._length - self._length % batch_size if drop_last else self._length
                order_of = cast("Callable[..., Positions]", orders)
                indices = self.paced = PacedSampler(
                    rank=rank, shares_for=split_for, order_of=order_of, usable=usable, lower=lower,
                    counter=sample_counter, workers=world_size, now=time.perf_counter, unused=self._hands.unused,
                )  # fmt: skip
            self._source = IndexedSource(dataset, sampler=indices, options=dataloader)

    def __len__(self) -> int:
        """Iterations in a whole epoch; a resumed epoch has fewer left.

        Raises:
            TypeError: the data set is a stream that does not know its length.
        """
        if self._orders is not None and self._orders.batches is not None:
            return self._orders.batches
        length = len(self.dataset) if self._length is None else self._length
        return length // self.batch_size if self._drop_last else -(-length // self.batch_size)

    @property
    def samples(self) -> int | None:
        """Samples in an epoch; None for a stream."""
        return self._length

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
        self._enter()
        return max(self._cursor.epoch, self._reached)

    @property
    def iteration(self) -> int:
        """Iterations handed out so far, over the whole run; the next one has this number."""
        self._enter()
        return self._cursor.iteration

    @property
    def lookahead(self) -> int:
        """Iterations after the one in the user's hands whose split cannot be changed any more."""
        return self._source.lookahead

    @property
    def first_samples(self) -> list[float] | None:
        """What tells a stream's first samples in this pass, or a sampler's order, from those of other ranks; None where
        ranks cannot differ. See :mod:`uneven.data.alike`."""
        if self._orders is not None and self._changing is None:
            return self._orders.tell()
        return self._source.first if isinstance(self._source, StreamSource) else None

    @property
    def reads_along(self) -> bool:
        """Whether batches are read in this process, between the user's steps."""
        return isinstance(self._source, IndexedSource) and self._source.reads_along

    def sample(self, samples: int) -> Any:
        """A batch of so many samples to try a step on, put together as in the loop; nothing of the epoch is used up.

        Raises:
            DataError: the data set is a stream: what was read of it would be missing in the epoch.
        """
        if not isinstance(self._source, IndexedSource):
            raise DataError(
                "a stream gives no samples to try a step on: give batch_of, a function that makes a batch of so many"
            )
        return self._source.sample(samples)

    def __iter__(self) -> Generator[Any, None, None]:
        """Start an epoch, or finish the one that a loaded state was in the middle of."""
        return self._started(notify=True)

    def pairs(self) -> Generator[tuple[Portion, Any], None, None]:
        """The same, each batch with its part, and without a word to ``begin`` and ``end``: for several threads."""
        return self._started(notify=False)

    def _started(self, *, notify: bool) -> Generator[Any, None, None]:
        if self._closed:
            raise DataError("the loader is closed: make a new one with session.loader(...)")
        if (left := self._suspended()) is not None:
            left.close()  # an iterator that somebody still holds; its last iteration is over
        epoch = self._epoch(notify)
        self._running = weakref.ref(epoch)
        return epoch

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

    def _suspended(self) -> Generator[Any, None, None] | None:
        epoch = self._running() if self._running is not None else None
        if epoch is None or inspect.getgeneratorstate(epoch) != inspect.GEN_SUSPENDED:
            return None
        return epoch

    def _epoch(self, notify: bool) -> Generator[Any, None, None]:
        self._enter()
        resumed, self._resumed = self._resumed, False
        if self._cursor.start > 0 and not resumed:
            self._cursor = Cursor(epoch=self.epoch + 1, iteration=self.iteration)
            self._hands.clear()
        while self._cursor.epoch < self._reached:
            yield from self._handed_out(notify)
        yield from self._handed_out(notify)

    def _handed_out(self, notify: bool) -> Generator[Any, None, None]:
        if self._length is None and hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(self._cursor.epoch)
        yield from self._pass(notify)
        self._settle()
        # A worker may be lost in the last exchanges of an epoch; what it had comes again now.
        while self._changing is not None and self._changing.waiting(self._cursor.iteration):
            yield from self._pass(notify)
            self._settle()
        self._over()
        self._cursor = self._cursor.next_epoch()

    def _pass(self, notify: bool) -> Generator[Any, None, None]:
        with closing(self._source.pairs(self._cursor)) as pairs:
            for part, batch in pairs:
                self._handed = part
                if not notify:
                    yield part, batch
                    continue
                self._begin(part)
                self._hands.hand(part, batch)
                try:
                    yield batch
                finally:
                    self._end()

    def place(self) -> tuple[Cursor, tuple[Portion, ...]]:
        """Behind what was handed out last, and the parts that were drawn beyond that."""
        return self._cursor, tuple(self._source.drawn) if isinstance(self._source, IndexedSource) else ()

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
            cursor, seed=self._seed, shuffle=self._shuffle, length=self._length,
            batch_size=self.batch_size, kind=self._kind,
        )  # fmt: skip
        if self._orders is not None and cursor.start and (drawn := self._orders.drawn(cursor.epoch)):
            state |= {"drawn": drawn}
        if isinstance(self._source, ShardSource):
            state |= {"taken": [*self._source.taken(cursor.start)]}
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
        if isinstance(self._source, ShardSource):
            self._source.resume(cursor.start, state.get("taken"))
        if self._orders is not None:
            self._orders.expect(str(state.get("drawn", "")))
        self._resumed = True
        self._hands.clear()
        if self.paced is not None:
            self.paced.resume(cursor.epoch, left)
        if self.paced is None and isinstance(self._source, IndexedSource) and (again or self._changing is not None):
            if self._changing is None:
                self._changing = Returned(tuple(range(self._workers)))
                self._source.come_again(self._changing)
            self._changing.resume(cursor, again)
        self._cursor = cursor

    @property
    def _kind(self) -> str:
        if self._orders is not None:
            return self._orders.kind
        return "shards" if isinstance(self._source, ShardSource) else ""

    def check_state(self, state: dict[str, Any]) -> tuple[Cursor, int, list[tuple[int, int]], list[tuple[int, int]]]:
        """The place that ``state`` names, the epoch that the script was in, what is left of the place's epoch at
        one's own pace, and what comes again in it. Nothing is changed.

        Raises:
            CheckpointError: see :meth:`load_state_dict`.
        """
        if self._suspended() is not None:
            raise CheckpointError("load_state_dict inside a loop over the loader: load before it starts")
        cursor = read_state(state, seed=self._seed, shuffle=self._shuffle, length=self._length, kind=self._kind)
        again = read_again(state, cursor)
        left = [] if self.paced is None else [*again, *read_left(state, cursor, self.paced.usable)]
        return cursor, read_reached(state, cursor), left, again


def _check_keywords(dataloader: dict[str, Any]) -> None:
    for name in dataloader:
        if name in _OURS:
            raise DataError(f"{name} cannot be given: the loader hands batches out in order, as it knows them by that")
        if name not in _PASSED:
            raise UnknownNameError("keyword for the loader:", name, _PASSED)


def _check_sizes(batch_size: int, world_size: int, lower: int) -> None:
    if lower < 1:
        raise DataError(f"lower = {lower}: a batch holds at least 1 sample")
    if batch_size < world_size * lower:
        raise DataError(
            f"global batch of {batch_size} is too small for {world_size} workers with at least {lower} "
            f"sample(s) each: use a batch_size of at least {world_size * lower}, or fewer workers"
        )


def _check_cost(cost: Any, padded: bool, stream: bool, moving: bool, counted: bool) -> None:
    if cost is None and padded:
        raise DataError("padded=True says how costs add up: give cost=, what each sample costs")
    if cost is not None and (stream or moving or counted):
        where = "a stream" if stream else "an elastic run" if moving else "samples taken at each worker's own pace"
        raise DataError(f"cost with {where}: who takes which samples of a batch cannot be known there; leave it out")


def _checked_length(dataset: Any, batch_size: int, drop_last: bool) -> int:
    length = len(dataset)
    if length == 0:
        raise DataError(f"data set of type {type(dataset).__name__} is empty: its length is 0")
    if drop_last and length < batch_size:
        raise DataError(
            f"drop_last with a global batch of {batch_size} drops all {length} samples: use a smaller "
            "batch_size, or drop_last=False"
        )
    return length


def _nothing(*_: Any) -> None:
    pass
