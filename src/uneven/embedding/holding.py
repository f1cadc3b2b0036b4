"""What one shard holds: its part of the tables, as it is told by the first worker that greets it. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from uneven.embedding.config import RowwiseAdagrad, TableSpec
from uneven.embedding.place import RowGroup, RowRange, TablePlan, groups_of
from uneven.embedding.rows import Floats, begin
from uneven.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """The tables, and which of their rows are on this shard.

    Attributes:
        fingerprint: the same for the same rows of the same tables; 32 bits. Every message has it.
    """

    tables: TableSpec
    ranges: tuple[RowRange, ...]
    groups: tuple[RowGroup, ...] = field(init=False)
    fingerprint: int = field(init=False)

    def __post_init__(self) -> None:
        for one in self.ranges:
            if not 0 <= one.table < len(self.tables.tables):
                raise ConfigError(f"range {one} of {len(self.tables.tables)} tables")
            if not 0 <= one.start < one.stop <= self.tables.tables[one.table].rows:
                raise ConfigError(f"range {one} of a table of {self.tables.tables[one.table].rows} rows")
        object.__setattr__(self, "groups", groups_of(self.tables.tables, self.ranges))
        object.__setattr__(self, "fingerprint", zlib.crc32(self.text.encode()))

    @property
    def text(self) -> str:
        """It, as JSON."""
        return json.dumps([self.tables.text, [[one.table, one.start, one.stop] for one in self.ranges]])

    @classmethod
    def read(cls, text: str) -> ShardSpec:
        """Inverse of :attr:`text`.

        Raises:
            ConfigError: it is none.
        """
        try:
            tables, ranges = json.loads(text)
            found = tuple(RowRange(int(table), int(start), int(stop)) for table, start, stop in ranges)
            return cls(TableSpec.read(tables), found)
        except (ValueError, TypeError, RecursionError) as error:
            raise ConfigError(f"no description of a shard: {error!r}") from error


def specs(tables: TableSpec, plan: TablePlan) -> tuple[ShardSpec, ...]:
    """What each shard is told."""
    return tuple(ShardSpec(tables, ranges) for ranges in plan.shards)


class HeldRange(NamedTuple):
    """One range of rows: views of a shard's arrays, shape (rows, dim) and (rows,)."""

    table: str
    start: int
    rows: Floats
    sums: Floats


@dataclass(slots=True)
class Holding:
    """The rows themselves, changed in place, and Adagrad's sums (none with SGD), by group."""

    spec: ShardSpec
    rows: list[Floats]
    sums: list[Floats]

    @classmethod
    def of(cls, spec: ShardSpec) -> Holding:
        """As it begins.

        Raises:
            MemoryError: there is no room.
        """
        tables, seed = spec.tables.tables, spec.tables.seed
        rows = [np.empty((one.rows, one.width), np.float32) for one in spec.groups]
        adagrad = isinstance(spec.tables.optimizer, RowwiseAdagrad)
        sums = [np.zeros(one.rows if adagrad else 0, np.float32) for one in spec.groups]
        held = cls(spec, rows, sums)
        for part, into in zip((one for group in spec.groups for one in group.ranges), held, strict=True):
            table = tables[part.table]
            into.rows[:] = begin(table.name, seed, part.start, part.stop, table.dim, table.spread)
        return held

    def __iter__(self) -> Iterator[HeldRange]:
        """The ranges, group by group."""
        for group, rows, sums in zip(self.spec.groups, self.rows, self.sums, strict=True):
            for part, base in zip(group.ranges, group.bases, strict=True):
                where = slice(base, base + part.rows)
                yield HeldRange(self.spec.tables.tables[part.table].name, part.start, rows[where], sums[where])
