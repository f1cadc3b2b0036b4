"""Batches of a data set with an index, read by torch's ``DataLoader``."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import worker

from uneven.errors import DataError
from uneven.policy.samples.order import Cursor, EpochPlan, Portion
from uneven.policy.samples.paced import PacedSampler
from uneven.policy.samples.requeued import RequeuedSamples
from uneven.policy.samples.sample_costs import SampleCosts
from uneven.run.samples.sampled import EpochOrders, seeded
from uneven.run.samples.source import BatchSource
from uneven.run.samples.stream import packed
from uneven.run.samples.stream_fingerprint import spread, spread_samples


class IndexedSource(BatchSource):
    """The batches of one rank from a data set with ``__len__`` and ``__getitem__``."""

    def __init__(
        self,
        dataset: Any,
        *,
        orders: EpochOrders,  # those that `sampler` draws from
        sampler: "PlannedSampler | PacedSampler",
        alike: str,  # fingerprint of the samples' costs
        options: Mapping[str, Any],  # keywords for torch's `DataLoader`
        ahead: int = 0,  # batches that are read before they are yielded, in addition to those of reader processes
        read: Callable[[Any], object] = lambda batch: None,  # called with each batch when it has been read
    ) -> None:
        self._orders = orders
        self._sampler = sampler
        self._options = options
        self._ahead = ahead
        self._read = read
        self._torch: DataLoader[Any] = DataLoader(dataset, batch_sampler=self._sampler, **options)
        self._size = len(dataset)
        self.lookahead = self._torch.num_workers * (self._torch.prefetch_factor or 0) + ahead
        self.reads_along = self._torch.num_workers == 0
        self.length = orders.length
        self.kind = orders.kind
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
        """Yield parts and this rank's batches to the end of the epoch. Raises DataError if the data set's length has
        changed."""
        if (size := len(self._torch.dataset)) != self._size:  # type: ignore[arg-type]
            raise DataError(
                f"the data set had {self._size} samples when session.loader was called, and now has {size}: call "
                "session.close(), then use another uneven.Session() with a new loader"
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

    def come_again(self, changing: RequeuedSamples) -> None:
        assert isinstance(self._sampler, PlannedSampler)
        self._sampler.come_again(changing)

    def sample(self, samples: int) -> Any:
        """Return the data set's first samples as a batch for a trial step, repeated if there are fewer."""
        dataset: Any = self._torch.dataset
        return self._collated([index % len(dataset) for index in range(samples)])

    def read(self, positions: Any) -> Any:
        """Read a batch by positions in the current pass, shape (samples,), in this process."""
        assert isinstance(self._sampler, PlannedSampler)
        return self._collated(self._sampler.order[positions].tolist())

    def _collated(self, indices: list[int]) -> Any:
        dataset: Any = self._torch.dataset
        together = hasattr(dataset, "__getitems__")
        return self._torch.collate_fn(dataset.__getitems__(indices) if together else [dataset[i] for i in indices])

    def close(self) -> None:
        del self._torch


def told_of(dataset: Any, options: Mapping[str, Any]) -> list[float] | None:
    """Return a fingerprint of a data set, see :mod:`.stream_fingerprint`; None if its samples cannot be read here."""
    if options.get("num_workers") and options.get("worker_init_fn"):
        return None  # reading may depend on `worker_init_fn`, which runs only in reader processes
    twin = _twin(dataset)
    with seeded(0, 0, None), _as_reader(twin, options.get("num_workers", 0)):  # keeps the script's random state
        try:
            return spread_samples([twin[index] for index in spread(len(twin))], packed)
        except NotImplementedError:  # it has `__getitems__` only
            return None


def _twin(dataset: Any) -> Any:
    """Return a copy of the data set with copied attributes."""
    # The first read may open a file, which forked readers must not share: so only a copy is read here.
    if type(dataset) is dict:
        return {**dataset}
    if type(dataset) is list:
        return [*map(_twin, dataset)] if dataset and isinstance(dataset[0], Dataset) else [*dataset]
    kind = type(dataset)
    if not isinstance(dataset, Dataset) or kind.__new__ is not object.__new__:
        return dataset
    if hasattr(kind, "__del__"):  # the copy's destructor would close files of the original
        kind = type(kind.__name__, (kind,), {"__del__": lambda self: None})
    twin = object.__new__(kind)
    vars(twin).update((name, _twin(one)) for name, one in vars(dataset).items())
    return twin


@contextmanager
def _as_reader(dataset: Any, readers: int) -> Iterator[None]:
    """Let a data set that asks torch for its reader process get an answer inside the context, if the script uses
    readers."""
    before = worker._worker_info
    try:
        if readers:
            worker._worker_info = worker.WorkerInfo(id=0, num_workers=readers, seed=0, dataset=dataset)
        yield
    finally:
        worker._worker_info = before


def _read_ahead(batches: Iterable[Any], ahead: int, read: Callable[[Any], object]) -> Iterator[Any]:
    held: deque[Any] = deque()
    for batch in batches:
        if ahead:
            read(batch)
        held.append(batch)
        if len(held) > ahead:
            yield held.popleft()
    yield from held


class PlannedSampler:
    """The indices of one rank's batches; torch iterates over it once per epoch, also with persistent readers."""

    order: Any = None  # of the current pass

    def __init__(self, *, plan: EpochPlan, rank: int, orders: EpochOrders, costs: SampleCosts | None = None) -> None:
        # No reference to the loader: in a reference cycle torch's reader processes end only at garbage collection, and
        # slowly.
        self.drawn: deque[Portion] = deque()  # drawn by torch, not yet handed out
        self._plan = plan
        self._rank = rank
        self._orders = orders  # epoch → index of the sample at every position
        self._costs = costs  # of the samples, if batches are divided by them
        self._cursor = Cursor()
        self._ahead: tuple[Portion, ...] = ()

    def adopt(self, parts: tuple[Portion, ...]) -> None:
        """Start the next pass with parts that the others drew before this worker joined."""
        self._ahead = parts

    def come_again(self, changing: RequeuedSamples) -> None:
        """Requeue samples of workers that were lost before a resume."""
        self._plan.changing = changing

    def start(self, cursor: Cursor) -> None:
        """Forget drawn parts; the next pass starts at ``cursor``."""
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
            start = part.start + offset  # slicing is several times faster than indexing by positions
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
