"""Batches of a data set with an index, through torch's own ``DataLoader``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import worker

from uneven.errors import DataError
from uneven.policy.samples.order import Changing, Cursor, EpochPlan, Portion
from uneven.policy.samples.paced import PacedSampler
from uneven.policy.samples.sample_costs import SampleCosts
from uneven.run.samples.sampled import EpochOrders, seeded
from uneven.run.samples.source import BatchSource
from uneven.run.samples.stream import packed
from uneven.run.samples.stream_fingerprint import spread, spread_samples


class Sampler(Protocol):
    """Draws the indices of one rank's batches; torch iterates it anew for each epoch.

    Attributes:
        drawn: parts drawn by torch, not yet handed out.
    """

    drawn: deque[Portion]

    def start(self, cursor: Cursor) -> None:
        """Forget what was drawn; the next pass begins at ``cursor``."""
        ...

    def __iter__(self) -> Iterator[list[int]]: ...


class IndexedSource(BatchSource):
    """The batches of one rank from a data set with ``__len__`` and ``__getitem__``.

    Args:
        orders: those that ``sampler`` draws from.
        alike: what tells the costs of the samples from others.
        options: keywords for torch's ``DataLoader``.
        ahead: batches that are read before they are handed out, beside those of reader processes.
        read: called with each batch when it has been read.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        orders: EpochOrders,
        sampler: Sampler,
        alike: str,
        options: Mapping[str, Any],
        ahead: int = 0,
        read: Callable[[Any], object] = lambda batch: None,
    ) -> None:
        self._orders = orders
        self._sampler = sampler
        self._options = options
        self._ahead, self._read = ahead, read
        self._torch: DataLoader[Any] = DataLoader(dataset, batch_sampler=self._sampler, **options)
        self._size = len(dataset)
        self.lookahead = self._torch.num_workers * (self._torch.prefetch_factor or 0) + ahead
        self.reads_along = self._torch.num_workers == 0
        self.length, self.kind = orders.length, orders.kind
        self.batches = orders.batches
        self.alike = alike
        self.paced = sampler if isinstance(sampler, PacedSampler) else None

    def tell(self) -> list[float] | None:
        return self._orders.tell()

    def some(self) -> list[float] | None:
        return told_of(self._torch.dataset, self._options)

    def state(self, cursor: Cursor) -> dict[str, Any]:
        drawn = self._orders.drawn(cursor.epoch) if cursor.start else ""
        return {"drawn": drawn} if drawn else {}

    def resume(self, cursor: Cursor, state: Mapping[str, Any]) -> None:
        self._orders.expect(str(state.get("drawn", "")))

    def pairs(self, cursor: Cursor) -> Generator[tuple[Portion, Any], None, None]:
        """Parts and this rank's batches, from ``cursor`` to the end of the epoch.

        Raises:
            DataError: the data set has become longer or shorter.
        """
        if (size := len(self._torch.dataset)) != self._size:  # type: ignore[arg-type]
            raise DataError(
                f"the data set had {self._size} samples when session.loader was called, and now has {size}: let it "
                f"change between two sessions, session.close() and then another uneven.Session() with a new loader"
            )
        self._sampler.start(cursor)
        for batch in _read_ahead(self._torch, self._ahead, self._read):
            yield self._sampler.drawn.popleft(), batch

    @property
    def drawn(self) -> deque[Portion]:
        return self._sampler.drawn

    def adopt(self, parts: tuple[Portion, ...]) -> None:
        if isinstance(self._sampler, PlannedSampler):
            self._sampler.adopt(parts)

    def come_again(self, changing: Changing) -> None:
        assert isinstance(self._sampler, PlannedSampler)
        self._sampler.come_again(changing)

    def sample(self, samples: int) -> Any:
        """A batch to try a step on: the data set's first samples, again from the first where it has fewer."""
        dataset: Any = self._torch.dataset
        return self._collated([index % len(dataset) for index in range(samples)])

    def read(self, positions: Any) -> Any:
        """A batch of the samples at these positions of the pass under way, shape (samples,), read here and now."""
        assert isinstance(self._sampler, PlannedSampler)
        return self._collated(self._sampler.order[positions].tolist())

    def _collated(self, indices: list[int]) -> Any:
        dataset: Any = self._torch.dataset
        together = hasattr(dataset, "__getitems__")
        return self._torch.collate_fn(dataset.__getitems__(indices) if together else [dataset[i] for i in indices])

    def close(self) -> None:
        del self._torch


def told_of(dataset: Any, options: Mapping[str, Any]) -> list[float] | None:
    """What tells the samples of a data set from those of other ranks, see :mod:`.alike`; None if they cannot be read
    here.

    Args:
        options: for torch's ``DataLoader``.
    """
    if options.get("num_workers") and options.get("worker_init_fn"):
        return None  # a reader may need what that prepares
    twin = _twin(dataset)
    with seeded(0, 0, None), _as_reader(twin, options.get("num_workers", 0)):  # the script's numbers stay as they are
        try:
            return spread_samples([twin[index] for index in spread(len(twin))], packed)
        except NotImplementedError:  # it gives whole batches only
            return None


def _twin(dataset: Any) -> Any:
    """Return a copy of the data set with copied attributes: readers may not share a file that the first read opens."""
    if type(dataset) is dict:
        return {**dataset}
    if type(dataset) is list:
        return [*map(_twin, dataset)] if dataset and isinstance(dataset[0], Dataset) else [*dataset]
    kind = type(dataset)
    if not isinstance(dataset, Dataset) or kind.__new__ is not object.__new__:
        return dataset
    if hasattr(kind, "__del__"):  # which would close files that the data set still uses
        kind = type(kind.__name__, (kind,), {"__del__": lambda self: None})
    twin = object.__new__(kind)
    vars(twin).update((name, _twin(one)) for name, one in vars(dataset).items())
    return twin


@contextmanager
def _as_reader(dataset: Any, readers: int) -> Iterator[None]:
    """Inside, a data set that asks torch which reader process it is in gets an answer, if the script wants readers."""
    before = worker._worker_info
    try:
        if readers:
            worker._worker_info = worker.WorkerInfo(id=0, num_workers=readers, seed=0, dataset=dataset)
        yield
    finally:
        worker._worker_info = before


def _read_ahead(batches: Iterable[Any], ahead: int, read: Callable[[Any], object]) -> Iterator[Any]:
    """The batches, each when so many more have been read, or there are none."""
    held: deque[Any] = deque()
    for batch in batches:
        if ahead:
            read(batch)
        held.append(batch)
        if len(held) > ahead:
            yield held.popleft()
    yield from held


class PlannedSampler:
    """What torch iterates anew for each epoch, also where its reader processes live on.

    It knows nothing of the loader: in a cycle of references, torch's reader processes would be stopped by
    the garbage collector, late and slowly.

    Args:
        orders: epoch → index of the sample at every position.
        costs: of the samples, where batches are divided by them.

    Attributes:
        order: of the epoch that a pass has begun.
    """

    order: Any = None

    def __init__(self, *, plan: EpochPlan, rank: int, orders: EpochOrders, costs: SampleCosts | None = None) -> None:
        self.drawn: deque[Portion] = deque()  # drawn by torch, not yet handed out
        self._plan = plan
        self._rank = rank
        self._orders = orders
        self._costs = costs
        self._cursor = Cursor()
        self._ahead: tuple[Portion, ...] = ()

    def adopt(self, parts: tuple[Portion, ...]) -> None:
        """The next pass begins with parts that the others have drawn before this worker joined."""
        self._ahead = parts

    def come_again(self, changing: Changing) -> None:
        """Some positions come again, as a run that is resumed here has lost workers."""
        self._plan.changing = changing

    def start(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.drawn.clear()
        if self._plan.changing is not None:
            self._plan.changing.start(cursor)

    def __iter__(self) -> Iterator[list[int]]:
        self.order = order = self._orders(self._cursor.epoch)
        shares, offset, own = None, 0, 0
        if self._costs is not None:
            yield from self._divided(order, self._costs)
            return
        for part in self._parts(len(order)):
            self.drawn.append(part)
            if part.shares is not shares:
                shares, offset, own = part.shares, part.offset(self._rank), part.batch(self._rank)
            start = part.start + offset  # a slice is cut several times as fast as so many positions are looked up
            whole = own > 0 and not part.again
            mine = order[start : start + own] if whole else order[part.positions(self._rank, self._plan.lower)]
            yield mine.tolist()

    def _divided(self, order: Any, costs: SampleCosts) -> Iterator[list[int]]:
        for part in self._parts(len(order)):
            indices = order[part.start : part.end]
            packed = costs.divide(indices, part.shares, self._plan.lower)
            mine = replace(part, shares=packed.counts, works=packed.works)
            self.drawn.append(mine)
            places = [packed.places[at - part.start] for at in mine.positions(self._rank, self._plan.lower)]
            yield indices[places].tolist()

    def _parts(self, length: int) -> Iterator[Portion]:
        ahead, self._ahead = self._ahead, ()
        cursor = self._cursor
        for part in ahead:
            if self._plan.changing is not None:
                self._plan.changing.adopt(part)
            cursor = cursor.after(part)
            yield part
        yield from self._plan.walk(cursor, length, self._orders.ends())
