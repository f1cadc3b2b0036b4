"""From a batch's ids to what each shard is asked, and from its answers to the batch's numbers, and back. Pure.

A table that lies on one shard is asked for whole bags, of which each gets one row back. Of one that is cut by rows each
shard sums the rows that it has of a bag, and the worker adds these up. Means are divided here, where the whole length
of a bag is known, and gradients likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from uneven.embedding.config import TableSpec
from uneven.embedding.holding import ShardSpec
from uneven.embedding.rows import Bags, Floats, Ids
from uneven.errors import DataError

Wholes = npt.NDArray[np.int64]


class FeatureIds(NamedTuple):
    """The ids of one feature in a batch, bag after bag.

    Attributes:
        values: shape (n,).
        each: ids in every bag, or 0 where ``lengths`` says it.
        lengths: of the bags, shape (batch,), or None.
        weights: of the ids, shape (n,), or None.
    """

    values: Wholes
    each: int = 1
    lengths: Ids | None = None
    weights: Floats | None = None


class _Wanted(NamedTuple):
    """Rows of one feature that are on one shard."""

    feature: int
    columns: slice
    start: int
    stop: int
    base: int
    whole: bool


class AskedBlock(NamedTuple):
    """Where the answer of one group of a shard goes: each feature's columns and bags (None: all), in order."""

    bags: Bags
    columns: tuple[slice, ...]
    places: tuple[Wholes | None, ...]


@dataclass(frozen=True, slots=True)
class Routed:
    """A batch on its way.

    Attributes:
        batch: bags of each feature.
        blocks: of each shard that is asked.
        divisors: of the features whose bags are averaged: columns, and the number of ids, one or for each bag.
    """

    batch: int
    width: int
    blocks: dict[int, tuple[AskedBlock, ...]]
    divisors: tuple[tuple[slice, Any], ...]

    def bags(self, shard: int) -> tuple[Bags, ...]:
        """What a shard is asked."""
        return tuple(one.bags for one in self.blocks[shard])

    def pooled(self, answers: Mapping[int, Sequence[Floats]]) -> Floats:
        """The numbers of the batch, shape (batch, width), from each shard's answer, group by group."""
        out = np.zeros((self.batch, self.width), np.float32)
        for shard, blocks in self.blocks.items():
            for block, values in zip(blocks, answers[shard], strict=True):
                at = 0
                for columns, places in zip(block.columns, block.places, strict=True):
                    if places is None:
                        out[:, columns] = values[at : at + self.batch]
                        at += self.batch
                    else:
                        out[places, columns] += values[at : at + len(places)]
                        at += len(places)
        for columns, divisor in self.divisors:
            out[:, columns] /= divisor
        return out

    def gradients(self, shard: int, given: Floats) -> tuple[Floats, ...]:
        """What a shard gets of the batch's gradient, shape (batch, width): a row for each bag, group by group.

        ``given`` is not changed; its means are divided by :meth:`divided` before.
        """
        found = []
        for block in self.blocks[shard]:
            values = np.empty((block.bags.count, block.bags.width), np.float32)
            at = 0
            for columns, places in zip(block.columns, block.places, strict=True):
                mine = given[:, columns] if places is None else given[places, columns]
                values[at : at + len(mine)] = mine
                at += len(mine)
            found.append(values)
        return tuple(found)

    def divided(self, given: Floats) -> Floats:
        """The gradient of sums from that of means, where there are any."""
        if not self.divisors:
            return given
        sums = given.copy()
        for columns, divisor in self.divisors:
            sums[:, columns] /= divisor
        return sums


class Router:
    """Knows where all rows are.

    Attributes:
        columns: of each feature in the batch's numbers.
        width: of these, together.
    """

    def __init__(self, tables: TableSpec, shards: Sequence[ShardSpec]) -> None:
        self._tables = tables
        self.columns: dict[str, slice] = {}
        self._table_of: list[int] = []
        at = 0
        for number, table in enumerate(tables.tables):
            for feature in table.features:
                self.columns[feature] = slice(at, at + table.dim)
                self._table_of.append(number)
                at += table.dim
        self.width = at
        slices = list(self.columns.values())
        self._wanted = {
            shard: [
                [
                    _Wanted(
                        feature, slices[feature], part.start, part.stop, base, self._is_whole(part.table, part.rows)
                    )
                    for part, base in zip(group.ranges, group.bases, strict=True)
                    for feature in range(len(slices))
                    if self._table_of[feature] == part.table
                ]
                for group in spec.groups
            ]
            for shard, spec in enumerate(shards)
            if spec.groups
        }
        self._widths = {shard: [group.width for group in spec.groups] for shard, spec in enumerate(shards)}

    def route(self, features: Sequence[FeatureIds], batch: int) -> Routed:
        """What to ask for a batch.

        Args:
            features: the ids of each, in the order of the tables' features.

        Raises:
            DataError: an id that its table does not have.
        """
        self._check(features)
        blocks = {}
        for shard, groups in self._wanted.items():
            asked = [self._block(number, shard, wanted, features, batch) for number, wanted in enumerate(groups)]
            if found := tuple(one for one in asked if one.bags.count):
                blocks[shard] = found
        return Routed(batch, self.width, blocks, tuple(self._divisors(features)))

    def _is_whole(self, table: int, rows: int) -> bool:
        return rows == self._tables.tables[table].rows

    def _check(self, features: Sequence[FeatureIds]) -> None:
        for (name, _), number, one in zip(self.columns.items(), self._table_of, features, strict=True):
            rows = self._tables.tables[number].rows
            if len(one.values) and not 0 <= (low := int(one.values.min())) <= (high := int(one.values.max())) < rows:
                wrong = low if low < 0 else high
                table = self._tables.tables[number].name
                raise DataError(f"feature {name!r} has the id {wrong}: table {table!r} has the rows 0 to {rows - 1}")

    def _block(
        self, group: int, shard: int, wanted: list[_Wanted], features: Sequence[FeatureIds], batch: int
    ) -> AskedBlock:
        found = [_part_of(features[one.feature], one, batch) for one in wanted]
        eaches = {one.each for one, _ in found}
        each = eaches.pop() if len(eaches) == 1 else 0
        weighted = any(one.weights is not None for one, _ in found)
        bags = Bags(
            group=group,
            width=self._widths[shard][group],
            count=sum(batch if places is None else len(places) for _, places in found),
            ids=np.concatenate([one.values for one, _ in found]).astype(np.int32),
            each=each,
            lengths=None if each else np.concatenate([_lengths(one, batch) for one, _ in found]),
            weights=np.concatenate([_weights(one) for one, _ in found]) if weighted else None,
        )
        return AskedBlock(bags, tuple(one.columns for one in wanted), tuple(places for _, places in found))

    def _divisors(self, features: Sequence[FeatureIds]) -> list[tuple[slice, Any]]:
        found: list[tuple[slice, Any]] = []
        for columns, number, one in zip(self.columns.values(), self._table_of, features, strict=True):
            if self._tables.tables[number].pooling == "mean" and one.each != 1:
                many = one.each if one.lengths is None else np.maximum(one.lengths, 1).astype(np.float32)[:, None]
                found.append((columns, many))
        return found


def _part_of(ids: FeatureIds, wanted: _Wanted, batch: int) -> tuple[FeatureIds, Wholes | None]:
    """A feature's ids that are on a shard, as its own, and the bags that have one there (None: all are asked for)."""
    if wanted.whole:
        return ids._replace(values=ids.values + wanted.base), None
    here = (ids.values >= wanted.start) & (ids.values < wanted.stop)
    of = np.repeat(np.arange(batch), _lengths(ids, batch))[here]
    counts = np.bincount(of, minlength=batch)
    places = np.flatnonzero(counts)
    weights = None if ids.weights is None else ids.weights[here]
    values = ids.values[here] + (wanted.base - wanted.start)
    if ids.each == 1:
        return FeatureIds(values, 1, None, weights), places
    return FeatureIds(values, 0, counts[places].astype(np.int32), weights), places


def _lengths(ids: FeatureIds, batch: int) -> Ids:
    if ids.lengths is not None:
        return ids.lengths
    return np.full(len(ids.values) // max(ids.each, 1), ids.each, np.int32)


def _weights(ids: FeatureIds) -> Floats:
    return np.ones(len(ids.values), np.float32) if ids.weights is None else ids.weights
