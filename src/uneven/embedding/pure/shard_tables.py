"""The rows that one shard holds, as specified by the first worker that connects."""

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from uneven.embedding.pure.config import RowwiseAdagrad, Table, TableSpec
from uneven.embedding.pure.dynamic_ids import IdMap, Ids64, begin_by_id
from uneven.embedding.pure.narrow_rows import NarrowRows
from uneven.embedding.pure.row_cache import Slots
from uneven.embedding.pure.row_optimizers import BLOCK, Floats, Ids, begin, zeros
from uneven.embedding.pure.sharding_plan import RowGroup, RowRange, groups_of
from uneven.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """The tables, and which of their rows are on this shard."""

    tables: TableSpec
    ranges: tuple[RowRange, ...]
    groups: tuple[RowGroup, ...] = field(init=False)
    fingerprint: int = field(init=False)  # CRC-32 of `text`; every message carries it

    def __post_init__(self) -> None:
        for one in self.ranges:
            if not 0 <= one.table < len(self.tables.tables):
                raise ConfigError(f"range {one} names a table that does not exist; there are {len(self.tables.tables)}")
            if not 0 <= one.start < one.stop <= self.tables.tables[one.table].held:
                raise ConfigError(
                    f"range {one} reaches beyond the {self.tables.tables[one.table].held} rows of its table"
                )
        object.__setattr__(self, "groups", groups_of(self.tables.tables, self.ranges))
        object.__setattr__(self, "fingerprint", zlib.crc32(self.text.encode()))

    @property
    def text(self) -> str:
        return json.dumps([self.tables.text, [[one.table, one.start, one.stop] for one in self.ranges]])

    @classmethod
    def read(cls, text: str) -> "ShardSpec":
        """Parse :attr:`text`; raise :class:`ConfigError` if it is not a shard specification."""
        try:
            tables, ranges = json.loads(text)
            found = tuple(RowRange(int(table), int(start), int(stop)) for table, start, stop in ranges)
            return cls(TableSpec.read(tables), found)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise ConfigError(f"no description of a shard: {error!r}") from error


def whole_tables(found: Mapping[int, ShardSpec]) -> tuple[ShardSpec, ...] | None:
    """Return the specifications of all shards if those found by number hold all rows; others then hold none."""
    tables = found[min(found)].tables if found else None
    rows = sum(part.rows for one in found.values() for part in one.ranges)
    if tables is None or rows < sum(one.held for one in tables.tables):
        return None
    return tuple(found.get(number) or ShardSpec(tables, ()) for number in range(max(found) + 1))


class StoredRows(Protocol):
    """The rows of a group on disk; :class:`uneven.embedding.table_disk.DiskRows` documents the methods."""

    counts: Counter[str]

    def clear(self) -> None: ...

    def take(self, ids: Ids, often: Floats | None) -> tuple[Floats, Floats, Slots]: ...

    def put(self, ids: Ids, slots: Slots, rows: Floats, sums: Floats) -> None: ...

    def load(self, ids: Ids, rows: Floats, sums: Floats, *, recent: bool) -> None: ...

    def saving(self, stem: Any, base: int, background: Any) -> Iterator[None]: ...


class HeldRange(NamedTuple):
    """One range of rows, as views of the shard's arrays; these are empty if the rows are on disk."""

    table: str
    start: int
    stop: int
    many: int  # rows of the whole table
    rows: Any  # (rows, dim) float32, or NarrowRows
    sums: Floats  # (rows,), empty with SGD
    map: IdMap | None  # of a growing table, which has an array for itself; row 0 is shared by all ids without a row
    first_sum: float  # Adagrad's initial sum of a row
    base: int  # index of the first row in its group
    disk: StoredRows | None
    number: int  # of the table


@dataclass(slots=True)
class Holding:
    """The rows of a shard by group, updated in place, with Adagrad's sums (none with SGD) and id maps."""

    spec: ShardSpec
    rows: list[Any]  # float32, or NarrowRows
    sums: list[Floats]
    maps: list[IdMap | None]
    disks: Mapping[int, StoredRows] = field(default_factory=dict)  # of the groups on disk, which have no arrays

    @classmethod
    def of(
        cls,
        spec: ShardSpec,
        disks: Mapping[int, StoredRows] | None = None,
        fixed: Callable[[int, int, int], Floats] = lambda group, rows, dim: zeros(rows, dim),
    ) -> "Holding":
        """Allocate and initialize the rows; raise MemoryError if they do not fit.

        ``fixed``: group of float32 rows that does not grow, rows, dim → zeros of shape (rows, dim)."""
        tables, seed = spec.tables.tables, spec.tables.seed
        disks = disks or {}
        many = [0 if number in disks else one.rows for number, one in enumerate(spec.groups)]
        rows = [
            NarrowRows.zeros(each, one.width, one.dtype)
            if one.dtype != "float32"
            else zeros(each, one.width)
            if one.grows or number in disks
            else fixed(number, each, one.width)
            for number, (each, one) in enumerate(zip(many, spec.groups, strict=True))
        ]
        adagrad = isinstance(spec.tables.optimizer, RowwiseAdagrad)
        sums = [np.zeros(each if adagrad else 0, np.float32) for each in many]
        maps = [_map(tables[one.ranges[0].table], one) if one.grows else None for one in spec.groups]
        held = cls(spec, rows, sums, maps, disks)
        for part, into in zip((one for group in spec.groups for one in group.ranges), held, strict=True):
            table = tables[part.table]
            if into.disk is not None:
                continue
            if into.map is None:
                for first in range(part.start - part.start % BLOCK, part.stop, BLOCK):  # no second copy in memory
                    low, high = max(first, part.start), min(first + BLOCK, part.stop)
                    made = begin(table.name, seed, low, high, table.embedding_dim, table.spread)
                    into.rows[low - part.start : high - part.start] = made
                new = into.sums
            else:
                # Only the shared row exists; `slots` initializes the others when they get an id.
                new = into.sums[:1]
                into.rows[:1] = begin_by_id(np.array([-1]), salt_of(table, seed), table.embedding_dim, table.spread)
            if spec.tables.first_sum:
                new[:] = spec.tables.first_sum
        return held

    def slots(self, group: int, ids: Ids64, *, counted: bool) -> Ids:
        """Return the slots (n,) of ids (n,) of a growing group; ``counted`` lookups may add rows."""
        found = self.maps[group]
        assert found is not None
        if not counted:
            return found.find(ids)
        slots, made = found.see(ids)
        if len(made):
            table = self.spec.tables.tables[self.spec.groups[group].ranges[0].table]
            salt = salt_of(table, self.spec.tables.seed)
            self.rows[group][made] = begin_by_id(found.ids[made], salt, table.embedding_dim, table.spread)
            self.begin_sums(self.sums[group], made)
        return slots

    def begin_sums(self, into: Floats, rows: Ids | Ids64, sums: Floats | None = None) -> None:
        """Set Adagrad's sums of some rows (n,) to ``sums`` (n,), or to the initial sum."""
        if len(into):  # empty with SGD
            into[rows] = self.spec.tables.first_sum if sums is None else sums

    def __iter__(self) -> Iterator[HeldRange]:
        for number, (group, found) in enumerate(zip(self.spec.groups, self.maps, strict=True)):
            for part, base in zip(group.ranges, group.bases, strict=True):
                where = slice(base, base + part.rows + int(group.grows))
                table = self.spec.tables.tables[part.table]
                yield HeldRange(
                    table.name,
                    part.start,
                    part.stop,
                    table.held,
                    self.rows[number][where],
                    self.sums[number][where],
                    found,
                    self.spec.tables.first_sum,
                    base,
                    self.disks.get(number),
                    part.table,
                )


def _map(table: Table, group: RowGroup) -> IdMap:
    return IdMap(group.rows - 1, table.admit, table.evict, group.ranges[0].start)


def salt_of(table: Table, seed: int) -> int:
    return zlib.crc32(f"{table.name} {seed}".encode())
