"""The sharding plan: which shard holds which rows. Pure: all workers compute the same plan from the same tables.

A table's cost is ids per sample × numbers in a row; its size is rows × (numbers + the optimizer's sum). A table that
exceeds a shard's fair part of either is cut by rows. Then tables are placed in decreasing order of cost, each on the
shard with room and the least load for its speed. This is the usual greedy rule; the cut is ours.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from uneven.embedding.pure.config import MOST_ROWS, Table
from uneven.embedding.pure.narrow_rows import row_bytes
from uneven.embedding.pure.row_cache import WAYS, slot_bytes
from uneven.errors import ConfigError
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import Limits


@dataclass(frozen=True, slots=True, order=True)
class RowRange:
    """Rows ``start`` to ``stop`` of a table; of a growing table, buckets of ids, with at most as many rows."""

    table: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class MeasuredTables:
    """The lookup rates and shard speeds that an earlier run measured."""

    lookups: Mapping[str, float] = field(default_factory=dict)  # ids per sample, by feature
    speeds: tuple[float, ...] = ()  # of the shards, in one common unit

    def speeds_of(self, shards: int) -> tuple[float, ...] | None:
        return self.speeds if len(self.speeds) == shards else None

    @property
    def text(self) -> str:
        return json.dumps({"lookups": dict(self.lookups), "speeds": self.speeds})

    @classmethod
    def read(cls, text: str) -> "MeasuredTables":
        """Parse :attr:`text`; raise :class:`ConfigError` if it does not hold measurements."""
        try:
            plain = json.loads(text)
            lookups = {str(name): float(many) for name, many in plain["lookups"].items()}
            return cls(lookups, tuple(float(one) for one in plain["speeds"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"no measurements of tables: {error!r}") from error


@dataclass(frozen=True, slots=True)
class RowGroup:
    """The rows of one width and type on one shard, or of one growing table, as one array."""

    width: int
    ranges: tuple[RowRange, ...]
    bases: tuple[int, ...]  # index in the array at which each range starts
    grows: bool = False  # whether rows are found by id; row 0 is then shared by all ids without a row
    slots: int = 0  # rows in memory if the group is on disk; a server has no array of all its rows then
    dtype: str = "float32"

    @property
    def rows(self) -> int:
        return self.bases[-1] + self.ranges[-1].rows + int(self.grows)


def groups_of(tables: Sequence[Table], ranges: Sequence[RowRange]) -> tuple[RowGroup, ...]:
    """Return a shard's arrays: one per width and type, one per width on disk, then one per growing table.

    Raises ConfigError for too many rows, or too little memory for rows on disk.
    """
    found = []
    of = {one: tables[one.table] for one in ranges}
    kinds = {one: (each.on_disk, each.embedding_dim, each.dtype) for one, each in of.items()}
    fixed = [one for one in ranges if not tables[one.table].grows]
    for disk, width, dtype in sorted({kinds[one] for one in fixed}):
        mine = tuple(one for one in fixed if kinds[one] == (disk, width, dtype))
        ends = list(accumulate(one.rows for one in mine))
        if ends[-1] > MOST_ROWS:  # else int32 cannot index them
            raise ConfigError(f"{ends[-1]:,} rows of {width} numbers exceed one shard: use more shards (--tables)")
        memory = sum(_bytes(tables[one.table], one.rows) for one in mine)
        slots = memory // slot_bytes(width) // WAYS * WAYS if disk else 0
        if disk and not slots:
            names = ", ".join(repr(tables[one.table].name) for one in mine)
            raise ConfigError(
                f"tables {names} have {memory:,} bytes of memory on a shard: raise Table(memory=), so that it is at "
                f"least {WAYS * slot_bytes(width):,}"
            )
        found.append(RowGroup(width, mine, (0, *ends[:-1]), slots=slots, dtype=dtype))
    growing = (one for one in ranges if tables[one.table].grows)
    return (
        *found,
        *(RowGroup(of[one].embedding_dim, (one,), (0,), grows=True, dtype=of[one].dtype) for one in growing),
    )


def place(
    tables: Sequence[Table],
    shards: int,
    *,
    speeds: Sequence[float] | None = None,
    lookups: Mapping[str, float] | None = None,
    most_bytes: int | None = None,
) -> tuple[tuple[RowRange, ...], ...]:
    """Divide tables among shards; return the ranges of each shard, in the order in which it stores them.

    ``speeds`` of the shards have any unit; ``lookups`` are measured ids per sample by feature, 1 by default;
    ``most_bytes`` is the capacity of each shard. Raises :class:`ConfigError` if the tables do not fit.
    """
    if shards < 1:
        raise ConfigError(f"{shards} shards: give at least one")
    weights = list(speeds or [1.0] * shards)
    if len(weights) != shards or not all(math.isfinite(one) and one > 0 for one in weights):
        raise ConfigError(f"speeds {weights} for {shards} shards: give a number above 0 for each")
    room = [math.inf if most_bytes is None else most_bytes] * shards
    costs = [_cost(one, lookups or {}) for one in tables]
    ranges = [
        part
        for number, one in enumerate(tables)
        for part in _cut(number, one, costs[number] / max(sum(costs), 1e-9), weights, most_bytes)
    ]

    def cost(part: RowRange) -> float:
        return costs[part.table] * part.rows / tables[part.table].held

    bins: list[list[RowRange]] = [[] for _ in range(shards)]
    loads = [0.0] * shards
    # The size and the range break ties, so that all workers place tables in the same order.
    for part in sorted(ranges, key=lambda one: (-cost(one), -_bytes(tables[one.table], one.rows), one)):
        need = _bytes(tables[part.table], part.rows)
        fitting = [shard for shard in range(shards) if room[shard] >= need]
        if not fitting:
            raise ConfigError(
                f"table {tables[part.table].name!r}: {need:,} bytes of it fit into no shard of {most_bytes:,} "
                "bytes; use more shards (uneven run --tables), or fewer rows"
            )
        least = min(fitting, key=lambda shard: ((loads[shard] + cost(part)) / weights[shard], -room[shard], shard))
        bins[least].append(part)
        loads[least] += cost(part)
        room[least] -= need
    return tuple(tuple(sorted(each)) for each in bins)


def _cost(table: Table, lookups: Mapping[str, float]) -> float:
    return table.embedding_dim * sum(lookups.get(one, 1.0) for one in table.feature_names)


def _bytes(table: Table, rows: int) -> int:
    """Return the bytes in memory of some rows of a table."""
    each = row_bytes(table.dtype, table.embedding_dim) + 4
    return table.memory_bytes * rows // table.held if table.on_disk else rows * each


def _cut(number: int, table: Table, part: float, speeds: Sequence[float], most_bytes: int | None) -> list[RowRange]:
    """Return the ranges of a table: one, or one for each shard by speed if its cost or size exceeds a shard's part."""
    # A cut is worth it only well above the fair part: each bag then costs an answer from every shard.
    pieces = len(speeds) if part * len(speeds) > 1.5 else 1
    if most_bytes is not None and _bytes(table, table.held) > most_bytes:
        pieces = max(pieces, -(-_bytes(table, table.held) // max(1, most_bytes // 2)))
    pieces = min(max(pieces, -(-table.held // MOST_ROWS)), table.held)
    if pieces == 1:
        return [RowRange(number, 0, table.held)]
    by_speed = list(speeds) if pieces == len(speeds) else [1.0] * pieces
    ends = list(accumulate(proportional(by_speed, table.held, Limits.uniform(pieces, table.held))))
    return [RowRange(number, start, stop) for start, stop in zip([0, *ends], ends, strict=False)]
