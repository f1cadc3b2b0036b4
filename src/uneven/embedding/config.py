"""What tables there are, and how they learn. Pure.

The names are TorchRec's where they mean the same; its ``EmbeddingBagConfig`` is read by its shape.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from uneven.errors import ConfigError

MOST_ROWS = 2**31 - 1
"""The most rows of one shard: ids travel in 32 bits."""
MOST_DIM = 1 << 14
_MOST_FLOAT32 = (2 - 2**-23) * 2.0**127
_POOLINGS = ("sum", "mean")
_EVICTIONS = ("age", "count")


@dataclass(frozen=True, slots=True)
class RowwiseAdagrad:
    """Adagrad with one sum a row: G += mean(g²), row −= lr · g / (√G + eps).

    The rule of FBGEMM's ``EXACT_ROWWISE_ADAGRAD``: g is the sum of all gradients that a row gets in a batch.

    Attributes:
        initial_accumulator_value: G of a row that begins, as ``torch.optim.Adagrad`` calls it. With 0 the first step of
            a row is about lr · √dim long, however small its gradient is.

    Raises:
        ConfigError: a number out of range.
    """

    lr: float = 0.05
    eps: float = 1e-8
    initial_accumulator_value: float = 0.0

    def __post_init__(self) -> None:
        _positive("RowwiseAdagrad", lr=self.lr, eps=self.eps)
        first = self.initial_accumulator_value
        if not (isinstance(first, int | float) and 0 <= first <= _MOST_FLOAT32):
            raise ConfigError(f"RowwiseAdagrad(initial_accumulator_value={first!r}): give a finite float32, 0 or more")


@dataclass(frozen=True, slots=True)
class SGD:
    """row −= lr · g.

    Raises:
        ConfigError: a number out of range.
    """

    lr: float = 0.05

    def __post_init__(self) -> None:
        _positive("SGD", lr=self.lr)


RowOptimizer = RowwiseAdagrad | SGD
_OPTIMIZERS: dict[str, type[RowwiseAdagrad] | type[SGD]] = {"adagrad": RowwiseAdagrad, "sgd": SGD}


@dataclass(frozen=True, slots=True)
class Table:
    """One embedding table.

    Attributes:
        name: in messages, checkpoints and state dicts.
        rows: how many; ids are 0 to rows − 1. None: a row for each id that comes, whatever number it is.
        dim: numbers in a row.
        features: that look rows up in it; by default one of the table's name.
        pooling: "sum" or "mean" of the rows of a bag.
        scale: rows begin uniformly between −scale and scale; by default 1 / √rows, as DLRM's do.
        modulo: take ids modulo ``rows``; ``stats().sharing`` says how many then share a row.
        most_rows: of a table that grows: that there may be at once. Memory is used as rows come.
        admit: of one that grows: an id gets its row when it has been seen so often; or, below 1, with this probability
            at each sighting. All that have none share one.
        evict: of one that grows: who makes room, those looked up least lately ("age") or least often ("count").

    Raises:
        ConfigError: a value that cannot be, naming it.
    """

    name: str
    rows: int | None
    dim: int
    features: tuple[str, ...] = ()
    pooling: str = "sum"
    scale: float | None = None
    modulo: bool = False
    most_rows: int = 1 << 20
    admit: float = 1
    evict: str = "age"

    def __post_init__(self) -> None:
        if not self.name or not all(one.isalnum() or one in "_-+" for one in self.name):
            raise ConfigError(f"Table({self.name!r}): a name has letters, digits, _, - and +; it names a file")
        many = "most_rows" if self.rows is None else "rows"
        for what, value, most in ((many, self.held, MOST_ROWS - 1), ("dim", self.dim, MOST_DIM)):
            if type(value) is not int or not 1 <= value <= most:
                raise ConfigError(f"Table({self.name!r}, {what}={value!r}): give a whole number from 1 to {most:,}")
        if self.pooling not in _POOLINGS:
            raise ConfigError(f"Table({self.name!r}, pooling={self.pooling!r}): it is 'sum' or 'mean'")
        if self.scale is not None and not (math.isfinite(self.scale) and self.scale >= 0):
            raise ConfigError(f"Table({self.name!r}, scale={self.scale!r}): give a number, 0 or more")
        if isinstance(self.features, str):
            raise ConfigError(f"Table({self.name!r}, features={self.features!r}): give a list of names")
        if self.evict not in _EVICTIONS:
            raise ConfigError(f"Table({self.name!r}, evict={self.evict!r}): it is 'age' or 'count'")
        if not (0 < self.admit < 1 or self.admit in range(1, 256)):
            raise ConfigError(f"Table({self.name!r}, admit={self.admit!r}): give sightings, 1 to 255, or a probability")
        if self.modulo and self.rows is None:
            raise ConfigError(f"Table({self.name!r}, rows=None, modulo=True): give one of the two")
        object.__setattr__(self, "features", tuple(self.features) or (self.name,))

    @property
    def grows(self) -> bool:
        """Whether rows are made as ids come."""
        return self.rows is None

    @property
    def held(self) -> int:
        """Rows that there are, or may be at most."""
        return self.most_rows if self.rows is None else self.rows

    @property
    def spread(self) -> float:
        """See ``scale``."""
        return 1 / math.sqrt(self.held) if self.scale is None else self.scale


@dataclass(frozen=True, slots=True)
class TableSpec:
    """All tables of a model and what is common to them; what a shard is told.

    Attributes:
        save_every_s: how often a shard saves its rows, to start again from; None for never.

    Raises:
        ConfigError: no table, or a name or a feature that two have; or a time that cannot be.
    """

    tables: tuple[Table, ...]
    optimizer: RowOptimizer
    seed: int = 0
    save_every_s: float | None = None

    def __post_init__(self) -> None:
        if not self.tables:
            raise ConfigError("an EmbeddingBagCollection needs a Table, and got none")
        if self.save_every_s is not None:
            _positive("EmbeddingBagCollection", save_every_s=self.save_every_s)
        for what, found in (("table", [one.name for one in self.tables]), ("feature", list(self.features))):
            if twice := sorted({one for one in found if found.count(one) > 1}):
                raise ConfigError(f"two tables have the {what} {twice[0]!r}; each has names of its own")

    @property
    def features(self) -> tuple[str, ...]:
        """The features of all tables, in their order."""
        return tuple(feature for one in self.tables for feature in one.features)

    @property
    def text(self) -> str:
        """It, as JSON."""
        kind = next(name for name, one in _OPTIMIZERS.items() if isinstance(self.optimizer, one))
        plain = {"tables": [asdict(one) for one in self.tables], "seed": self.seed, "save_every_s": self.save_every_s}
        values = asdict(self.optimizer)
        if not values.get("initial_accumulator_value", 1):
            del values["initial_accumulator_value"]  # 0 is what a text means that does not say it, as older ones do not
        return json.dumps({**plain, "optimizer": [kind, values]}, sort_keys=True)

    @property
    def fingerprint(self) -> int:
        """The same for the same tables; 32 bits."""
        return zlib.crc32(self.text.encode())

    @classmethod
    def read(cls, text: str) -> TableSpec:
        """Inverse of :attr:`text`.

        Raises:
            ConfigError: it is none.
        """
        try:
            plain = json.loads(text)
            kind, values = plain["optimizer"]
            tables = tuple(Table(**{**one, "features": tuple(one["features"])}) for one in plain["tables"])
            return cls(tables, _OPTIMIZERS[kind](**values), int(plain["seed"]), plain["save_every_s"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:  # JSON of another shape
            raise ConfigError(f"no description of tables: {error!r}") from error


def tables_of(given: Iterable[Any]) -> tuple[Table, ...]:
    """Tables, and whatever describes one as TorchRec's ``EmbeddingBagConfig`` does.

    Raises:
        ConfigError: something is neither.
    """
    return tuple(one if isinstance(one, Table) else _as_table(one) for one in given)


def _as_table(given: Any) -> Table:
    try:
        features: Sequence[str] = given.feature_names
        pooling = getattr(given.pooling, "value", given.pooling)
        return Table(given.name, given.num_embeddings, given.embedding_dim, tuple(features), str(pooling).lower())
    except AttributeError as error:
        raise ConfigError(f"{given!r} is no Table: {error}") from error


def _positive(what: str, **values: float) -> None:
    for name, value in values.items():
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise ConfigError(f"{what}({name}={value!r}): give a number above 0")
