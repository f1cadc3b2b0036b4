"""``EmbeddingBagCollection``: embedding tables on servers, in a model whose other parts train as usual."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, Self

import psutil
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from uneven.embedding.access import TableAccess
from uneven.embedding.features import PooledFeatures, UnpooledFeatures
from uneven.embedding.ids import device_of
from uneven.embedding.plain import PlainTables, RowsInput
from uneven.embedding.pure.config import RowOptimizer, RowwiseAdagrad, Table, TableSpec, tables_of
from uneven.embedding.pure.route import Router
from uneven.embedding.pure.sharding_plan import MeasuredTables
from uneven.embedding.pure.table_wire import WIRES, Say
from uneven.embedding.table_client import AskedRows, TableStats
from uneven.embedding.transfer import misfits, read_grown, read_state, read_tables, write_state
from uneven.errors import ConfigError, reason
from uneven.run.step.callback import Callback, CallbackContext


class TablesCallback(Callback):
    """The part that an ``EmbeddingBagCollection`` adds to a session."""

    def __init__(self, door: TableAccess) -> None:
        self._door = door
        self._run: CallbackContext | None = None
        self._tables: Any = None  # the collection, while a session is open

    @property
    def name(self) -> str:
        return f"tables-{self._door.spec.fingerprint:08x}"

    def attach(self, run: CallbackContext) -> None:
        """Connect to the shards, so that configuration errors are raised before the training starts."""
        self._run = run
        self._tables = next(one for one in run.model.modules() if getattr(one, "uneven_callback", None) is self)
        self._door.scale = partial(_counts, run)  # evaluated at each step: the shares may move
        _ = self._door.client  # connects now

    def batch_read(self, ids: Any) -> None:
        self._door.ahead(ids, learning=self._tables.anchor.requires_grad)

    def evaluation_model(self) -> AbstractContextManager[None]:
        return self._flushed()

    @contextmanager
    def _flushed(self) -> Iterator[None]:
        # Updates are asynchronous, but an evaluation must see all of them.
        self._door.client.flush()
        if self._run is not None and self._run.rank == 0:
            self._tell(self._run)
        yield

    def _tell(self, run: CallbackContext) -> None:
        stats = self._door.stats()
        half, most, counts = stats.stale(0.5), stats.stale(0.95), stats.counts
        run.tell(
            "tables",
            f"{counts['applied']:,} updates, {counts['lookups']:,} lookups of {counts['rows']:,} rows; "
            f"{half:g} updates between a lookup and its gradient in the median, {most:g} in 95 of 100, "
            f"{max(stats.staleness, default=0)} at most; {counts['nonfinite']} rejected for a NaN or an infinity, "
            f"{stats.lost} lost{_of_ids(stats)}",
        )
        if stats.staleness:
            run.log("table staleness", half)

    def close(self) -> None:
        """Leave, so that no flush of the other workers waits for this one."""
        self._run, self._tables, self._door.scale = None, None, lambda: 1.0
        self._door.leave()


def _counts(run: CallbackContext) -> float:
    """Return the weight of this worker's gradient: x_i / X if all workers average theirs, otherwise 1."""
    turn = run.turn()
    return turn.in_gradient if turn is not None and turn.exchanging else 1.0


def _of_ids(stats: TableStats) -> str:
    counts, found = stats.counts, ""
    if "admitted" in counts:
        found = f"; {counts['admitted']:,} ids were given rows, {counts['evicted']:,} lost theirs to others"
    return found + "".join(f"; {many:.2f} ids share a row of {name}" for name, many in stats.sharing.items())


_MEASURED = "measured.json"


class EmbeddingBagCollection(nn.Module):
    """Embedding tables that all workers share, on servers or in this process.

    The rows are not parameters of the model and have no ``.grad``. Each backward pass sends the gradient of the pooled
    rows to the shards, which update the rows immediately, as TorchRec's fused optimizers do. Per-sample weights get no
    gradient.

    The only parameter is ``anchor``, an unused zero. Its ``requires_grad`` freezes all tables.

    Args:
        tables: :class:`Table`, or TorchRec's ``EmbeddingBagConfig`` (``EmbeddingConfig`` for ``EmbeddingCollection``).
        optimizer: of all rows; :class:`RowwiseAdagrad` by default.
        seed: for the initial rows, which do not depend on the number of shards.
        shards: number of shard threads in a single-process run; ``uneven run --tables K`` starts servers.
        wire: type of the rows between machines: "float32", "bfloat16", "float16", or "int8" with a scale for each row.
            Under the last three, gradients travel as bfloat16.
        save_every_s: seconds between automatic saves, from which a failed server restarts; None for never.
        in_state_dict: whether ``state_dict()`` holds all rows. Pass False for growing tables, for tables on disk, and
            for tables larger than a worker's memory; save these with :meth:`save_checkpoint` and
            :meth:`load_checkpoint`.
        placed_by: folder of an earlier :meth:`save_checkpoint`: place tables by the lookups measured then, and by the
            servers' speeds if their number is the same. Must be the same for all workers.
        stagger: before its first lookup, worker r waits until the servers have applied r · ``stagger`` updates, or none
            came for 10 s. With 0 workers do not wait. Leave it at 0 under policies whose workers wait for each other.

    Raises:
        ConfigError: a value is invalid.
    """

    _unpooled = False

    def __init__(
        self,
        tables: Sequence[Any],
        *,
        optimizer: RowOptimizer | None = None,
        seed: int = 0,
        shards: int = 1,
        wire: str = "float32",
        save_every_s: float | None = None,
        in_state_dict: bool = True,
        placed_by: str | Path | None = None,
        stagger: int = 0,
    ) -> None:
        super().__init__()
        if type(stagger) is not int or stagger < 0:
            raise ConfigError(f"stagger={stagger!r}: give a whole number of updates, 0 or more")
        if wire not in WIRES:
            raise ConfigError(f"wire={wire!r}: it is one of {', '.join(WIRES)}")
        found = tables_of(tables, pooled=not self._unpooled)
        spec = TableSpec(found, optimizer or RowwiseAdagrad(), seed, save_every_s)
        measured = None if placed_by is None else _measured(Path(placed_by))
        self.door = TableAccess(
            spec, shards=shards, wire=wire, measured=measured, unpooled=self._unpooled, stagger=stagger
        )
        self.in_state_dict = in_state_dict
        self.anchor = nn.Parameter(torch.zeros(1))
        self.uneven_callback = TablesCallback(self.door)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables, converted to :class:`Table`."""
        return self.door.spec.tables

    @property
    def embedding_bags(self) -> SimpleNamespace:
        """A namespace with the keys of ``state_dict()``, for torch's ``get_model_state_dict``."""
        return SimpleNamespace(**{one.name: SimpleNamespace(weight=None, sum=None) for one in self.tables})

    @property
    def width(self) -> int:
        """The sum of the dims of all features."""
        return self.door.spec.width

    def forward(self, ids: Any) -> PooledFeatures:
        """Return the pooled rows of a batch, on the device of its ids; for formats of ``ids`` see
        :mod:`uneven.embedding.ids`.

        Raises:
            DataError: the ids are invalid.
            PeerError: a shard does not answer.
        """
        values, _ = self._values(ids)
        return PooledFeatures(self.door.router.columns, values)

    @torch.compiler.disable(reason="the rows of tables come from other threads; compile without fullgraph=True")
    def _values(self, ids: Any) -> tuple[Tensor, AskedRows]:
        learning = torch.is_grad_enabled() and self.anchor.requires_grad
        asked = self.door.ask(ids, learning=learning)
        values = torch.from_numpy(asked.values())
        if learning:
            # The rows require no gradient: the anchor makes autograd call the backward pass.
            values = _Given.apply(self.anchor, values, asked, self.door)
        return values.to(device_of(ids)), asked

    def flush(self) -> None:
        """Wait until all updates of all workers are applied. Every present worker must call it.

        Raises:
            PeerError: a worker did not.
        """
        self.door.client.flush()

    def rows(self) -> Iterator[tuple[str, int, Tensor]]:
        """Yield the current rows of fixed-size tables in blocks: table, first row, rows of shape (n, dim)."""
        return read_tables(self.door)

    def grown(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the ids (n,) of the growing table ``name``, and their rows (1 + n, dim).

        All ids without a row share row 0, averaged over servers.

        Raises:
            ConfigError: there is no such table, or it does not grow.
        """
        return read_grown(self.door, name)

    def to_state_dict(self) -> dict[str, Tensor]:
        """Return the tables as a state dict for ``torch.nn.EmbeddingBag`` and TorchRec's collection.

        ``embedding_bags.<table>.weight`` has shape (rows, dim). A growing table has the rows of :meth:`grown` there,
        and its ids in ``embedding_bags.<table>.ids``.

        Raises:
            ConfigError: a table on disk does not fit into the free memory of this machine.
        """
        if any(one.on_disk for one in self.tables) and (why := self._too_large()):
            raise ConfigError(f"to_state_dict: {why}; read blocks of rows with tables.rows()")
        found = read_state(self.door)
        for name in (one.name for one in self.tables if one.grows):
            found[f"embedding_bags.{name}.ids"], found[f"embedding_bags.{name}.weight"] = self.grown(name)
        return found

    def from_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load a result of :meth:`to_state_dict`, on one worker. Adagrad's sums are reset if the state has none.

        Raises:
            ConfigError: a table grows, is missing, has another shape, or holds a NaN or an infinity.
        """
        missing, _, wrong = misfits(self.tables, state)
        for why in (*wrong, *(f"the state has no {key}" for key in missing)):
            raise ConfigError(f"from_state_dict: {why}")
        write_state(self.door, state)

    def _too_large(self) -> str:
        needed = 4 * sum(one.held * (one.embedding_dim + 1) for one in self.tables)
        free = psutil.virtual_memory().available
        fits = needed <= free
        return "" if fits else f"the rows take {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB of memory are free"

    def to_embedding_bags(self) -> PlainTables:
        """Return a module with a copy of the rows, to replace this collection in its model: ``model.tables = …``.

        It holds an ``nn.EmbeddingBag`` for each table, or ``nn.Embedding`` without pooling. Its ``state_dict()`` is an
        argument of :meth:`from_state_dict`.
        """
        return PlainTables(self.door.spec, self.to_state_dict(), unpooled=self._unpooled)

    def to_input(self) -> RowsInput:
        """Return a module to replace this collection in its model, so that the model takes pooled rows instead of ids.

        ``torch.onnx.export`` then exports the dense part, with the pooled rows (batch, :attr:`width`) as an input.
        """
        return RowsInput(Router(self.door.spec, []).columns)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if not self.in_state_dict:
            return
        kinds = (f"table {one.name!r} {'grows' if one.grows else 'is on disk'}" for one in self.tables)
        apart = [why for why, one in zip(kinds, self.tables, strict=True) if one.grows or one.on_disk]
        if why := next(iter(apart), self._too_large()):
            raise ConfigError(
                f"state_dict: {why}; give EmbeddingBagCollection in_state_dict=False, and keep the rows with "
                "tables.save_checkpoint(folder) and tables.load_checkpoint(folder)"
            )
        state = read_state(self.door, sums=isinstance(self.door.spec.optimizer, RowwiseAdagrad))
        destination.update({prefix + key: one for key, one in state.items()})

    def _load_from_state_dict(  # torch calls it on each module
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        given = {key.removeprefix(prefix): one for key, one in state_dict.items() if key.startswith(prefix)}
        missing, unknown, wrong = misfits(self.tables if self.in_state_dict else (), given)
        missing_keys += [prefix + key for key in missing]
        unexpected_keys += [prefix + key for key in unknown]
        error_msgs += wrong
        if wrong or len(given) == len(unknown):
            return
        self.flush()  # earlier updates must not be applied on top of the loaded rows
        write_state(self.door, given)  # on every worker: rank 0 may be missing, and a writer may fail
        self.flush()  # no worker may train before the last one has written
        self.door.drop_ahead()  # prefetched rows are from before the load

    def save_checkpoint(self, folder: str | Path) -> None:
        """Make each server write its rows and Adagrad's sums to a folder on its machine, while training continues.

        Rows are then of different times, each one consistent; within ``session.evaluation_model()`` on all workers, all
        are of the same time. One worker calls it.

        Raises:
            CheckpointError: a server failed.
        """
        self.door.client.do(Say.SAVE, str(Path(folder).absolute()))
        Path(folder).mkdir(parents=True, exist_ok=True)  # the servers may be on another machine
        (Path(folder) / _MEASURED).write_text(self.door.measured().text, encoding="utf-8")

    def load_checkpoint(self, folder: str | Path) -> None:
        """Load a folder of :meth:`save_checkpoint`, on any number of servers. One worker calls it, before training.

        Raises:
            CheckpointError: rows are missing, or have another shape.
        """
        self.door.client.do(Say.LOAD, str(Path(folder).absolute()))

    def stats(self) -> TableStats:
        """Return the counts of the shards, and of this worker's ids."""
        return self.door.stats()

    def close(self) -> None:
        """Close the connection. Tables on servers remain; tables in this process are lost, and later calls raise."""
        self.door.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy for another thread that trains the same tables; raise :class:`ConfigError` for any other copy."""
        anchor = memo.get(id(self.anchor))
        # `uneven.run.threads.twins.twin` shares the memory of the model's parameters; other copies do not.
        if anchor is None or anchor.data_ptr() != self.anchor.data_ptr():
            self.__reduce__()  # always raises
        copied = type(self).__new__(type(self))
        nn.Module.__init__(copied)
        copied.door, copied.uneven_callback, copied.anchor = self.door, self.uneven_callback, anchor
        copied.in_state_dict, copied.training = self.in_state_dict, self.training
        memo[id(self)] = copied
        return copied

    def __reduce__(self) -> NoReturn:
        raise ConfigError(
            f"{type(self).__name__}: its rows are on servers, so copy and pickle cannot copy them; copy the dense "
            f"layers alone, or load model.state_dict() into a model with a new collection"
        )

    def extra_repr(self) -> str:
        return ", ".join(
            f"{one.name}: {'up to ' if one.grows else ''}{one.held:,} × {one.embedding_dim}" for one in self.tables
        )


class EmbeddingCollection(EmbeddingBagCollection):
    """The same tables without pooling: one row per id. All rows travel, so longer bags cost proportionally more.

    The arguments are those of :class:`EmbeddingBagCollection`.
    """

    _unpooled = True

    def forward(self, ids: Any) -> UnpooledFeatures:  # type: ignore[override]
        """Return feature → rows of its ids, bag by bag, shape (ids, dim); for ids of shape (batch, features, n),
        (batch, n, dim). They are sequences, too: see :class:`UnpooledFeatures`.

        Raises:
            DataError: the ids are invalid.
            PeerError: a shard does not answer.
        """
        values, asked = self._values(ids)
        return UnpooledFeatures(values, asked.routed.ids, self.door.router, even=getattr(ids, "ndim", 0) == 3)


def _measured(folder: Path) -> MeasuredTables:
    try:
        return MeasuredTables.read((folder / _MEASURED).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"placed_by={str(folder)!r}: {reason(error)}; give a folder of save_checkpoint()") from error


class _Given(torch.autograd.Function):
    """An identity whose backward pass sends the gradient to the shards."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, values: Tensor, asked: AskedRows, door: TableAccess) -> Tensor:
        ctx.asked, ctx.door, ctx.zero = asked, door, torch.zeros_like(anchor)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.door.give(ctx.asked, gradient.contiguous().float().numpy())
        return ctx.zero, None, None, None
