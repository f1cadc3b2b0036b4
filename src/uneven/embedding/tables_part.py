"""The part of a session for embedding tables: prefetches lookups, and flushes updates before an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from uneven.embedding.access import TableAccess
from uneven.embedding.table_client import TableStats
from uneven.errors import ConfigError
from uneven.run.step.part import Part, Run


class TablesPart(Part):
    """The part that an ``EmbeddingBagCollection`` adds to a session."""

    def __init__(self, door: TableAccess) -> None:
        self._door = door
        self._run: Run | None = None
        self._tables: Any = None  # the collection, while a session is open

    @property
    def name(self) -> str:
        return f"tables-{self._door.spec.fingerprint:08x}"

    def attach(self, run: Run) -> None:
        """Connect to the shards, so that configuration errors are raised before the training starts."""
        self._run = run
        found = [one for one in run.model.modules() if isinstance(getattr(one, "uneven_part", None), TablesPart)]
        self._tables = next(one for one in found if one.uneven_part is self)
        self._door.scale = partial(_counts, run)  # evaluated at each step: the shares may move
        _ = self._door.client  # connects now
        if self._door.served and len(found) > 1:
            raise ConfigError(
                f"the model has {len(found)} collections of tables, and the servers of a run hold one: put all tables "
                f"into one EmbeddingCollection, and pool rows in the model with torch.nn.functional.embedding_bag"
            )

    def batch_read(self, ids: Any) -> None:
        self._door.ahead(ids, learning=self._tables.anchor.requires_grad)

    def evaluated(self) -> AbstractContextManager[None]:
        return self._flushed()

    @contextmanager
    def _flushed(self) -> Iterator[None]:
        # Updates are asynchronous, but an evaluation must see all of them.
        self._door.client.flush()
        if self._run is not None and self._run.rank == 0:
            self._tell(self._run)
        yield

    def _tell(self, run: Run) -> None:
        stats = self._door.stats()
        half, most, counts = stats.stale(0.5), stats.stale(0.95), stats.counts
        run.tell(
            "tables",
            f"{counts['applied']:,} updates, {counts['lookups']:,} lookups of {counts['rows']:,} rows; "
            f"{half:g} updates between a lookup and its gradient in the median, {most:g} in 95 of 100, "
            f"{max(stats.staleness, default=0)} at most; {counts['nonfinite']} refused for a NaN or an infinity, "
            f"{stats.lost} lost{_of_ids(stats)}",
        )
        if stats.staleness:
            run.log("table staleness", half)

    def close(self) -> None:
        """Leave, so that no flush of the other workers waits for this one."""
        self._run, self._tables, self._door.scale = None, None, lambda: 1.0
        self._door.leave()


def _counts(run: Run) -> float:
    """Return the weight of this worker's gradient: x_i / X if all workers average theirs, otherwise 1."""
    turn = run.turn()
    return turn.in_gradient if turn is not None and turn.exchanging else 1.0


def _of_ids(stats: TableStats) -> str:
    counts, found = stats.counts, ""
    if "admitted" in counts:
        found = f"; {counts['admitted']:,} ids were given rows, {counts['evicted']:,} lost theirs to others"
    return found + "".join(f"; {many:.2f} ids share a row of {name}" for name, many in stats.sharing.items())
