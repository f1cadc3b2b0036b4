"""Tables, ids and modules as users of TorchRec and ``torch.nn`` have them: right, or refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from brought import brought, refusal
from uneven.embedding import SGD, EmbeddingBagCollection, EmbeddingCollection, Table
from uneven.embedding.pure.config import TableSpec
from uneven.errors import ConfigError


@dataclass
class EmbeddingConfig:
    """With the fields and the defaults of TorchRec 1.9's, in its order."""

    num_embeddings: int = 1000
    embedding_dim: int = 8
    name: str = "t"
    data_type: Any = field(default_factory=lambda: SimpleNamespace(value="FP32"))
    feature_names: list[str] = field(default_factory=list)
    weight_init_max: float | None = None
    weight_init_min: float | None = None
    num_embeddings_post_pruning: int | None = None
    init_fn: Callable[[Tensor], Tensor | None] | None = None
    need_pos: bool = False
    input_dim: int | None = None
    total_num_buckets: int | None = None
    use_virtual_table: bool = False
    virtual_table_eviction_policy: Any = None
    enable_embedding_update: bool = False
    stash_weights: bool = False

    def __post_init__(self) -> None:
        most = math.sqrt(1 / self.num_embeddings)
        low = -most if self.weight_init_min is None else self.weight_init_min
        high = most if self.weight_init_max is None else self.weight_init_max
        self.init_fn = self.init_fn or partial(nn.init.uniform_, a=low, b=high)

    def num_features(self) -> int:
        return len(self.feature_names)


@dataclass
class EmbeddingBagConfig(EmbeddingConfig):
    """Likewise."""

    pooling: Any = field(default_factory=lambda: SimpleNamespace(value="SUM"))


class Keyed:
    """As a ``KeyedJaggedTensor`` answers whose features may have different numbers of bags."""

    def __init__(self, bags: dict[str, list[list[int]]], inverse: dict[str, list[int]] | None = None) -> None:
        self.bags, self.inverse = bags, inverse

    def keys(self) -> list[str]:
        return list(self.bags)

    def values(self) -> Tensor:
        return torch.tensor([one for bags in self.bags.values() for bag in bags for one in bag])

    def lengths(self) -> Tensor:
        return torch.tensor([len(bag) for bags in self.bags.values() for bag in bags])

    def weights_or_none(self) -> Tensor:
        return torch.full((len(self.values()),), 2.0)

    def stride_per_key(self) -> list[int]:
        return [len(bags) for bags in self.bags.values()]

    def inverse_indices_or_none(self) -> tuple[list[str], Tensor] | None:
        return None if self.inverse is None else (list(self.inverse), torch.tensor(list(self.inverse.values())))


@pytest.fixture
def made() -> Iterator[Callable[..., Any]]:
    opened: list[EmbeddingBagCollection] = []

    def make(tables: list[Any], kind: type = EmbeddingBagCollection, **more: Any) -> Any:
        opened.append(kind(tables, optimizer=SGD(lr=0.5), **more))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def weight(tables: EmbeddingBagCollection, name: str) -> Tensor:
    """The rows of a table as a parameter, to compare with."""
    return tables.to_state_dict()[f"embedding_bags.{name}.weight"].requires_grad_()


def step(out: Tensor, ours: EmbeddingBagCollection, theirs: dict[str, Tensor], expected: Tensor) -> None:
    """Compare the results, then the rows after a step on a loss that weighs each number differently."""
    assert torch.allclose(out, expected, atol=1e-6)
    for one in (out, expected):
        (one * torch.arange(one.numel()).view_as(one)).square().mean().backward()
    ours.flush()
    for name, rows in theirs.items():
        assert rows.grad is not None
        assert torch.allclose(weight(ours, name), rows - 0.5 * rows.grad, atol=1e-4), name


RANGES: list[tuple[str, dict[str, Any], tuple[float, float]]] = [
    ("no `init_fn`", {}, (-(1000**-0.5), 1000**-0.5)),
    ("`weight_init_min` and `weight_init_max`", {"weight_init_min": 0.5, "weight_init_max": 2.0}, (0.5, 2.0)),
    ("`weight_init_max` alone", {"weight_init_max": 3.0}, (-(1000**-0.5), 3.0)),
    ("`init_fn=partial(uniform_, a=…, b=…)`", {"init_fn": partial(nn.init.uniform_, a=1, b=2)}, (1.0, 2.0)),
    ("`init_fn` of `constant_`", {"init_fn": partial(nn.init.constant_, val=0.25)}, (0.25, 0.25)),
    ("`init_fn` of `zeros_`", {"init_fn": nn.init.zeros_}, (0.0, 0.0)),
]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [pytest.param(fields, wanted, marks=brought("tables", "TorchRec", f"`EmbeddingBagConfig` with {what}"))
     for what, fields, wanted in RANGES],
)  # fmt: skip
@pytest.mark.parametrize("shards", [1, 2])
def test_rows_begin_as_the_config_says(made: Any, fields: Any, wanted: tuple[float, float], shards: int) -> None:
    low, high = wanted
    ours = made([EmbeddingBagConfig(**fields)], shards=shards)
    assert TableSpec.read(ours.door.spec.text) == ours.door.spec, "as a server reads it"
    rows = weight(ours, "t")
    assert low - 1e-6 <= rows.min() <= low + (high - low) / 100
    assert high + 1e-6 >= rows.max() >= high - (high - low) / 100
    grown = made([Table(None, 8, "t", scale=wanted)], shards=shards)
    values = grown(torch.arange(500).unsqueeze(1)).values()
    assert low - 1e-6 <= values.min() <= low + (high - low) / 100
    assert high + 1e-6 >= values.max() >= high - (high - low) / 100


@brought("tables", "TorchRec", "`EmbeddingBagConfig` with `data_type` FP16 or INT8: `Table(dtype=…)`")
@pytest.mark.parametrize(("kind", "dtype"), [("FP32", "float32"), ("FP16", "float16"), ("INT8", "int8")])
def test_rows_have_the_type_that_the_config_says(made: Any, kind: str, dtype: str) -> None:
    assert made([EmbeddingBagConfig(data_type=SimpleNamespace(value=kind))]).tables[0].dtype == dtype


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "`init_fn` of another function",
        {"init_fn": partial(nn.init.normal_, std=0.1)},
        r"init_fn=.*tables\.from_state_dict",
    ),
    ("a custom `init_fn`", {"init_fn": lambda rows: rows.zero_()}, r"init_fn=.*tables\.from_state_dict"),
    ("`init_fn` with a generator", {"init_fn": partial(nn.init.uniform_, generator=torch.Generator())}, "init_fn="),
    ("`data_type` other than FP32, FP16 and INT8", {"data_type": SimpleNamespace(value="BF16")}, "data_type=.*float16"),
    ("`num_embeddings_post_pruning`", {"num_embeddings_post_pruning": 5}, "num_embeddings_post_pruning=5"),
    ("`need_pos`", {"need_pos": True}, "need_pos=True"),
    ("`input_dim`", {"input_dim": 7}, "input_dim=7"),
    ("`total_num_buckets`", {"total_num_buckets": 4}, "total_num_buckets=4"),
    ("`use_virtual_table`", {"use_virtual_table": True}, "use_virtual_table=True.*num_embeddings=None"),
    ("`virtual_table_eviction_policy`", {"virtual_table_eviction_policy": object()}, "eviction_policy=.*evict="),
    ("`enable_embedding_update`", {"enable_embedding_update": True}, "enable_embedding_update=True"),
    ("`stash_weights`", {"stash_weights": True}, "stash_weights=True"),
    ("`pooling=PoolingType.NONE`", {"pooling": SimpleNamespace(value="NONE")}, "pooling='none'.*EmbeddingCollection"),
    ("`feature_names` that is a string", {"feature_names": "ab"}, "feature_names='ab'.*list"),
]


@pytest.mark.parametrize(
    ("fields", "why"),
    [pytest.param(fields, why, marks=brought("tables", "TorchRec", f"`EmbeddingBagConfig` with {what}", refused=True))
     for what, fields, why in REFUSED],
)  # fmt: skip
def test_fields_that_tables_cannot_honour_are_refused(fields: dict[str, Any], why: str) -> None:
    with refusal(why):
        EmbeddingBagCollection([EmbeddingBagConfig(**fields)])


class Settings(dict[str, Any]):
    """A dictionary whose entries are attributes, as settings libraries have them."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


FIELDS: dict[str, Any] = {
    "name": "t",
    "num_embeddings": 9,
    "embedding_dim": 4,
    "feature_names": ["f"],
    "pooling": "sum",
}


class Named(nn.EmbeddingBag):
    name, feature_names, pooling = "t", ["f"], "sum"


OTHERS: list[tuple[str, str, Any, str]] = [
    ("PyTorch", "`nn.EmbeddingBag(padding_idx=…)` for a table", nn.EmbeddingBag(9, 4, padding_idx=0), "no_id=padding"),
    ("PyTorch", "`nn.EmbeddingBag(max_norm=…)` for a table", nn.EmbeddingBag(9, 4, max_norm=1.0), "max_norm"),
    ("PyTorch", "`nn.Embedding(scale_grad_by_freq=True)` for a table", nn.Embedding(9, 4, scale_grad_by_freq=True),
     "no table has max_norm or scale_grad_by_freq"),
    ("PyTorch", "`nn.EmbeddingBag` with TorchRec's names in addition", Named(9, 4), "is not a table"),
    ("TorchRec", "`EmbeddingConfig` in `EmbeddingBagCollection`", EmbeddingConfig(), "no pooling.*EmbeddingCollection"),
    ("TorchRec", "`EmbeddingTableConfig` with `is_weighted`", EmbeddingBagConfig(), "is_weighted=True"),
    ("HugeCTR", "`EmbeddingTableConfig`", SimpleNamespace(name="t", max_vocabulary_size=9, ev_size=4), "not a table"),
    ("any", "a description with an unknown field", SimpleNamespace(**FIELDS, max_norm=1), "max_norm=1"),
    ("any", "a dictionary with attributes and an unknown field", Settings(FIELDS, padding_idx=0), "padding_idx=0"),
]  # fmt: skip
OTHERS[5][2].is_weighted = True


@pytest.mark.parametrize(
    ("given", "why"),
    [pytest.param(given, why, marks=brought("tables", peer, what, refused=True)) for peer, what, given, why in OTHERS],
)
def test_what_is_not_a_table_is_refused(given: Any, why: str) -> None:
    with refusal(why):
        EmbeddingBagCollection([given])


@brought("tables", "TorchRec", "one `EmbeddingBagConfig` without a list", refused=True)
def test_a_table_without_a_list_is_refused() -> None:
    with refusal("type EmbeddingBagConfig: give a list"):
        EmbeddingBagCollection(EmbeddingBagConfig())  # type: ignore[arg-type]


SHARED = [
    Table(40, 4, "one", ["f", "g"]),
    Table(3000, 4, "two", ["f"], pooling="mean"),  # cut by rows where there are several shards
]
BAGS = {"f": [[1, 2], [], [7, 7, 39]], "g": [[3], [4, 0], [5]]}


def flat(bags: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Values and offsets."""
    values = torch.tensor([one for bag in bags for one in bag], dtype=torch.long)
    return values, torch.tensor([0, *(len(bag) for bag in bags[:-1])]).cumsum(0)


@brought("tables", "TorchRec", "one feature in two tables: `feature@table` in the keys of the result")
@pytest.mark.parametrize("shards", [1, 3])
def test_a_feature_of_two_tables_is_looked_up_in_both(made: Any, shards: int) -> None:
    ours = made(SHARED, shards=shards)
    rows = {name: weight(ours, name) for name in ("one", "two")}
    expected = torch.cat([
        embedding_bag(*_at(rows["one"], BAGS["f"]), mode="sum"),
        embedding_bag(*_at(rows["one"], BAGS["g"]), mode="sum"),
        embedding_bag(*_at(rows["two"], BAGS["f"]), mode="mean"),
    ], 1)  # fmt: skip
    out = ours({name: flat(bags) for name, bags in BAGS.items()})
    assert out.keys() == ["f@one", "g", "f@two"]
    assert out["f@two"].shape == (3, 4)
    step(out.values(), ours, rows, expected)
    even = torch.tensor([[1, 3], [2, 4]])
    assert torch.equal(ours(even)["f@two"], ours({"f": even[:, 0], "g": even[:, 1]})["f@two"])
    assert ours.door.measured().lookups.keys() == {"f", "g"}


def _at(rows: Tensor, bags: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    values, offsets = flat(bags)
    return values, rows, offsets


@pytest.mark.parametrize("kind", ["numbered", "grows", "modulo"])
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    ("pooling", "padding"),
    [pytest.param("sum", 0, marks=brought("tables", "PyTorch", "`padding_idx` of `nn.EmbeddingBag`: `Table(no_id=…)`")),
     pytest.param("mean", 0, marks=brought("tables", "PyTorch", "`padding_idx` under `mode=\"mean\"`: not counted")),
     pytest.param("mean", -1, marks=brought("tables", "HugeCTR", "−1 as \"no id\": `Table(no_id=-1)`"))],
)  # fmt: skip
def test_an_id_that_stands_for_none_has_no_row(made: Any, pooling: str, padding: int, shards: int, kind: str) -> None:
    table = Table(None if kind == "grows" else 40, 4, "t", pooling=pooling, no_id=padding, modulo=kind == "modulo")
    ours = made([table, Table(40, 4, "u")], shards=shards)
    ids = torch.tensor([[1, padding, 2], [padding, padding, padding], [5, 1, 7]])
    rows = ours({"t": torch.arange(40).unsqueeze(1), "u": torch.arange(40)})["t"].detach()
    begun, rows = rows.clone(), torch.cat([torch.zeros(1, 4), rows]).requires_grad_()  # and a row for padding
    expected = embedding_bag(torch.where(ids == padding, 0, ids + 1), rows, mode=pooling, padding_idx=0)
    out = ours({"t": ids, "u": torch.tensor([[1, 2, 3]] * 3)})["t"]
    assert torch.allclose(out, expected, atol=1e-6)
    for one in (out, expected):
        (one * torch.arange(12).view(3, 4)).square().mean().backward()
    ours.flush()
    assert rows.grad is not None
    now = ours({"t": torch.arange(1, 40).unsqueeze(1), "u": torch.arange(1, 40)})["t"]
    assert torch.allclose(now, begun[1:] - 0.5 * rows.grad[2:], atol=1e-5)
    weighted = ours({"t": (ids.reshape(-1), torch.tensor([0, 3, 6]), torch.arange(9.0)), "u": torch.ones(3, dtype=int)})
    plain = ours({"t": (torch.tensor([1, 2, 5, 1, 7]), torch.tensor([0, 2, 2]), torch.tensor([0.0, 2, 6, 7, 8])),
                  "u": torch.ones(3, dtype=int)})  # fmt: skip
    assert torch.allclose(weighted["t"], plain["t"])


@brought("tables", "PyTorch", "`padding_idx` of `nn.Embedding`: `Table(no_id=…)` in `EmbeddingCollection`")
def test_without_pooling_an_id_that_stands_for_none_has_zeros(made: Any) -> None:
    ours = made([Table(9, 4, "t", no_id=0)], EmbeddingCollection)
    rows = weight(ours, "t")
    ids = torch.tensor([[[1, 0, 3]], [[0, 0, 8]]])
    masked = nn.functional.embedding(ids[:, 0], torch.cat([torch.zeros(1, 4), rows[1:]]), padding_idx=0)
    step(ours(ids)["t"], ours, {"t": rows}, masked)


@pytest.mark.parametrize("table", [Table(9, 4, "t"), Table(9, 4, "t", modulo=True), Table(None, 4, "t")])
@brought("tables", "HugeCTR", '−1 as "no id", without `no_id` in the table', refused=True)
def test_minus_one_is_no_id_that_has_a_row(made: Any, table: Table) -> None:
    with refusal(r"'t' has the id -1: .*Table\(no_id=-1\)"):
        made([table])(torch.tensor([[3], [-1]]))


@brought("tables", "PyTorch", '`nn.EmbeddingBag(mode="max")`: rows of an `EmbeddingCollection`, pooled in the model')
@pytest.mark.parametrize("shards", [1, 3])
def test_the_maximum_of_rows_is_pooled_in_the_model(made: Any, shards: int) -> None:
    with pytest.raises(ConfigError, match=r"pooling='max'\): .* pool the rows of an EmbeddingCollection"):
        Table(40, 4, "t", pooling="max")
    ours = made([Table(40, 4, "t")], EmbeddingCollection, shards=shards)
    rows = weight(ours, "t")
    values, offsets = flat(BAGS["f"])
    found = embedding_bag(torch.arange(len(values)), ours({"t": (values, offsets)})["t"], offsets, mode="max")
    step(found, ours, {"t": rows}, embedding_bag(values, rows, offsets, mode="max"))


@brought("tables", "TorchRec", "`EmbeddingConfig` in `EmbeddingCollection`, weights of the ids are ignored")
def test_configs_without_pooling_give_a_row_for_each_id(made: Any) -> None:
    configs = [EmbeddingConfig(40, 4, "one", feature_names=["f", "g"]),
               EmbeddingConfig(9, 4, "two", feature_names=["g"])]  # fmt: skip
    ours = made(configs, EmbeddingCollection, shards=2)
    out = ours(Keyed(BAGS))
    assert list(out) == ["f", "g@one", "g@two"]
    rows = {name: weight(ours, name) for name in ("one", "two")}
    f, g = flat(BAGS["f"])[0], flat(BAGS["g"])[0]
    step(torch.cat(list(out.values())), ours, rows, torch.cat([rows["one"][f], rows["one"][g], rows["two"][g]]))


VARIED = {"f": [[1, 2], [7, 7, 39]], "g": [[3], [4, 0], []]}
INVERSE = {"g": [0, 1, 2, 0], "f": [1, 0, 0, 1]}


@brought("tables", "TorchRec", "`KeyedJaggedTensor` with a batch per feature and `inverse_indices`")
@pytest.mark.parametrize("shards", [1, 3])
def test_features_with_bags_that_several_samples_have(made: Any, shards: int) -> None:
    ours, plain = made(SHARED, shards=shards), made(SHARED, shards=shards)
    full = {name: [VARIED[name][at] for at in INVERSE[name]] for name in VARIED}
    out, expected = ours(Keyed(VARIED, INVERSE)).values(), plain(Keyed(full)).values()
    assert torch.equal(out, expected)
    for one in (out, expected):
        (one * torch.arange(one.numel()).view_as(one)).square().mean().backward()
    for one in (ours, plain):
        one.flush()
    assert all(torch.allclose(rows, weight(plain, name), atol=1e-6) for name, rows in
               {name: weight(ours, name) for name in ("one", "two")}.items())  # fmt: skip


@brought(
    "tables",
    "TorchRec",
    "`KeyedJaggedTensor` with a batch per feature, without `inverse_indices`",
    refused=True,
)
def test_features_with_other_numbers_of_bags_are_refused(made: Any) -> None:
    with refusal(r"have \[2, 3\] bags: .*inverse_indices"):
        made(SHARED)(Keyed(VARIED))
    broken = Keyed(VARIED)
    broken.stride_per_key = lambda: [2, 2]  # type: ignore[method-assign]
    with refusal("5 lengths, 8 in sum, for 4 bags"):
        made(SHARED)(broken)


@brought("tables", "TorchRec", "`KeyedJaggedTensor` with a batch per feature in `EmbeddingCollection`")
def test_without_pooling_features_may_have_other_numbers_of_bags(made: Any) -> None:
    ours = made(SHARED, EmbeddingCollection, shards=2)
    out, rows = ours(Keyed(VARIED)), {name: weight(ours, name) for name in ("one", "two")}
    f, g = flat(VARIED["f"])[0], flat(VARIED["g"])[0]
    step(torch.cat(list(out.values())), ours, rows, torch.cat([rows["one"][f], rows["one"][g], rows["two"][f]]))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@brought("tables", "PyTorch", "`torch.nested` tensors of ids")
def test_nested_tensors_are_bags(made: Any) -> None:
    ours = made(SHARED)
    expected = ours({name: flat(bags) for name, bags in BAGS.items()}).values()
    for layout in (torch.jagged, torch.strided):
        bags = {name: torch.nested.nested_tensor([torch.tensor(bag, dtype=torch.long) for bag in each], layout=layout)
                for name, each in BAGS.items()}  # fmt: skip
        assert torch.equal(ours(bags).values(), expected)


@brought("tables", "pandas", "NumPy integers: `Table(num_embeddings=frame[column].max() + 1, …)`")
def test_numbers_of_numpy_describe_a_table() -> None:
    given = Table(np.int64(9), np.int32(4), "t", scale=np.float32(0.5), no_id=np.int64(-1))
    plain = Table(9, 4, "t", scale=0.5, no_id=-1)
    texts = [TableSpec((one,), SGD()).text for one in (given, plain)]
    assert given == plain
    assert texts[0] == texts[1]


@pytest.mark.parametrize("bags", [
    [torch.tensor([1, 2]), torch.tensor([0])], [[1, 2], [0, 1]], [[1, 2], [0, 1], [0.5, 0.5]],
    (torch.ones(2, 2).long(), torch.tensor([0, 1])),
    torch.nested.nested_tensor([torch.ones(2, 2).long()] * 2, layout=torch.jagged),
])  # fmt: skip
@brought("tables", "PyTorch", "a list of bags, one for each sample", refused=True)
def test_a_list_of_bags_is_refused(made: Any, bags: Any) -> None:
    with refusal(r"feature 'f'( has ids of type .* flat tensors|: ids have layout)"):
        made(SHARED)({"f": bags, "g": bags})


@pytest.mark.parametrize(
    ("ids", "why"),
    [pytest.param(torch.ones(3, 2).long().to_sparse(), "layout torch.sparse_coo",
                  marks=brought("tables", "PyTorch", "sparse tensors of ids", refused=True)),
     pytest.param(torch.ones(3, 2, dtype=torch.bool), "type torch.bool",
                  marks=brought("tables", "PyTorch", "bool ids", refused=True))],
)  # fmt: skip
def test_ids_that_are_no_numbers_of_rows_are_refused(made: Any, ids: Tensor, why: str) -> None:
    with refusal(why):
        made(SHARED)(ids)
    with refusal(why):
        made(SHARED)({"f": ids[:, 0], "g": ids[:, 0]})
