"""A trainer with tables on shards learns as one process with ``nn.EmbeddingBag``; the kernels are the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from uneven.embedding import SGD, EmbeddingBagCollection, EmbeddingCollection, RowwiseAdagrad, Table
from uneven.embedding.kernels import TorchKernels, kernels
from uneven.embedding.pure import row_optimizers as reference
from uneven.embedding.pure.row_optimizers import Bags
from uneven.errors import ConfigError, DataError
from uneven.run.threads.twins import twin

TABLES = [
    Table(40, 8, "shared", ["left", "right"]),
    Table(3000, 8, "large"),  # cut by rows where there are several shards
    Table(30, 4, "mean", pooling="mean"),
]
FEATURES = ("left", "right", "large", "mean")
BEGUN = RowwiseAdagrad(lr=0.1, initial_accumulator_value=0.01)
OPTIMIZERS = [RowwiseAdagrad(lr=0.1), BEGUN, SGD(lr=0.1)]
OPTIMIZER_NAMES = ["adagrad", "begun", "sgd"]


@pytest.fixture
def closing() -> Iterator[list[EmbeddingBagCollection]]:
    opened: list[EmbeddingBagCollection] = []
    yield opened
    for one in opened:
        one.close()


class Plain(nn.Module):
    """The same tables as plain modules, and their optimizer by hand."""

    def __init__(self, state: dict[str, Tensor], optimizer: Any) -> None:
        super().__init__()
        self.bags = nn.ModuleDict(
            {one.name: nn.EmbeddingBag(one.num_embeddings, one.embedding_dim, mode=one.pooling) for one in TABLES}
        )  # fmt: skip
        weights = {key.removeprefix("embedding_bags."): value.clone() for key, value in state.items()}
        self.bags.load_state_dict(weights)
        self.optimizer = optimizer
        first = getattr(optimizer, "initial_accumulator_value", 0.0)
        self.sums = {one.name: torch.full((one.num_embeddings,), first) for one in TABLES}

    def forward(self, ids: dict[str, tuple[Tensor, ...]]) -> Tensor:
        found = []
        for one in TABLES:
            for feature in one.feature_names:
                values, offsets, *weights = ids[feature]
                found.append(self.bags[one.name](values, offsets, *weights))
        return torch.cat(found, 1)

    def step(self) -> None:
        for name, bag in self.bags.items():
            gradient, weight = bag.weight.grad, bag.weight.data
            bag.weight.grad = None
            if isinstance(self.optimizer, SGD):
                weight -= self.optimizer.lr * gradient
                continue
            self.sums[name] += gradient.square().mean(1)
            weight -= self.optimizer.lr * gradient / (self.sums[name].sqrt() + self.optimizer.eps)[:, None]


def ragged(seed: int, batch: int = 12) -> dict[str, tuple[Tensor, ...]]:
    made = torch.Generator().manual_seed(seed)
    rows = {"left": 40, "right": 40, "large": 3000, "mean": 30}
    found: dict[str, tuple[Tensor, ...]] = {}
    for name in FEATURES:
        lengths = torch.randint(0, 4, (batch,), generator=made)
        ids = torch.randint(0, rows[name], (int(lengths.sum()),), generator=made)
        found[name] = ids, torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]])
    weights = torch.rand(len(found["large"][0]), generator=made)
    return found | {"large": (*found["large"], weights)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=OPTIMIZER_NAMES)
@pytest.mark.parametrize("shards", [1, 3])
def test_one_trainer_is_equal_to_one_process(closing: list[Any], optimizer: Any, shards: int) -> None:
    tables = EmbeddingBagCollection(TABLES, optimizer=optimizer, shards=shards, seed=3)
    closing.append(tables)
    plain = Plain(tables.to_state_dict(), optimizer)
    for step in range(30):
        ids = ragged(step)
        here, there = tables(ids).values(), plain(ids)
        assert torch.allclose(here, there, rtol=0, atol=1e-6)
        for out in (here, there):
            (out * torch.sin(torch.arange(out.numel())).view_as(out)).square().mean().backward()
        plain.step()
    tables.flush()
    for key, weight in tables.to_state_dict().items():
        assert torch.allclose(weight, plain.bags.state_dict()[key.removeprefix("embedding_bags.")], rtol=0, atol=1e-6)
    assert set(tables.stats().staleness) == {0}


def test_rows_begin_alike_on_any_number_of_shards(closing: list[Any]) -> None:
    closing += [EmbeddingBagCollection(TABLES, shards=shards, seed=5) for shards in (1, 2, 5)]
    first, *others = (one.to_state_dict() for one in closing)
    assert all(torch.equal(first[key], other[key]) for other in others for key in first)
    assert not torch.equal(first["embedding_bags.shared.weight"][:30, :4], first["embedding_bags.mean.weight"])


def test_what_is_loaded_is_exported(closing: list[Any]) -> None:
    tables = EmbeddingBagCollection(TABLES, shards=2)
    closing.append(tables)
    state = {key: torch.randn_like(weight) for key, weight in tables.to_state_dict().items()}
    tables.from_state_dict(state)
    found = tables.to_state_dict()
    assert all(torch.equal(found[key], state[key]) for key in state)
    with pytest.raises(ConfigError, match=r"mean\.weight has the shape"):
        tables.from_state_dict(state | {"embedding_bags.mean.weight": torch.zeros(3, 4)})


class Keyed:
    """As a KeyedJaggedTensor answers."""

    def __init__(self, ids: dict[str, tuple[Tensor, ...]]) -> None:
        self._ids = ids

    def keys(self) -> list[str]:
        return list(self._ids)

    def values(self) -> Tensor:
        return torch.cat([one[0] for one in self._ids.values()])

    def lengths(self) -> Tensor:
        return torch.cat([torch.diff(one[1], append=torch.tensor([len(one[0])])) for one in self._ids.values()])

    def weights_or_none(self) -> Tensor:
        return torch.cat([one[2] if len(one) > 2 else torch.ones(len(one[0])) for one in self._ids.values()])


class BagConfig:
    """As TorchRec's EmbeddingBagConfig describes a table."""

    def __init__(self, one: Table) -> None:
        self.name, self.num_embeddings = one.name, one.num_embeddings
        self.embedding_dim, self.feature_names = one.embedding_dim, list(one.feature_names)
        self.pooling = type("PoolingType", (), {"value": one.pooling.upper()})()


def test_ids_and_tables_in_other_forms_mean_the_same(closing: list[Any]) -> None:
    closing += [EmbeddingBagCollection(TABLES), EmbeddingBagCollection([BagConfig(one) for one in TABLES], shards=2)]
    one, other = closing
    ids = ragged(1)
    assert torch.allclose(one(ids).values(), other(Keyed(ids)).values(), atol=1e-6)
    matrix = torch.randint(0, 30, (6, 4))
    by_name = {name: matrix[:, place] for place, name in enumerate(FEATURES)}
    assert torch.equal(one(matrix).values(), one(by_name).values())
    assert one(matrix).to_dict().keys() == set(FEATURES)
    assert torch.equal(one(matrix)["mean"], one(matrix).values()[:, -4:])


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        (torch.zeros(3, 2, dtype=torch.long), "for 4 features"),
        (torch.zeros(3, 4), "integers"),
        (torch.full((3, 4), 35), "feature 'mean' has the id 35: table 'mean' has the rows 0 to 29"),
        (torch.full((3, 4), -1), "feature 'left' has the id -1"),
        ({"left": torch.zeros(3, dtype=torch.long)}, "no ids of feature 'right'"),
        (7, "ids of type int"),
        (dict.fromkeys(FEATURES, (torch.arange(3), torch.rand(3))), "'left': offsets have dtype torch.float"),
        (dict.fromkeys(FEATURES, (torch.rand(3), torch.arange(3))), "'left': ids have dtype torch.float"),
        (Keyed(dict.fromkeys(FEATURES, (torch.rand(3), torch.arange(3)))), "ids have dtype torch.float"),
        (dict.fromkeys(FEATURES, (torch.arange(3),)), "'left' has ids of type tuple"),
        ({name: [3, 0] for name in FEATURES}, "'left' has ids of type list"),
        (dict.fromkeys(FEATURES), "'left' has ids of type NoneType"),
    ],
)
def test_ids_that_cannot_be_are_refused(closing: list[Any], ids: Any, why: str) -> None:
    closing.append(EmbeddingBagCollection(TABLES))
    with pytest.raises(DataError, match=why):
        closing[0](ids)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: Table(3, 4, "a b"), "names a file"),
        (lambda: Table(0, 4, "a"), "num_embeddings=0"),
        (lambda: Table(3, 4, "a", pooling="max"), "pooling='max'"),
        (lambda: Table(3, 4, "a", feature_names="f"), "list of names"),
        (lambda: RowwiseAdagrad(lr=-1.0), "lr=-1.0"),
        (lambda: RowwiseAdagrad(initial_accumulator_value=-1e-6), r"initial_accumulator_value=-1e-06\): give a finite"),
        (lambda: RowwiseAdagrad(initial_accumulator_value=float("nan")), "initial_accumulator_value=nan"),
        (lambda: RowwiseAdagrad(initial_accumulator_value=1e39), r"initial_accumulator_value=1e\+39"),
        (lambda: RowwiseAdagrad(initial_accumulator_value="0"), "initial_accumulator_value='0'"),  # type: ignore[arg-type]
        (lambda: EmbeddingBagCollection([]), "got none"),
        (lambda: EmbeddingBagCollection([Table(3, 4, "a"), Table(3, 4, "a", ["b"])]), "tables have the name 'a'"),
        (lambda: EmbeddingBagCollection([Table(3, 4, "a", ["f", "f"])]), "name 'f@a'"),
        (lambda: Table(3, 4, "a", scale=(2.0, 1.0)), r"scale=\(2.0, 1.0\)"),
        (lambda: Table(3, 4, "a", scale=(1.0, 2.0, 3.0)), "scale="),  # type: ignore[arg-type]
        (lambda: Table(3, 4, "a", scale=(-3e38, 3e38)), "scale="),
        (lambda: Table(3, 4, "a", scale="wide"), "scale='wide'"),  # type: ignore[arg-type]
        (lambda: Table(3, 4, "a", no_id=2**63), "no_id="),
        (lambda: Table(3, 4, "a", no_id=True), "no_id=True"),
        (lambda: EmbeddingBagCollection([nn.Embedding(3, 4)]), "is not a table"),
        (lambda: EmbeddingBagCollection(TABLES, wire="int4"), "wire='int4': it is one of float32"),
    ],
)
def test_tables_that_cannot_be_are_refused(made: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        made()


def test_half_the_bytes_are_nearly_the_same_numbers(closing: list[Any]) -> None:
    closing += [EmbeddingBagCollection(TABLES), EmbeddingBagCollection(TABLES, wire="bfloat16")]
    closing[1].door.share = False  # rows in shared memory do not travel
    closing[1].flush()
    ids = ragged(2)
    whole, half = (one(ids).values() for one in closing)
    assert torch.allclose(whole, half, rtol=1e-2, atol=1e-3)
    assert not torch.equal(whole, half)
    half.square().sum().backward()
    closing[1].flush()
    assert closing[1].stats().counts["applied"] == 1


def test_the_copy_for_another_thread_has_the_same_tables(closing: list[Any]) -> None:
    tables = EmbeddingBagCollection(TABLES)
    closing.append(tables)
    copied = twin(nn.Sequential(tables))[0][0]
    ids = torch.zeros(2, 4, dtype=torch.long)
    copied(ids).values().sum().backward()
    tables.flush()
    assert tables.stats().counts["applied"] == 1
    with torch.no_grad():
        assert not copied(ids).values().requires_grad


def some_bags(seed: int, dim: int, *, each: int, weighted: bool) -> tuple[Bags, np.ndarray]:
    made = np.random.default_rng(seed)
    count = 40
    lengths = None if each else made.integers(0, 5, count, dtype=np.int32)
    ids = made.integers(0, 25, count * each if lengths is None else lengths.sum(), dtype=np.int32)
    weights = made.random(len(ids), dtype=np.float32) if weighted else None
    given = made.standard_normal((count, dim), dtype=np.float32)
    return Bags(0, dim, count, ids, each, lengths, weights), given


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=OPTIMIZER_NAMES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("each", [1, 3, 0])
@pytest.mark.parametrize("dim", [6, 19])  # an odd end alone, and whole lanes and one
def test_kernels_compute_what_the_reference_says(dim: int, each: int, weighted: bool, optimizer: Any) -> None:
    for fast in (TorchKernels(), kernels()):
        rows = np.random.default_rng(0).standard_normal((25, dim), dtype=np.float32)
        sums = np.full(25, getattr(optimizer, "initial_accumulator_value", 0.0), np.float32)
        mine, my_sums = rows.copy(), sums.copy()
        for seed in range(3):
            bags, given = some_bags(seed, dim, each=each, weighted=weighted)
            for array in (bags.ids, given):
                array.flags.writeable = False  # as what comes in a message
            assert np.allclose(fast.lookup(mine, bags), reference.lookup(rows, bags), atol=1e-5)
            fast.update(mine, my_sums, bags, given, optimizer)
            reference.update(rows, sums, bags, given, optimizer)
            assert np.allclose(mine, rows, atol=1e-5)
            assert np.allclose(my_sums, sums, atol=1e-4)


@pytest.mark.parametrize("shards", [1, 3])
def test_without_pooling_each_id_has_its_row_and_its_gradient(closing: list[Any], shards: int) -> None:
    pooled, apart = EmbeddingBagCollection(TABLES, optimizer=SGD(lr=0.1)), EmbeddingCollection(
        TABLES, optimizer=SGD(lr=0.1), shards=shards
    )  # fmt: skip
    closing += [pooled, apart]
    for step in range(5):
        ids = {name: one[:2] for name, one in ragged(step).items()}
        rows, sums = apart(ids), pooled(ids)
        for name, (values, offsets) in ids.items():
            mode = "mean" if name == "mean" else "sum"
            places = torch.arange(len(values))
            found = nn.functional.embedding_bag(places, rows[name], offsets, mode=mode)
            assert torch.allclose(found, sums[name], atol=1e-6)
            if name == "left":
                total = found.square().sum()
            else:
                total = total + found.square().sum()
        total.backward()
        sums.values().square().sum().backward()
        for one in (pooled, apart):
            one.flush()
    state = apart.to_state_dict()
    assert all(torch.allclose(one, state[key], atol=1e-5) for key, one in pooled.to_state_dict().items())
    many = torch.randint(0, 30, (5, 4, 3))
    assert apart(many)["mean"].shape == (5, 3, 4)
    assert torch.equal(apart(many)["mean"][2, 1], apart(many[2:3, :, 1])["mean"][0])


@pytest.mark.parametrize("dim", [1, 16, 48])
def test_rows_begin_where_a_cache_line_does(dim: int) -> None:
    rows = reference.zeros(7, dim)
    assert rows.shape == (7, dim)
    assert rows.ctypes.data % reference.CACHE_LINE == 0
    assert rows.flags.c_contiguous
    assert not rows.any()


def test_a_cut_table_of_which_a_batch_has_no_id_gives_zeros(closing: list[EmbeddingBagCollection]) -> None:
    tables = EmbeddingBagCollection([Table(40, 4, "small"), Table(3000, 16, "large")], shards=2)
    closing.append(tables)
    assert all(any(part.table == 1 for part in one.ranges) for one in tables.door.shards())
    none = torch.empty(0, dtype=torch.long), torch.zeros(2, dtype=torch.long)
    for small in ((torch.tensor([1, 2]), torch.tensor([0, 1])), none):
        for _ in range(20):
            freed = [np.full((2, 20), np.nan, np.float32) for _ in range(20)]
            freed.clear()  # so that unwritten memory is not zero by chance
            assert torch.equal(tables({"small": small, "large": none}).values()[:, 4:], torch.zeros(2, 16))
