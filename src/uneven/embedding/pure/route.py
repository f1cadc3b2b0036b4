"""Map a batch's ids to requests for each shard, the answers to the batch's numbers, and gradients back.

One array of ids, sample by sample, requests all tables of one width that are complete on a shard. So the answer is a
block of the batch's numbers. For a table cut by rows, each shard sums the rows of a bag that it has, and the worker
adds up these sums.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from uneven.embedding.pure.config import TableSpec
from uneven.embedding.pure.dynamic_ids import DistinctIds, bucket, load_of
from uneven.embedding.pure.row_optimizers import Bags, Floats, Ids
from uneven.embedding.pure.shard_tables import ShardSpec
from uneven.embedding.pure.sharding_plan import RowGroup
from uneven.errors import DataError
from uneven.policy.core.exact import splitmix64

Wholes = npt.NDArray[np.int64]
MOST_CROSSED = 1 << 22  # combinations in a batch: two long bags must not take all memory


@dataclass(frozen=True, slots=True)
class BatchIds:
    """The ids of a batch, sample by sample, and in each sample feature by feature."""

    values: Wholes  # shape (n,)
    batch: int  # number of samples
    features: int  # bags of each sample
    each: int = 1  # ids in every bag, or 0 if ``lengths`` is given
    lengths: Wholes | None = None  # of the bags, shape (batch, features), or None
    weights: Floats | None = None  # of the ids, shape (n,), or None
    # Of :func:`apart`: the lengths of the bags before, shape (batch, features).
    lengths_before: Wholes = field(default_factory=lambda: np.empty((0, 0), np.int64))

    @property
    def sizes(self) -> Wholes:
        """The number of ids of each bag; shape (batch, features)."""
        full = np.full((self.batch, self.features), self.each, np.int64)
        return full if self.lengths is None else self.lengths

    @property
    def bag_of(self) -> Wholes:
        """The index of each id's bag in the batch; shape (n,)."""
        return np.repeat(np.arange(self.batch * self.features), self.sizes.reshape(-1))

    def of_each(self, features: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Expand an array of shape (features,) to one entry per id, shape (n,)."""
        return np.repeat(np.tile(features, self.batch), self.sizes.reshape(-1))

    def same(self, other: "BatchIds") -> bool:
        mine, theirs = ((one.lengths, one.weights, one.lengths_before) for one in (self, other))
        return (
            (self.batch, self.each) == (other.batch, other.each)
            and np.array_equal(self.values, other.values)
            and all(_equal(a, b) for a, b in zip(mine, theirs, strict=True))
        )


def _equal(one: Any, other: Any) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


def by_sample(values: Wholes, lengths: Wholes, weights: Floats | None = None) -> BatchIds:
    """Reorder ``values`` (n,) from feature-major to sample-major; ``lengths`` has shape (features, batch)."""
    features, batch = lengths.shape
    each = int(lengths[0, 0]) if lengths.size else 0
    if each and (lengths == each).all():

        def turned(one: Any) -> Any:
            return one.reshape(features, batch, each).swapaxes(0, 1).reshape(-1)

        return BatchIds(turned(values), batch, features, each, None, None if weights is None else turned(weights))
    begins = (np.cumsum(lengths) - lengths.reshape(-1)).reshape(features, batch)
    order = ranges(begins.T.reshape(-1), lengths.T.reshape(-1))
    found = None if weights is None else weights[order]
    return BatchIds(values[order], batch, features, 0, np.ascontiguousarray(lengths.T), found)


def apart(ids: BatchIds) -> BatchIds:
    """Make each id a separate bag; features with fewer ids than another are padded with empty bags."""
    sizes = ids.sizes
    many = sizes.sum(0)
    feature_of = ids.bag_of % max(ids.features, 1)
    order = np.argsort(feature_of, kind="stable")
    lengths = (np.arange(many.max(initial=0)) < many[:, None]).astype(np.int64)
    found = by_sample(ids.values[order], lengths, None if ids.weights is None else ids.weights[order])
    return replace(found, lengths_before=sizes)


def crossed(ids: BatchIds, features: Sequence[int], none: int | None) -> BatchIds:
    """Return one feature: in each sample, a 63-bit hash of each combination of ids of some features, in their order.

    A combination with −1 or ``none`` becomes −1. Weights are multiplied. Raises :class:`DataError` for too many.
    """
    parts = [picked(ids, np.array([one])) for one in features]
    total = float(np.prod([one.sizes[:, 0] for one in parts], axis=0, dtype=np.float64).sum())
    if total > MOST_CROSSED:
        raise DataError(
            f"{total:,.0f} combinations of crossed ids in a batch: give shorter bags, at most {MOST_CROSSED:,}"
        )
    many: Wholes = np.prod([one.sizes[:, 0] for one in parts], axis=0)
    sample = np.repeat(np.arange(ids.batch), many)
    place = np.arange(len(sample)) - (np.cumsum(many) - many)[sample]
    hashed, absent = np.zeros(len(sample), np.uint64), np.zeros(len(sample), bool)
    weights = None if ids.weights is None else np.ones(len(sample), np.float32)
    for part in reversed(parts):  # the last feature varies fastest
        size = part.sizes[:, 0]
        at = (np.cumsum(size) - size)[sample] + place % size[sample]
        place //= size[sample]
        value = part.values[at]
        hashed = splitmix64(hashed ^ value.view(np.uint64))
        absent |= (value == -1) | (value == (-1 if none is None else none))
        if weights is not None and part.weights is not None:
            weights *= part.weights[at]
    values = np.where(absent, -1, (hashed >> np.uint64(1)).astype(np.int64))
    return BatchIds(values, ids.batch, 1, 0, many[:, None], weights)


def side_by_side(features: Iterable[BatchIds]) -> BatchIds:
    """Join batches of one feature each."""
    each = list(features)
    weights = [one.weights for one in each if one.weights is not None]
    return by_sample(
        np.concatenate([one.values for one in each]),
        np.stack([one.sizes[:, 0] for one in each]),
        np.concatenate(weights) if weights else None,
    )


def picked(ids: BatchIds, features: Wholes) -> BatchIds:
    """Return the bags of some features, in the order of ``features`` (m,), which may repeat a feature."""
    if ids.each:

        def some(one: Any) -> Any:
            return one.reshape(ids.batch, ids.features, ids.each)[:, features].reshape(-1)

        weights = None if ids.weights is None else some(ids.weights)
        return BatchIds(some(ids.values), ids.batch, len(features), ids.each, None, weights)
    begins, lengths = np.cumsum(ids.sizes) - ids.sizes.reshape(-1), ids.sizes[:, features]
    order = ranges(begins.reshape(ids.sizes.shape)[:, features].reshape(-1), lengths.reshape(-1))
    weights = None if ids.weights is None else ids.weights[order]
    return BatchIds(ids.values[order], ids.batch, len(features), 0, lengths, weights)


def ranges(begins: Wholes, lengths: Wholes) -> Wholes:
    """Concatenate the ranges of ``lengths`` (n,) from ``begins`` (n,); shape (sum of lengths,)."""
    ends = np.cumsum(lengths)
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)


class GivenFeatures:
    """The features whose ids a batch holds, and those of the tables, made from them."""

    def __init__(self, spec: TableSpec) -> None:
        self.names = list(dict.fromkeys(name for one in spec.tables for name in one.crossed or one.feature_names))
        self._sources = [
            ([self.names.index(one) for one in names], table.no_id)
            for table in spec.tables
            for names in ([table.crossed] if table.crossed else [[one] for one in table.feature_names])
        ]

    def of_tables(self, ids: BatchIds) -> BatchIds:
        """Return the features of the tables, in their order; raise :class:`DataError` as :func:`crossed`."""
        if any(len(places) > 1 for places, _ in self._sources):
            return side_by_side(
                picked(ids, np.array(places)) if len(places) == 1 else crossed(ids, places, none)
                for places, none in self._sources
            )
        several = len(self._sources) > len(self.names)  # tables have a feature
        return picked(ids, np.array([place for (place,), _ in self._sources])) if several else ids


class _SideBySide(NamedTuple):
    """Adjacent features: their columns in the batch's numbers, and their bags in the block."""

    columns: slice
    bags: slice


@dataclass(frozen=True, slots=True)
class WholeBlock:
    """The bags of tables that are complete on a shard, sample by sample."""

    bags: Bags
    batch: int
    runs: tuple[_SideBySide, ...]

    def put(self, out: Floats, values: Floats) -> None:
        """Copy the answer, shape (bags, dim), into the batch's numbers ``out`` (batch, width)."""
        each = values.reshape(self.batch, -1, self.bags.width)
        for run in self.runs:
            out[:, run.columns] = each[:, run.bags].reshape(self.batch, -1)

    def covers(self, width: int) -> bool:
        """Return whether the block is the batch's numbers, in their order."""
        return self.runs[0].columns == slice(0, width)

    def taken(self, given: Floats) -> Floats:
        """Return the gradient of the block's bags (bags, dim), from that of the batch's numbers (batch, width)."""
        if self.covers(given.shape[1]):
            return given.reshape(self.bags.count, self.bags.width)
        found = np.empty((self.batch, self.bags.count // max(self.batch, 1), self.bags.width), np.float32)
        for run in self.runs:
            found[:, run.bags] = given[:, run.columns].reshape(self.batch, -1, self.bags.width)
        return found.reshape(self.bags.count, self.bags.width)


@dataclass(frozen=True, slots=True)
class CutBlock:
    """The bags of tables cut by rows: for each feature, the bags with an id on this shard."""

    bags: Bags
    parts: tuple[tuple[slice, Wholes], ...]
    """For each feature: its columns, and the samples that have an id here."""

    def put(self, out: Floats, values: Floats) -> None:
        """Add the answer, shape (bags, dim), to the batch's numbers ``out`` (batch, width)."""
        at = 0
        for columns, samples in self.parts:
            out[samples, columns] += values[at : at + len(samples)]
            at += len(samples)

    def taken(self, given: Floats) -> Floats:
        """Return the gradient of the block's bags (bags, dim), from that of the batch's numbers (batch, width)."""
        return np.concatenate([given[samples, columns] for columns, samples in self.parts])


@dataclass(frozen=True, slots=True)
class Routed:
    """A batch's requests, and how to assemble the answers."""

    batch: int
    width: int
    blocks: dict[int, tuple[WholeBlock | CutBlock, ...]]  # for each requested shard
    divisors: tuple[tuple[slice, Any], ...]  # of features with mean pooling: columns, and ids per bag or (batch, 1)
    ids: BatchIds  # as given, before ``no_id`` and ``modulo`` are applied

    def bags(self, shard: int) -> tuple[Bags, ...]:
        return tuple(one.bags for one in self.blocks[shard])

    def pooled(self, answers: Mapping[int, Sequence[Floats]]) -> Floats:
        """Assemble the batch's numbers, shape (batch, width), from each shard's answer, block by block."""
        every = [one for blocks in self.blocks.values() for one in blocks]
        sizes = [
            run.columns.stop - run.columns.start for one in every if isinstance(one, WholeBlock) for run in one.runs
        ]
        whole = sum(sizes) == self.width
        if len(every) == 1 and isinstance(every[0], WholeBlock) and every[0].covers(self.width) and not self.divisors:
            ((values,),) = (answers[shard] for shard in self.blocks)
            return np.require(values.reshape(self.batch, self.width), requirements="W")
        # Cut blocks add to it, and a table without an id in the batch has none.
        out = (np.empty if whole else np.zeros)((self.batch, self.width), np.float32)
        for shard, blocks in self.blocks.items():
            for block, values in zip(blocks, answers[shard], strict=True):
                block.put(out, values)
        for columns, divisor in self.divisors:
            out[:, columns] /= divisor
        return out

    def gradients(self, shard: int, given: Floats) -> tuple[Floats, ...]:
        """Return a shard's gradients, one row per bag, block by block, or views of ``given``, :meth:`divided` (batch,
        width)."""
        return tuple(block.taken(given) for block in self.blocks[shard])

    def divided(self, given: Floats) -> Floats:
        """Turn the gradient of means into that of sums; shape (batch, width). ``given`` is not changed."""
        if not self.divisors:
            return given
        sums = given.copy()
        for columns, divisor in self.divisors:
            sums[:, columns] /= divisor
        return sums


@dataclass(frozen=True, slots=True)
class _CutPart:
    feature: int
    columns: slice
    start: int
    stop: int
    base: int
    many: int  # number of id buckets if the table grows, otherwise 0


@dataclass(frozen=True, slots=True)
class _GroupRoute:
    """The mapping of a batch's ids to one group of a shard."""

    group: int
    width: int
    features: Wholes  # features whose whole tables are there, in the order of their columns
    bases: Wholes  # for each of them, the first row of its table in the group
    runs: tuple[_SideBySide, ...]
    cut: tuple[_CutPart, ...]  # features of tables cut by rows
    all_features: bool
    grows: bool  # whether ids are arbitrary int64

    def blocks(self, ids: BatchIds) -> Iterator[WholeBlock | CutBlock]:
        if len(self.features) and ids.batch:
            yield WholeBlock(self._whole(ids), ids.batch, self.runs)
        if self.cut:
            parts = [_part_of(ids, one) for one in self.cut]
            if sum(len(samples) for _, samples in parts):
                yield self._cut(parts, uniform=ids.each == 1)

    def _whole(self, ids: BatchIds) -> Bags:
        mine = ids if self.all_features else picked(ids, self.features)
        count, kind = ids.batch * mine.features, np.int64 if self.grows else np.int32
        if mine.each:
            found = np.empty((ids.batch, mine.features, mine.each), kind)
            # Adds in int64 and casts into the message's array: no int64 temporary.
            np.add(mine.values.reshape(found.shape), self.bases[:, None], out=found, casting="unsafe", dtype=np.int64)
            return Bags(self.group, self.width, count, found.reshape(-1), mine.each, None, mine.weights)
        values = (mine.values + mine.of_each(self.bases)).astype(kind)
        return Bags(self.group, self.width, count, values, 0, mine.sizes.reshape(-1).astype(np.int32), mine.weights)

    def _cut(self, parts: list[tuple[Bags, Wholes]], uniform: bool) -> CutBlock:
        weighted = parts[0][0].weights is not None
        bags = Bags(
            self.group,
            self.width,
            sum(len(samples) for _, samples in parts),
            np.concatenate([one.ids for one, _ in parts if one.ids is not None]),
            int(uniform),
            None if uniform else np.concatenate([one.sizes for one, _ in parts]),
            np.concatenate([one.weights for one, _ in parts if one.weights is not None]) if weighted else None,
        )
        columns = [one.columns for one in self.cut]
        return CutBlock(bags, tuple(zip(columns, (samples for _, samples in parts), strict=True)))


class Router:
    """The mapping from ids to shards, for all batches of a worker. It counts lookups."""

    def __init__(self, tables: TableSpec, shards: Sequence[ShardSpec]) -> None:
        self._tables = tables
        self.columns: dict[str, slice] = {}  # of each feature in the batch's numbers
        self.table_of: list[int] = []  # of each feature
        at = 0
        names = iter(tables.columns)
        for number, table in enumerate(tables.tables):
            for _ in table.feature_names:
                self.columns[next(names)] = slice(at, at + table.embedding_dim)
                self.table_of.append(number)
                at += table.embedding_dim
        self.width = at
        of_feature = [tables.tables[number] for number in self.table_of]
        # The largest id of each feature, unsigned: one comparison then rejects negative ids as well. Growing and modulo
        # tables reject only -1, which often means "no id".
        most = [2**64 - 2 if one.modulo or one.num_embeddings is None else one.num_embeddings - 1 for one in of_feature]
        self._most = np.array(most, np.uint64)
        self._without = np.array([one.no_id is not None for one in of_feature])
        self._none = np.array([-1 if one.crossed else one.no_id or 0 for one in of_feature], np.int64)
        self._modulo = {place: one.held for place, one in enumerate(of_feature) if one.modulo}
        self._asked = np.zeros(len(of_feature), np.int64)
        self._samples = 0
        self._distinct = {self.table_of[place]: DistinctIds() for place in self._modulo}
        self._means = [
            (feature, columns)
            for feature, (columns, number) in enumerate(zip(self.columns.values(), self.table_of, strict=True))
            if tables.tables[number].pooling == "mean"
        ]
        self._groups = {
            shard: [self._group(number, group) for number, group in enumerate(spec.groups)]
            for shard, spec in enumerate(shards)
            if spec.groups
        }

    def route(self, ids: BatchIds) -> Routed:
        """Build the requests for a batch; raise :class:`DataError` if a table does not have one of the ids."""
        given, ids = ids, self.rows_of(ids)
        self._samples += ids.batch
        self._asked += ids.each * ids.batch if ids.lengths is None else ids.lengths.sum(0)
        blocks = {}
        for shard, groups in self._groups.items():
            if found := tuple(one for group in groups for one in group.blocks(ids)):
                blocks[shard] = found
        return Routed(ids.batch, self.width, blocks, tuple(self.divisors(ids)), given)

    def rows_of(self, ids: BatchIds) -> BatchIds:
        """Return the rows of a batch's ids, without those that mean "no id"; raise DataError as :meth:`route`."""
        ids = self._kept(ids) if self._without.any() else ids
        self._check(ids)
        return self._wrapped(ids) if self._modulo else ids

    def absent(self, ids: BatchIds) -> npt.NDArray[np.bool_]:
        """Return which ids mean "no id"; shape (n,)."""
        found: npt.NDArray[np.bool_] = ids.of_each(self._without) & (ids.values == ids.of_each(self._none))
        return found

    def _group(self, number: int, group: RowGroup) -> _GroupRoute:
        slices = list(self.columns.values())
        whole: list[tuple[int, int]] = []
        cut: list[_CutPart] = []
        for part, base in zip(group.ranges, group.bases, strict=True):
            for feature in (one for one, table in enumerate(self.table_of) if table == part.table):
                many = self._tables.tables[part.table].held
                if part.rows == many:
                    whole.append((feature, base))
                else:
                    parts = many if group.grows else 0
                    cut.append(_CutPart(feature, slices[feature], part.start, part.stop, base, parts))
        whole.sort()
        features = np.array([feature for feature, _ in whole], np.int64)
        runs: list[_SideBySide] = []
        for place, feature in enumerate(features):
            begin, place_ = slices[feature].start, slice(place, place + 1)
            # Merge adjacent columns, so that one copy moves many features.
            if runs and runs[-1].columns.stop == begin:
                begin, place_ = runs[-1].columns.start, slice(runs.pop().bags.start, place + 1)
            runs.append(_SideBySide(slice(begin, slices[feature].stop), place_))
        bases = np.array([base for _, base in whole], np.int64)
        everything = len(features) == len(slices)
        return _GroupRoute(number, group.width, features, bases, tuple(runs), tuple(cut), everything, group.grows)

    def lookups(self) -> dict[str, float]:
        """Return the average ids per sample of each feature."""
        each = (self._asked / max(self._samples, 1)).tolist()
        return dict(zip(self._tables.features, each, strict=True))

    def sharing(self) -> dict[str, float]:
        """Return the average number of ids per row of each table with ``modulo``."""
        tables = self._tables.tables
        return {tables[at].name: load_of(one.many, tables[at].held) for at, one in self._distinct.items()}

    def _kept(self, ids: BatchIds) -> BatchIds:
        """Drop the ids that mean "no id"."""
        gone = self.absent(ids)
        if not gone.any():
            return ids
        lengths = np.bincount(ids.bag_of[~gone], minlength=ids.sizes.size).reshape(ids.sizes.shape)
        weights = None if ids.weights is None else ids.weights[~gone]
        return BatchIds(ids.values[~gone], ids.batch, ids.features, 0, lengths, weights)

    def _wrapped(self, ids: BatchIds) -> BatchIds:
        values = ids.values.copy()
        feature_of = ids.bag_of % ids.features if not ids.each else None
        for feature, rows in self._modulo.items():
            if feature_of is None:
                mine = values.reshape(ids.batch, ids.features, ids.each)[:, feature]
                self._distinct[self.table_of[feature]].add(mine)
                mine %= rows
            else:
                where = feature_of == feature
                self._distinct[self.table_of[feature]].add(values[where])
                values[where] %= rows
        return replace(ids, values=values)

    def _check(self, ids: BatchIds) -> None:
        if not len(ids.values):
            return
        unsigned = ids.values.view(np.uint64)
        if ids.each:
            wrong = unsigned.reshape(ids.batch, ids.features, ids.each) > self._most[:, None]
        else:
            wrong = unsigned > ids.of_each(self._most)
        if not wrong.any():
            return
        place = int(np.flatnonzero(wrong.reshape(-1))[0])
        feature = int(ids.bag_of[place]) % ids.features
        table = self._tables.tables[self.table_of[feature]]
        name, found = list(self.columns)[feature], int(ids.values[place])
        has = "an id for every number but -1" if table.modulo or table.grows else f"the rows 0 to {table.held - 1}"
        out = f"; if {found} means no id, give Table(no_id={found})" if found < 0 and table.no_id is None else ""
        raise DataError(f"feature {name!r} has the id {found}: table {table.name!r} has {has}{out}")

    def divisors(self, ids: BatchIds) -> Iterator[tuple[slice, Any]]:
        for feature, columns in self._means if ids.each != 1 else []:
            if ids.lengths is None:
                yield columns, np.float32(ids.each)
            else:
                yield columns, np.maximum(ids.lengths[:, feature], 1)[:, None].astype(np.float32)


def _part_of(ids: BatchIds, part: _CutPart) -> tuple[Bags, Wholes]:
    """Return the ids of one feature on a shard, with row numbers of the group, and the samples (m,) that have one."""
    mine = picked(ids, np.array([part.feature]))
    by = bucket(mine.values, part.many) if part.many else mine.values
    here = (by >= part.start) & (by < part.stop)
    counts = np.bincount(mine.bag_of[here], minlength=ids.batch)
    samples = np.flatnonzero(counts)
    values = mine.values[here] if part.many else (mine.values[here] + (part.base - part.start)).astype(np.int32)
    lengths: Ids = counts[samples].astype(np.int32)
    scale = None if mine.weights is None else mine.weights[here]
    return Bags(0, 1, len(samples), values, 0, lengths, scale), samples
