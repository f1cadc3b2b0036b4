"""Makes the batch source for the options of a loader."""

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, TypedDict, cast

import torch

from uneven.errors import DataError, UnknownNameError
from uneven.policy.samples.order import EpochPlan, Portion, SampleBook, SplitSource, never
from uneven.policy.samples.paced import PacedSampler, Positions
from uneven.policy.samples.requeued import RequeuedSamples
from uneven.policy.samples.sample_costs import SampleCosts
from uneven.policy.samples.supply import SampleCounter
from uneven.run.samples.indexed import IndexedSource, PlannedSampler
from uneven.run.samples.sampled import EpochOrders, SampledOrders, check_samplers
from uneven.run.samples.sharded_files import Shards, ShardSource
from uneven.run.samples.source import BatchSource
from uneven.run.samples.stream import StreamSource, is_stream


class DataLoaderOptions(TypedDict, total=False):
    """Arguments of torch's ``DataLoader`` that a session's loader passes on."""

    num_workers: int
    collate_fn: Callable[[list[Any]], Any] | None
    pin_memory: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str


_DECIDED = ("shuffle", "sampler", "batch_sampler", "drop_last")  # `session.evaluate` raises an error for them


def check_keywords(call: Callable[..., Any], given: DataLoaderOptions) -> dict[str, Any]:
    """Return the keywords for torch's ``DataLoader``.

    Raises:
        UnknownNameError: a keyword does not exist, in ``call`` or in ``DataLoader``.
        DataError: ``in_order`` is given.
    """
    passed = DataLoaderOptions.__annotations__
    for name in given:
        if name == "in_order":
            raise DataError("in_order cannot be given: the loader identifies batches by their order; leave it out")
        if name == "batch_size":
            raise DataError(
                f"session.{call.__name__}(batch_size=…): torch's batch_size is that of one worker; give "
                f"global_batch_size=…, the samples of all workers together"
            )
        if name not in passed and name not in _DECIDED:
            own = [one for one in inspect.signature(call).parameters if one not in ("self", "dataloader")]
            raise UnknownNameError(f"keyword of session.{call.__name__}:", name, (*own, *passed))
    return dict(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """The options of a loader.

    Attributes:
        stream_sharded: whether a stream divides itself among its reader processes; see :class:`.stream.StreamSource`.
        cost: of each sample, an array or a function of its index; batches are divided by it, see
            :mod:`uneven.policy.samples.sample_costs`.
        dataloader: see :class:`DataLoaderOptions`.

    Raises:
        DataError: an option has an invalid value.
    """

    dataset: Any
    batch_size: int  # the global batch X, of all ranks together
    shuffle: bool = True
    drop_last: bool = False
    lower: int = 1  # least samples in a batch; a small last part may have fewer, a padded batch never
    shards: Shards | None = None  # lengths of the ranks' shards of a stream; see `sharded`
    stream_sharded: bool = False
    sampler: Any = None  # draws the order of an epoch, the same on all ranks; see `sampled`
    batch_sampler: Any = None  # draws lists of at most `batch_size` indices; each is a global batch
    cost: Any = None
    padded: bool = False  # whether a part costs its number of samples times the greatest cost, instead of the sum
    ahead: int = 0  # batches that are read before they are yielded, so that their rows can be requested early
    ids: Callable[[Any], object] | None = None  # the rows to request, a function of a batch
    dataloader: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.batch_size, Integral):
            raise DataError(
                f"session.loader(global_batch_size={self.batch_size!r}): give the samples of all workers together in a "
                f"step, a whole number. If the data set gives whole batches, let it give samples, or draw the batches "
                f"yourself in `with session.step(global_batch_size=…)`"
            )
        if self.lower < 1:
            raise DataError(f"lower = {self.lower}: a batch holds at least 1 sample")
        if type(self.ahead) is not int or self.ahead < 0 or (self.ahead and self.ids is None):
            raise DataError(
                f"ahead = {self.ahead!r}: give a number of batches, 0 or more, and ids=, a function that "
                f"returns the ids of a batch, whose rows are requested ahead"
            )
        if self.ahead and is_stream(self.dataset):
            raise DataError(f"ahead = {self.ahead} of a stream: its batches are cut when they are handed out; use 0")
        if self.cost is None and self.padded:
            raise DataError("padded=True needs cost=, the cost of each sample")


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The division of samples among ranks."""

    rank: int
    workers: int  # number of workers that divide them
    seed: int  # determines the order of the samples, together with the epoch
    split_for: SplitSource  # iteration → shares of all ranks, adding up to the global batch
    settled: Callable[[], bool] = never  # returns whether no further split will be decided
    counter: SampleCounter | None = None  # of all ranks that take samples asynchronously; otherwise None
    book: SampleBook | None = None  # of an elastic run; otherwise None
    changing: RequeuedSamples | None = None  # the same, if all take the same steps; otherwise None

    def plan(self, asked: LoaderOptions) -> EpochPlan:
        return EpochPlan(
            batch_size=asked.batch_size,
            lower=asked.lower,
            drop_last=asked.drop_last,
            workers=self.workers,
            split_for=self.split_for,
            settled=self.settled,
            changing=self.changing,
        )


Unused = Callable[[], Sequence[Portion]]


def open_source(asked: LoaderOptions, division: Division, plan: EpochPlan, unused: Unused) -> BatchSource:
    """Return the batch source of one rank. Raises DataError if the data set is empty, has no index and no iterator, or
    if options exclude each other."""
    stream = is_stream(asked.dataset)
    if asked.batch_size < division.workers * asked.lower:
        raise DataError(
            f"global batch of {asked.batch_size} is too small for {division.workers} workers with at least "
            f"{asked.lower} sample(s) each: use a global batch of at least {division.workers * asked.lower}, or fewer "
            f"workers"
        )
    check_samplers(asked.sampler, asked.batch_sampler, stream=stream, drop_last=asked.drop_last)
    _check_cost(asked, division, stream)
    if asked.shards is not None:
        return ShardSource(asked.dataset, shards=asked.shards, rank=division.rank, plan=plan, options=asked.dataloader)
    if not stream:
        return _indexed(asked, division, plan, unused)
    if division.counter is not None:
        raise DataError(
            "a stream has no index by which workers could each take samples at their own pace: give a data set "
            "with __len__ and __getitem__, or a policy under which workers wait for each other"
        )
    return StreamSource(
        asked.dataset, plan=plan, rank=division.rank, sharded=asked.stream_sharded, options=asked.dataloader
    )


def _indexed(asked: LoaderOptions, division: Division, plan: EpochPlan, unused: Unused) -> IndexedSource:
    size = _checked_length(asked)
    orders = _orders(asked, division.seed, size)
    if division.counter is not None:
        orders.check_paced()
        usable = orders.length - orders.length % asked.batch_size if asked.drop_last else orders.length
        paced = PacedSampler(
            rank=division.rank,
            shares_for=division.split_for,
            order_of=cast("Callable[..., Positions]", orders),
            usable=usable,
            lower=asked.lower,
            counter=division.counter,
            workers=division.workers,
            now=time.perf_counter,
            unused=unused,
            members=None if division.book is None else division.book.members,
        )
        return _read(asked, orders, paced, "")
    costs = None
    if asked.cost is not None:
        values = [asked.cost(index) for index in range(size)] if callable(asked.cost) else asked.cost
        costs = SampleCosts(values, size, padded=asked.padded)
    planned = PlannedSampler(plan=plan, rank=division.rank, orders=orders, costs=costs)
    alike = "" if costs is None else costs.digest
    return _read(asked, orders, planned, alike)


def _read(
    asked: LoaderOptions, orders: EpochOrders, sampler: PlannedSampler | PacedSampler, alike: str
) -> IndexedSource:
    return IndexedSource(
        asked.dataset,
        orders=orders,
        sampler=sampler,
        alike=alike,
        options=asked.dataloader,
        ahead=asked.ahead,
        read=asked.ids or (lambda batch: None),
    )


def _orders(asked: LoaderOptions, seed: int, size: int) -> EpochOrders:
    batched = asked.batch_sampler is not None
    drawn = asked.batch_sampler if batched else asked.sampler
    if drawn is None:
        return EpochOrders(size, seed, asked.shuffle)
    return SampledOrders(drawn, batch_size=asked.batch_size, batched=batched, size=size, seed=seed)


def _check_cost(asked: LoaderOptions, division: Division, stream: bool) -> None:
    moving, counted = division.book is not None, division.counter is not None
    if asked.cost is not None and (stream or moving or counted):
        where = "a stream" if stream else "an elastic run" if moving else "samples taken at each worker's own pace"
        raise DataError(f"cost with {where}: the worker of each sample is unknown there; leave it out")


def _checked_length(asked: LoaderOptions) -> int:
    length = len(asked.dataset)
    if length == 0:
        raise DataError(f"data set of type {type(asked.dataset).__name__} is empty: its length is 0")
    if asked.drop_last and length < asked.batch_size:
        raise DataError(
            f"drop_last with a global batch of {asked.batch_size} drops all {length} samples: use a smaller "
            "global batch, or drop_last=False"
        )
    return length
