"""The tables and their optimizers.

Names follow TorchRec, whose configurations are accepted by duck typing; fields without an equivalent raise ConfigError.
"""

import inspect
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from typing import Any

from uneven.errors import ConfigError

MOST_ROWS = 2**31 - 1  # of one shard: row numbers travel as int32
MOST_DIM = 1 << 14
_MOST_FLOAT32 = (2 - 2**-23) * 2.0**127
DTYPES = ("float32", "float16", "int8")
_POOLINGS = ("sum", "mean")
_EVICTIONS = ("age", "count")
_UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


@dataclass(frozen=True, slots=True)
class RowwiseAdagrad:
    """Adagrad with one sum per row: G += mean(g²), row −= lr · g / (√G + eps).

    This is FBGEMM's ``EXACT_ROWWISE_ADAGRAD``: g is the sum of all gradients of a row in a batch.

    Attributes:
        initial_accumulator_value: G of a new row, as in ``torch.optim.Adagrad``. With 0, the first step of a row has
            length of about lr · √dim, however small its gradient is.

    Raises:
        ConfigError: a number is out of range.
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
    """Plain gradient descent: row −= lr · g.

    Raises:
        ConfigError: a number is out of range.
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
        num_embeddings: number of rows; ids are 0 to num_embeddings − 1. With None the table grows, and an id may be any
            int64.
        embedding_dim: numbers in a row.
        name: used in messages, checkpoints and state dicts.
        feature_names: names of the features that look up this table; by default one with the table's name.
        crossed: names of at least two features whose ids are combined: each combination of their ids in a sample is
            hashed (splitmix64) to an id of this table's only feature, and taken modulo ``num_embeddings``.
        dtype: of the rows on the servers: "float32", "float16", or "int8" with one float32 scale for each row. Updates
            are computed in float32 and rounded at random, so small steps count on average; Adagrad's sums are float32.
        pooling: "sum" or "mean" of the rows of a bag.
        scale: rows are initialized uniformly in [−scale, scale], or between two given numbers; by default
            1 / √num_embeddings, as in DLRM.
        modulo: take ids modulo ``num_embeddings``; ``stats().sharing`` reports how many ids then share a row.
        most_rows: maximum number of rows of a growing table. Memory is allocated as rows are added.
        admit: for a growing table: an id gets a row after this number of lookups; or, below 1, with this probability at
            each lookup. All ids without a row share one.
        no_id: an id that means "no id", for example 0 in padded bags or −1: it has no row, and a mean does not count
            it.
        evict: for a growing table: evict the rows looked up least recently ("age") or least often ("count").
        memory: keep the rows on disk, and at most this part of them in memory: bytes, or a text as "2GB". It counts for
            the whole table; servers divide it as they divide the rows.
        path: absolute path of a folder for the rows on disk, on each server; by default in the run directory.

    Raises:
        ConfigError: a value is invalid; the message names it.
    """

    num_embeddings: int | None
    embedding_dim: int
    name: str
    feature_names: tuple[str, ...] = ()
    pooling: str = "sum"
    scale: float | tuple[float, float] | None = None
    modulo: bool = False
    most_rows: int = 1 << 20
    admit: float = 1
    evict: str = "age"
    no_id: int | None = None
    memory: int | str | None = None
    path: str | None = None
    crossed: tuple[str, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not self.name or not all(one.isalnum() or one in "_-+" for one in self.name):
            raise ConfigError(f"Table({self.name!r}): a name has letters, digits, _, - and +; it names a file")
        for what in (
            "num_embeddings",
            "embedding_dim",
            "most_rows",
            "no_id",
            "memory",
        ):  # JSON cannot serialize the integers of NumPy or pandas
            if isinstance(value := getattr(self, what), Integral) and not isinstance(value, bool):
                object.__setattr__(self, what, int(value))
        many = "most_rows" if self.grows else "num_embeddings"
        dim = ("embedding_dim", self.embedding_dim, MOST_DIM)
        for what, value, most in ((many, self.held, MOST_ROWS - 1), dim):
            if type(value) is not int or not 1 <= value <= most:
                raise ConfigError(f"Table({self.name!r}, {what}={value!r}): give a whole number from 1 to {most:,}")
        if self.pooling not in _POOLINGS:
            others = "for others, pool the rows of an EmbeddingCollection in the model"
            raise ConfigError(f"Table({self.name!r}, pooling={self.pooling!r}): it is 'sum' or 'mean'; {others}")
        try:
            low, high = (float(one) for one in self.spread)
        except (TypeError, ValueError):  # not numbers, or not two of them
            low = high = math.nan
        if not (-_MOST_FLOAT32 <= low <= high <= _MOST_FLOAT32 and high - low <= _MOST_FLOAT32):
            raise ConfigError(f"Table({self.name!r}, scale={self.scale!r}): give a number, 0 or more, or (least, most)")
        if not isinstance(self.scale, int | float | None):
            object.__setattr__(self, "scale", (low, high) if isinstance(self.scale, Sequence) else high)
        if not (self.no_id is None or (type(self.no_id) is int and -(2**63) <= self.no_id < 2**63)):
            raise ConfigError(f"Table({self.name!r}, no_id={self.no_id!r}): give a whole number of 64 bits")
        if isinstance(self.feature_names, str):
            raise ConfigError(f"Table({self.name!r}, feature_names={self.feature_names!r}): give a list of names")
        if self.dtype not in DTYPES:
            raise ConfigError(f"Table({self.name!r}, dtype={self.dtype!r}): it is one of {', '.join(DTYPES)}")
        if self.evict not in _EVICTIONS:
            raise ConfigError(f"Table({self.name!r}, evict={self.evict!r}): it is 'age' or 'count'")
        if not (0 < self.admit < 1 or self.admit in range(1, 256)):
            raise ConfigError(f"Table({self.name!r}, admit={self.admit!r}): give sightings, 1 to 255, or a probability")
        if self.modulo and self.grows:
            raise ConfigError(f"Table({self.name!r}, num_embeddings=None, modulo=True): give one of the two")
        if self.on_disk and self.grows:
            instead = "give num_embeddings=…, and modulo=True for ids of any size"
            raise ConfigError(f"Table({self.name!r}, num_embeddings=None, memory={self.memory!r}): {instead}")
        if self.on_disk and self.dtype != "float32":
            raise ConfigError(f"Table({self.name!r}, memory=…, dtype={self.dtype!r}): rows on disk are float32")
        if self.on_disk and self.memory_bytes < 1:
            raise ConfigError(
                f"Table({self.name!r}, memory={self.memory!r}): give bytes, or a text as '500MB' or '2GB'"
            )
        if self.path is not None:
            object.__setattr__(self, "path", str(self.path))  # of a pathlib.Path
            if not (self.on_disk and self.path.startswith("/")):
                instead = "give an absolute path, with memory=… for the part of the rows in memory"
                raise ConfigError(f"Table({self.name!r}, path={self.path!r}): {instead}")
        object.__setattr__(self, "feature_names", tuple(self.feature_names) or (self.name,))
        if self.crossed:
            several = isinstance(self.crossed, Sequence) and len(self.crossed) > 1
            if not several or isinstance(self.crossed, str) or len(self.feature_names) > 1:
                raise ConfigError(
                    f"Table({self.name!r}, crossed={self.crossed!r}, feature_names={self.feature_names}): cross two "
                    f"features or more, into one feature"
                )
            object.__setattr__(self, "crossed", tuple(self.crossed))
            object.__setattr__(self, "modulo", not self.grows)

    @property
    def grows(self) -> bool:
        """True if rows are created as ids arrive."""
        return self.num_embeddings is None

    @property
    def held(self) -> int:
        """The number of rows; of a growing table, the maximum."""
        return self.most_rows if self.num_embeddings is None else self.num_embeddings

    @property
    def on_disk(self) -> bool:
        """True if the rows are on disk, and a part of them in memory."""
        return self.memory is not None

    @property
    def memory_bytes(self) -> int:
        """The bytes that ``memory`` names; 0 if it is None or cannot be read."""
        text = str(self.memory).strip()
        unit = _UNITS.get(text[-2:])
        try:
            return int(float(text[:-2]) * unit if unit else float(text))
        except (ValueError, OverflowError):
            return 0

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the largest initial value of a new row's numbers."""
        if isinstance(self.scale, Sequence):  # a spec that was read from JSON has a list
            return self.scale
        most = 1 / math.sqrt(self.held) if self.scale is None else self.scale
        return -most, most


@dataclass(frozen=True, slots=True)
class TableSpec:
    """All tables of a model and their common settings, as a worker sends them to a shard."""

    tables: tuple[Table, ...]
    optimizer: RowOptimizer
    seed: int = 0
    save_every_s: float | None = None  # interval of a shard's automatic saves, for restarts; None for never

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
        """The features of all tables, in order; a feature of several tables is listed once per table."""
        return tuple(feature for one in self.tables for feature in one.feature_names)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of :attr:`features` in results, as in TorchRec: ``feature@table`` if several tables share it."""
        pairs = [(feature, one.name) for one in self.tables for feature in one.feature_names]
        return tuple(one if self.features.count(one) == 1 else f"{one}@{table}" for one, table in pairs)

    @property
    def width(self) -> int:
        """The sum of the dims of all features."""
        return sum(one.embedding_dim * len(one.feature_names) for one in self.tables)

    @property
    def first_sum(self) -> float:
        """Adagrad's initial sum of a row."""
        return self.optimizer.initial_accumulator_value if isinstance(self.optimizer, RowwiseAdagrad) else 0.0

    @property
    def text(self) -> str:
        kind = next(name for name, one in _OPTIMIZERS.items() if isinstance(self.optimizer, one))
        tables = [{_SAVED_AS.get(key, key): value for key, value in asdict(one).items()} for one in self.tables]
        for one in tables:  # older specs lack these keys, and checkpoints are compared with them as text
            for key in [key for key in _ADDED if one[key] == Table.__dataclass_fields__[key].default]:
                del one[key]
        plain = {"tables": tables, "seed": self.seed, "save_every_s": self.save_every_s}
        values = asdict(self.optimizer)
        if not values.get("initial_accumulator_value", 1):
            del values["initial_accumulator_value"]  # older specs lack the key, which means 0
        return json.dumps({**plain, "optimizer": [kind, values]}, sort_keys=True)

    @property
    def fingerprint(self) -> int:
        return zlib.crc32(self.text.encode())

    @classmethod
    def read(cls, text: str) -> "TableSpec":
        """Parse :attr:`text`; raise :class:`ConfigError` if it is not a table specification."""
        try:
            plain = json.loads(text)
            kind, values = plain["optimizer"]
            names = {saved: name for name, saved in _SAVED_AS.items()}
            known = [{names.get(key, key): value for key, value in one.items()} for one in plain["tables"]]
            tables = tuple(
                Table(**{**one, "feature_names": tuple(one["feature_names"]), "crossed": tuple(one.get("crossed", ()))})
                for one in known
            )
            return cls(tables, _OPTIMIZERS[kind](**values), int(plain["seed"]), plain["save_every_s"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ConfigError(f"no description of tables: {error!r}") from error


_SAVED_AS = {"num_embeddings": "rows", "embedding_dim": "dim", "feature_names": "features"}
"""Fields of a table → their names in saved tables, which are compared with the specification as text."""
_ADDED = ("no_id", "memory", "path", "crossed", "dtype")
_NEEDED = ("name", "num_embeddings", "embedding_dim", "feature_names", "pooling")
_KNOWN = {*_NEEDED, "data_type", "init_fn", "weight_init_min", "weight_init_max"}
_DATA_TYPES = {"fp32": "float32", "float32": "float32", "torch.float32": "float32", "fp16": "float16", "int8": "int8"}
_BEGINS: dict[str, Callable[..., tuple[float, float]]] = {
    "torch.nn.init.uniform_": lambda a=0.0, b=1.0: (a, b),
    "torch.nn.init.constant_": lambda val: (val, val),
    "torch.nn.init.zeros_": lambda: (0.0, 0.0),
    "torch.nn.init.ones_": lambda: (1.0, 1.0),
}
"""TorchRec initializers that ``Table.scale`` can express: function name → (least, largest) from its arguments."""
_INSTEAD = {
    "data_type": "rows are float32, float16 or int8; EmbeddingBagCollection(…, wire='bfloat16') halves the bytes sent",
    "init_fn": "give Table(scale=(least, most)), or call tables.from_state_dict(…) on one worker before the training",
    "is_weighted": "leave it out, weights that come with the ids always count",
    "use_virtual_table": "give Table(num_embeddings=None, most_rows=…), which grows",
    "virtual_table_eviction_policy": "give Table(num_embeddings=None, evict=…)",
}


def tables_of(given: Any, *, pooled: bool = True) -> tuple[Table, ...]:
    """Return tables; convert TorchRec's configurations (of bags if ``pooled``); raise ConfigError for others."""
    if not isinstance(given, Iterable):
        raise ConfigError(f"tables of type {type(given).__name__}: give a list of them")
    return tuple(one if isinstance(one, Table) else _as_table(one, pooled) for one in given)


def _as_table(given: Any, pooled: bool) -> Table:
    kind = type(given).__name__
    missing = [one for one in _NEEDED[: 4 + pooled] if not hasattr(given, one)]
    if missing == ["pooling"]:
        raise ConfigError(f"{kind} {given.name!r} has no pooling: give it to EmbeddingCollection, or set a pooling")
    if missing or callable(given):  # nn.EmbeddingBag has further settings, which no table has
        raise ConfigError(
            f"{given!r} is not a table: give Table(num_embeddings, embedding_dim, name, feature_names=[…], pooling=…, "
            f"no_id=padding_idx) or TorchRec's EmbeddingBagConfig; no table has max_norm or scale_grad_by_freq"
        )

    def refuse(name: str) -> ConfigError:
        instead = _INSTEAD.get(name, "tables do not support it; leave it out")
        return ConfigError(f"{kind} {given.name!r}: {name}={getattr(given, name)!r}: {instead}")

    for name in _ignored(given):
        raise refuse(name)
    given_dtype = getattr(given, "data_type", DTYPES[0])
    dtype = _DATA_TYPES.get(str(getattr(given_dtype, "value", given_dtype)).lower())
    if dtype is None:
        raise refuse("data_type")
    low, high = (getattr(given, f"weight_init_{end}", None) for end in ("min", "max"))
    pooling = given.pooling if pooled else "sum"
    table = Table(
        given.num_embeddings,
        given.embedding_dim,
        given.name,
        given.feature_names,
        str(getattr(pooling, "value", pooling)).lower(),
        dtype=dtype,
    )
    least, most = table.spread
    scale = (least if low is None else low, most if high is None else high)
    if (begin := getattr(given, "init_fn", None)) is not None:
        function = getattr(begin, "func", begin)  # unwrap functools.partial
        name = f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', '')}"
        try:
            scale = _BEGINS[name](*getattr(begin, "args", ()), **getattr(begin, "keywords", {}))
        except (KeyError, TypeError) as error:  # an unknown initializer, or arguments it does not take
            raise refuse("init_fn") from error
    return replace(table, scale=scale)


def _ignored(given: Any) -> Iterator[str]:
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
