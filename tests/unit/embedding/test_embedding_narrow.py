"""Rows of float16 and int8, on a shard and in messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from uneven.embedding import SGD, EmbeddingBagCollection, EmbeddingCollection, RowwiseAdagrad, Table
from uneven.embedding.kernels import TorchKernels, kernels
from uneven.embedding.pure import row_optimizers as reference
from uneven.embedding.pure.config import TableSpec
from uneven.embedding.pure.narrow_rows import NarrowRows, chances, keys_of, narrow, row_bytes, widen
from uneven.embedding.pure.row_optimizers import Bags
from uneven.embedding.pure.shard_tables import Holding, ShardSpec
from uneven.embedding.pure.sharding_plan import RowRange
from uneven.errors import ConfigError

NARROW = ["float16", "int8"]
STEP = {"float16": 2.0**-10, "int8": 1 / 127}  # distance of two numbers, relative to the largest of a row


@pytest.fixture
def made() -> Iterator[Callable[..., Any]]:
    opened: list[EmbeddingBagCollection] = []

    def make(tables: list[Table], kind: type = EmbeddingBagCollection, **more: Any) -> Any:
        opened.append(kind(tables, **more))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def some(rows: int = 300, dim: int = 19, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed)
    scale = (10.0 ** made.integers(-7, 4, (rows, 1))).astype(np.float32)
    return made.standard_normal((rows, dim), dtype=np.float32) * scale


@pytest.mark.parametrize("dtype", NARROW)
def test_rows_are_rounded_to_the_nearest(dtype: str) -> None:
    values = np.concatenate([some(), np.zeros((1, 19), np.float32)])
    found = widen(narrow(values, dtype))
    if dtype == "float16":
        halves = values.astype(np.float16).astype(np.float32)  # rounds ties to even
        assert (np.abs(found - values) == np.abs(halves - values)).all()
        assert widen(narrow(np.array([[1e6, -np.float32(3e38)]], np.float32), dtype)).tolist() == [[65504, -65504]]
    largest = np.abs(values).max(1, keepdims=True)
    assert (np.abs(found - values) <= 0.51 * STEP[dtype] * largest + 2.0**-24).all()
    assert np.allclose(widen(narrow(found, dtype)), found, rtol=3e-7, atol=0), "what is stored is stored again"


@pytest.mark.parametrize("dtype", NARROW)
def test_stochastic_rounding_keeps_the_mean_and_repeats(dtype: str) -> None:
    values = np.abs(some(50)) + np.float32(1e-3)
    drawn = [widen(narrow(values, dtype, keys_of(np.arange(50), draw))) for draw in range(2000)]
    largest = values.max(1, keepdims=True)
    assert (np.abs(np.mean(drawn, 0) - values) <= 0.06 * STEP[dtype] * largest).all()
    assert np.std(drawn, 0).max() > 0
    again = chances(keys_of(np.arange(50), 7), 19)
    assert np.array_equal(again[::-1], chances(keys_of(np.arange(50)[::-1], 7), 19)), "of the row, not of its place"
    assert 0 < again.min() < 0.01
    assert 1 > again.max() > 0.99
    exact = widen(narrow(values, dtype))
    for draw in range(200):
        stored = widen(narrow(exact, dtype, keys_of(np.arange(50), draw)))
        assert np.allclose(stored, exact, rtol=3e-7, atol=0), "a row that has not moved"


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("keys", [None, keys_of(np.arange(302), 3)])
def test_kernels_round_as_the_reference(dtype: str, keys: Any) -> None:
    values = np.concatenate([some(), np.zeros((1, 19), np.float32), np.full((1, 19), 1e5, np.float32)])
    for fast in (TorchKernels(), kernels()):
        found = fast.narrowed(values, dtype, keys)
        assert found.dtype == dtype
        assert np.array_equal(found, narrow(values, dtype, keys))
        assert np.array_equal(fast.whole(found), widen(found))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("shape", [(0, 8), (1, 5), (2, 5), (1, 1)])
def test_few_rows_of_any_width(dtype: str, shape: tuple[int, int]) -> None:
    values = np.random.default_rng(0).random(shape, np.float32)
    for fast in (TorchKernels(), kernels()):
        found = fast.whole(fast.narrowed(values, dtype))
        assert np.array_equal(found, widen(narrow(values, dtype)))
        assert found.shape == shape


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("each", [1, 3, 0])
def test_narrow_rows_step_as_the_reference_within_one_unit(dtype: str, each: int, weighted: bool) -> None:
    for fast in (TorchKernels(), kernels()):
        optimizer = RowwiseAdagrad(lr=0.1)
        rows = np.random.default_rng(0).standard_normal((25, 19), dtype=np.float32)
        mine = NarrowRows.zeros(25, 19, dtype)
        mine[:] = rows
        sums, my_sums = np.zeros(25, np.float32), np.zeros(25, np.float32)
        for seed in range(3):
            made = np.random.default_rng(seed)
            lengths = None if each else made.integers(0, 5, 40, dtype=np.int32)
            many = 40 * each if lengths is None else int(lengths.sum())
            ids = made.integers(0, 20, many, dtype=np.int32)
            bags = Bags(0, 19, 40, ids, each, lengths, made.random(many, dtype=np.float32) if weighted else None)
            given = made.standard_normal((40, 19), dtype=np.float32)
            rows = np.asarray(mine)
            assert np.allclose(mine.lookup(fast, bags), reference.lookup(rows, bags), atol=1e-4)
            mine.update(fast, my_sums, bags, given, optimizer)
            reference.update(rows, sums, bags, given, optimizer)
            largest = np.abs(rows).max(1, keepdims=True)
            assert (np.abs(np.asarray(mine) - rows) <= 1.01 * STEP[dtype] * largest).all()
            assert np.allclose(my_sums, sums, atol=1e-4)
            assert np.array_equal(np.asarray(mine)[20:], rows[20:]), "rows without a gradient"


TABLES = [
    Table(700, 16, "half", dtype="float16"),
    Table(40000, 16, "byte", dtype="int8"),  # cut by rows where there are several shards
    Table(50, 16, "whole"),
    Table(None, 16, "grown", dtype="int8", most_rows=100),
]


def test_a_shard_takes_less_memory() -> None:
    for dtype, wanted in (("float32", 4 * 32), ("float16", 2 * 32), ("int8", 32 + 4)):
        spec = TableSpec((Table(5000, 32, "t", dtype=dtype), Table(None, 32, "g", dtype=dtype, most_rows=99)), SGD())
        held = Holding.of(ShardSpec(spec, (RowRange(0, 0, 5000), RowRange(1, 0, 99))))
        assert [one.nbytes for one in held.rows] == [5000 * wanted, 100 * wanted]
        assert row_bytes(dtype, 32) == wanted
        assert TableSpec.read(spec.text) == spec


def ids_of(many: int) -> Tensor:
    return torch.arange(many)[:, None].expand(many, 4)


def step(tables: Any, seed: int = 0) -> None:
    ids = torch.randint(0, 50, (64, 4), generator=torch.Generator().manual_seed(seed))
    found = tables(ids).values()
    (found * torch.sin(torch.arange(found.numel()).view_as(found))).sum().backward()


@pytest.mark.parametrize("shards", [1, 3])
def test_narrow_tables_begin_and_learn_as_float32(made: Any, shards: int) -> None:
    plain = [Table(one.num_embeddings, 16, one.name, most_rows=100) for one in TABLES]
    ours, theirs = (made(one, shards=shards, optimizer=SGD(lr=1e-3)) for one in (TABLES, plain))
    with torch.no_grad():
        begun, wanted = (one(ids_of(50)).values() for one in (ours, theirs))
    assert torch.allclose(begun, wanted, atol=1e-3, rtol=2e-3)
    for seed in range(20):
        step(ours, seed)
        step(theirs, seed)
    for one in (ours, theirs):
        one.flush()
    found, wanted = ours.to_state_dict(), theirs.to_state_dict()
    for key, weight in found.items():
        assert weight.dtype == wanted[key].dtype
        if "grown" not in key:  # whose ids may have another order
            assert torch.allclose(weight, wanted[key], atol=5e-3), key
    assert torch.allclose(ours(ids_of(50)).values(), theirs(ids_of(50)).values(), atol=5e-3)


def test_a_narrow_run_repeats(made: Any) -> None:
    states = []
    for _ in range(2):
        tables = made(TABLES, optimizer=RowwiseAdagrad(lr=0.1))
        for seed in range(5):
            step(tables, seed)
        tables.flush()
        states.append(tables.to_state_dict())
    assert all(torch.equal(one, states[1][key]) for key, one in states[0].items())


def test_small_steps_count_on_average(made: Any) -> None:
    """Rounded to the nearest, none of these steps would move a row."""
    for dtype in NARROW:
        tables = made([Table(200, 16, "t", dtype=dtype, scale=1.0)], optimizer=SGD(lr=1.0))
        before = tables.to_state_dict()["embedding_bags.t.weight"]
        for _ in range(100):
            (tables(torch.arange(200)[:, None]).values().sum() * 1e-4).backward()
        tables.flush()
        moved = (before - tables.to_state_dict()["embedding_bags.t.weight"]).mean()
        assert moved == pytest.approx(0.01, rel=0.15), dtype


@pytest.mark.parametrize("shards", [1, 2])
def test_narrow_rows_are_saved_loaded_and_transferred(made: Any, tmp_path: Path, shards: int) -> None:
    ours = made(TABLES, optimizer=RowwiseAdagrad(lr=0.1))
    for seed in range(5):
        step(ours, seed)
    ours.save_checkpoint(tmp_path / "saved")
    assert np.load(tmp_path / "saved" / "byte-0-40000.rows.npy").dtype == np.float32
    again = made(TABLES, optimizer=RowwiseAdagrad(lr=0.1), seed=5, shards=shards)
    again.load_checkpoint(tmp_path / "saved")
    ids = ids_of(50)
    assert torch.allclose(again(ids).values(), ours(ids).values(), rtol=3e-7, atol=0)
    fixed = [one for one in TABLES if not one.grows]
    first, second = made(fixed, seed=1), made(fixed, seed=2, shards=shards)
    second.load_state_dict(first.state_dict())
    ids = torch.randint(0, 50, (20, 3))
    assert torch.allclose(second(ids).values(), first(ids).values(), rtol=3e-7, atol=0)


@pytest.mark.parametrize("kind", [EmbeddingBagCollection, EmbeddingCollection])
@pytest.mark.parametrize("wire", ["bfloat16", "float16", "int8"])
def test_rows_travel_narrow(made: Any, wire: str, kind: type) -> None:
    plain = [Table(5000, 16, "a", scale=1.0), Table(90, 8, "b", ["c", "d"], scale=1.0)]
    ours, theirs = made(plain, kind, wire=wire, shards=2), made(plain, kind, shards=2)
    ours.door.share = False  # rows in shared memory do not travel
    ours.flush()
    ids = torch.randint(0, 90, (64, 3))
    found, wanted = ours(ids), theirs(ids)
    for name in ("a", "c", "d"):
        error = (found[name] - wanted[name]).abs().max()
        assert 0 < error <= 2 * {"bfloat16": 2.0**-9, "float16": 2.0**-12, "int8": 1 / 254}[wire], name
    for one in (found, wanted):
        sum((one[name] ** 2).sum() for name in ("a", "c", "d")).backward()
    for one in (ours, theirs):
        one.flush()
    now = theirs.to_state_dict()
    assert all(torch.allclose(one, now[key], atol=2e-2) for key, one in ours.to_state_dict().items())


def test_types_that_rows_do_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"dtype='float64'.*float32, float16, int8"):
        Table(3, 4, "a", dtype="float64")
    with pytest.raises(ConfigError, match="rows on disk are float32"):
        Table(3, 4, "a", dtype="int8", memory="1MB")
