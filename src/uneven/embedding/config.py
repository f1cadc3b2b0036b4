"""What tables there are, and how they learn. Pure.

The names are TorchRec's where they mean the same; its ``EmbeddingBagConfig`` and ``EmbeddingConfig`` are read by their
shape, and a field that would be ignored is refused.
"""

from __future__ import annotations

import inspect
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral
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
        scale: rows begin uniformly between −scale and scale, or from the first to the second of two numbers; by default
            1 / √rows, as DLRM's do.
        modulo: take ids modulo ``rows``; ``stats().sharing`` says how many then share a row.
        most_rows: of a table that grows: that there may be at once. Memory is used as rows come.
        admit: of one that grows: an id gets its row when it has been seen so often; or, below 1, with this probability
            at each sighting. All that have none share one.
        no_id: an id that stands for none, as 0 in padded bags or −1: it has no row, and a mean does not count it.
        evict: of one that grows: who makes room, those looked up least lately ("age") or least often ("count").

    Raises:
        ConfigError: a value that cannot be, naming it.
    """

    name: str
    rows: int | None
    dim: int
    features: tuple[str, ...] = ()
    pooling: str = "sum"
    scale: float | tuple[float, float] | None = None
    modulo: bool = False
    most_rows: int = 1 << 20
    admit: float = 1
    evict: str = "age"
    no_id: int | None = None

    def __post_init__(self) -> None:
        if not self.name or not all(one.isalnum() or one in "_-+" for one in self.name):
            raise ConfigError(f"Table({self.name!r}): a name has letters, digits, _, - and +; it names a file")
        for what in ("rows", "dim", "most_rows", "no_id"):  # of NumPy or pandas, whose numbers JSON does not know
            if isinstance(value := getattr(self, what), Integral) and not isinstance(value, bool):
                object.__setattr__(self, what, int(value))
        many = "most_rows" if self.rows is None else "rows"
        for what, value, most in ((many, self.held, MOST_ROWS - 1), ("dim", self.dim, MOST_DIM)):
            if type(value) is not int or not 1 <= value <= most:
                raise ConfigError(f"Table({self.name!r}, {what}={value!r}): give a whole number from 1 to {most:,}")
        if self.pooling not in _POOLINGS:
            others = "for others, pool the rows of an EmbeddingCollection in the model"
            raise ConfigError(f"Table({self.name!r}, pooling={self.pooling!r}): it is 'sum' or 'mean'; {others}")
        try:
            low, high = (float(one) for one in self.spread)
        except (TypeError, ValueError):  # other things, or not two
            low = high = math.nan
        if not (-_MOST_FLOAT32 <= low <= high <= _MOST_FLOAT32 and high - low <= _MOST_FLOAT32):
            raise ConfigError(f"Table({self.name!r}, scale={self.scale!r}): give a number, 0 or more, or (least, most)")
        if not isinstance(self.scale, int | float | None):
            object.__setattr__(self, "scale", (low, high) if isinstance(self.scale, Sequence) else high)
        if not (self.no_id is None or (type(self.no_id) is int and -(2**63) <= self.no_id < 2**63)):
            raise ConfigError(f"Table({self.name!r}, no_id={self.no_id!r}): give a whole number of 64 bits")
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
    def spread(self) -> tuple[float, float]:
        """Return the least and the most number of a row that begins."""
        if isinstance(self.scale, Sequence):  # a list in JSON
            return self.scale
        most = 1 / math.sqrt(self.held) if self.scale is None else self.scale
        return -most, most


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
        for what, found in (("tables", [one.name for one in self.tables]), ("features of a table", self.columns)):
            if twice := sorted({one for one in found if found.count(one) > 1}):
                raise ConfigError(f"two {what} have the name {twice[0]!r}: each needs another one")

    @property
    def features(self) -> tuple[str, ...]:
        """The features of all tables, in their order; one that several tables have comes several times."""
        return tuple(feature for one in self.tables for feature in one.features)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of :attr:`features` in the results; as in TorchRec, one of several tables is ``feature@table``."""
        pairs = [(feature, one.name) for one in self.tables for feature in one.features]
        return tuple(one if self.features.count(one) == 1 else f"{one}@{table}" for one, table in pairs)

    @property
    def text(self) -> str:
        """It, as JSON."""
        kind = next(name for name, one in _OPTIMIZERS.items() if isinstance(self.optimizer, one))
        tables = [asdict(one) for one in self.tables]
        for one in tables:
            if one["no_id"] is None:
                del one["no_id"]  # as older texts, with which what was saved is compared
        plain = {"tables": tables, "seed": self.seed, "save_every_s": self.save_every_s}
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


_NEEDED = ("name", "num_embeddings", "embedding_dim", "feature_names", "pooling")
_KNOWN = {*_NEEDED, "data_type", "init_fn", "weight_init_min", "weight_init_max"}
_FLOAT32 = ("fp32", "float32", "torch.float32")
_BEGINS: dict[str, Callable[..., tuple[float, float]]] = {
    "torch.nn.init.uniform_": lambda a=0.0, b=1.0: (a, b),
    "torch.nn.init.constant_": lambda val: (val, val),
    "torch.nn.init.zeros_": lambda: (0.0, 0.0),
    "torch.nn.init.ones_": lambda: (1.0, 1.0),
}
"""What a table's ``scale`` can say."""
_INSTEAD = {
    "data_type": "rows are float32; EmbeddingBagCollection(…, wire='bfloat16') halves what travels",
    "init_fn": "give Table(scale=(least, most)), or load rows with tables.load(…) on one worker before the training",
    "is_weighted": "leave it out, weights that come with the ids always count",
    "use_virtual_table": "give Table(rows=None, most_rows=…), which grows",
    "virtual_table_eviction_policy": "give Table(rows=None, evict=…)",
}


def tables_of(given: Any, *, pooled: bool = True) -> tuple[Table, ...]:
    """Return tables as they are, and those that an object describes as TorchRec's ``EmbeddingBagConfig`` does, or, if
    not ``pooled``, its ``EmbeddingConfig``.

    Raises:
        ConfigError: something is neither, or has a field that tables cannot honour.
    """
    if not isinstance(given, Iterable):
        raise ConfigError(f"tables of type {type(given).__name__}: give a list of them")
    return tuple(one if isinstance(one, Table) else _as_table(one, pooled) for one in given)


def _as_table(given: Any, pooled: bool) -> Table:
    kind = type(given).__name__
    missing = [one for one in _NEEDED[: 4 + pooled] if not hasattr(given, one)]
    if missing == ["pooling"]:
        raise ConfigError(f"{kind} {given.name!r} has no pooling: give it to EmbeddingCollection, or set a pooling")
    if missing or callable(given):  # a module has further settings
        raise ConfigError(
            f"{given!r} is not a table: give Table(name, rows, dim, features=[…], pooling='sum' or 'mean', "
            f"no_id=padding_idx) or TorchRec's EmbeddingBagConfig; no table has max_norm or scale_grad_by_freq"
        )

    def refuse(name: str) -> ConfigError:
        instead = _INSTEAD.get(name, "tables have nothing like it; leave it out")
        return ConfigError(f"{kind} {given.name!r}: {name}={getattr(given, name)!r}: {instead}")

    for name in _ignored(given):
        raise refuse(name)
    dtype = getattr(given, "data_type", _FLOAT32[0])
    if str(getattr(dtype, "value", dtype)).lower() not in _FLOAT32:
        raise refuse("data_type")
    low, high = (getattr(given, f"weight_init_{end}", None) for end in ("min", "max"))
    pooling = given.pooling if pooled else "sum"
    table = Table(given.name, given.num_embeddings, given.embedding_dim, given.feature_names,
                  str(getattr(pooling, "value", pooling)).lower())  # fmt: skip
    least, most = table.spread
    scale = (least if low is None else low, most if high is None else high)
    if (begin := getattr(given, "init_fn", None)) is not None:
        function = getattr(begin, "func", begin)  # of functools.partial
        name = f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', '')}"
        try:
            scale = _BEGINS[name](*getattr(begin, "args", ()), **getattr(begin, "keywords", {}))
        except (KeyError, TypeError) as error:  # another function, or further arguments
            raise refuse("init_fn") from error
    return replace(table, scale=scale)


def _ignored(given: Any) -> Iterator[str]:
    """Attributes of a foreign description that say something, and that nothing here reads."""
    own, declared = getattr(given, "__dict__", {}), getattr(given, "__dataclass_fields__", {})
    for name in sorted({*dir(given), *(given if isinstance(given, Mapping) else ())}):
        value = getattr(given, name, None)
        method = inspect.isroutine(value) and name not in own and name not in declared
        if not (name.startswith("_") or name in _KNOWN or method):
            default = declared[name].default if name in declared else None
            if repr(value) not in ("None", "False", "''", "[]", "()", "{}", repr(default)):
                yield name


def _positive(what: str, **values: float) -> None:
    for name, value in values.items():
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise ConfigError(f"{what}({name}={value!r}): give a number above 0")
