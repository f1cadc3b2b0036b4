"""Sequences, crosses, and tables as plain modules: each is compared with plain torch."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uneven.embedding import (
    SGD,
    EmbeddingBagCollection,
    EmbeddingCollection,
    PlainTables,
    RowwiseAdagrad,
    Table,
    UnpooledFeatures,
)
from uneven.embedding.ids import BatchReader
from uneven.embedding.pure.config import TableSpec
from uneven.embedding.pure.lookup_request import read_request
from uneven.errors import ConfigError, DataError
from uneven_bench.forked.scripts import run_script

BAGS = {"history": [[1, 2], [], [7, 7, 39], [5]], "item": [[3], [4], [5], [0]]}


@pytest.fixture
def made() -> Iterator[Callable[..., Any]]:
    opened: list[EmbeddingBagCollection] = []

    def make(tables: list[Table], kind: type = EmbeddingBagCollection, **more: Any) -> Any:
        opened.append(kind(tables, **{"optimizer": SGD(lr=0.5), **more}))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def flat(bags: list[list[int]]) -> tuple[Tensor, Tensor]:
    values = torch.tensor([one for bag in bags for one in bag], dtype=torch.long)
    return values, torch.tensor([0, *(len(bag) for bag in bags[:-1])]).cumsum(0)


def flats(bags: dict[str, list[list[int]]]) -> dict[str, tuple[Tensor, Tensor]]:
    return {name: flat(one) for name, one in bags.items()}


class Attention(nn.Module):
    """Of an item on a history, as DIN and SASRec have it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, item: Tensor, history: Tensor, mask: Tensor) -> Tensor:
        score = (self.query(item)[:, None] * self.key(history)).sum(2).masked_fill(~mask, -torch.inf)
        weight = torch.where(mask.any(1, keepdim=True), score, 0.0).softmax(1)
        return (weight[:, :, None] * history).sum((1, 2))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("form", ["ragged", "padded at the end", "padded at the start", "nested"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_attention_over_sequences_learns_as_with_nn_embedding(made: Any, shards: int, form: str) -> None:
    table = Table(3000, 8, "item", ["history", "item"], no_id=0)  # cut by rows where there are several shards
    ours = made([table], EmbeddingCollection, shards=shards)
    theirs = nn.Embedding.from_pretrained(
        ours.to_state_dict()["embedding_bags.item.weight"], freeze=False, padding_idx=0
    )
    with torch.no_grad():
        theirs.weight[0] = 0
    torch.manual_seed(0)
    layers = Attention(8)
    same = copy.deepcopy(layers)
    pad = [[0] * (3 - len(bag)) for bag in BAGS["history"]]
    right = torch.tensor([bag + zeros for bag, zeros in zip(BAGS["history"], pad, strict=True)])
    padded = torch.tensor([zeros + bag for bag, zeros in zip(BAGS["history"], pad, strict=True)])
    plain = padded if form == "padded at the start" else right
    given: Any = {"padded at the start": padded, "padded at the end": right}.get(form, flat(BAGS["history"]))
    if form == "nested":
        given = torch.nested.nested_tensor(
            [torch.tensor(bag, dtype=torch.long) for bag in BAGS["history"]], layout=torch.jagged
        )
    for _ in range(3):
        found = ours({"history": given, "item": torch.tensor([3, 4, 5, 1])})
        history, mask = found.padded("history")
        assert torch.equal(mask, plain != 0)
        (out := layers(found["item"], history, mask)).square().sum().backward()
        expected = same(theirs(torch.tensor([3, 4, 5, 1])), theirs(plain), plain != 0)
        expected.square().sum().backward()
        assert torch.allclose(out, expected, atol=1e-6)
        ours.flush()
        with torch.no_grad():
            for weight in (theirs.weight, *same.parameters(), *layers.parameters()):
                assert weight.grad is not None
                weight -= 0.5 * weight.grad
                weight.grad = None
    now = ours.to_state_dict()["embedding_bags.item.weight"]
    assert torch.allclose(now[1:], theirs.weight[1:], atol=1e-5)
    nested = ours({"history": given, "item": torch.tensor([3, 4, 5, 1])}).nested("history")
    for row, bag in zip(nested.unbind(), BAGS["history"], strict=True):
        assert torch.equal(row, now[torch.tensor(bag, dtype=torch.long)])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # of the attention itself, on a CPU
def test_nested_rows_go_into_attention(made: Any) -> None:
    ours = made([Table(50, 8, "history")], EmbeddingCollection)
    bags = [[1, 2], [7, 7, 39], [5]]
    found = ours({"history": flat(bags)})
    rows = found.nested("history")
    heads = rows.unflatten(-1, [2, 4]).transpose(1, 2)
    out = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)
    dense = ours.to_state_dict()["embedding_bags.history.weight"].requires_grad_()
    for each, bag in zip(out.unbind(), bags, strict=True):
        one = dense[torch.tensor(bag)].view(1, len(bag), 2, 4).transpose(1, 2)
        wanted = F.scaled_dot_product_attention(one, one, one).transpose(1, 2).reshape(len(bag), 8)
        assert torch.allclose(each, wanted, atol=1e-6)
        wanted.square().sum().backward()
    out.values().square().sum().backward()
    ours.flush()
    assert dense.grad is not None
    assert torch.allclose(ours.to_state_dict()["embedding_bags.history.weight"], dense - 0.5 * dense.grad, atol=1e-6)


def test_a_batch_without_ids_has_empty_sequences(made: Any) -> None:
    found = made([Table(50, 8, "history")], EmbeddingCollection)({"history": flat([[], []])})
    rows, mask = found.padded("history")
    assert rows.shape == (2, 0, 8)
    assert mask.shape == (2, 0)
    assert isinstance(found, UnpooledFeatures)
    with pytest.raises(KeyError, match="other"):
        found.padded("other")
    assert found.nested("history").shape[0] == 2


def test_the_same_ids_in_other_bags_are_asked_for_again(made: Any) -> None:
    ours = made([Table(50, 8, "history")], EmbeddingCollection)
    ours.door.ahead({"history": flat([[1, 2], [3]])}, learning=True)
    assert ours({"history": flat([[1], [2, 3]])}).padded("history")[1].tolist() == [[True, False], [True, True]]


# -------------------------------------------------------------------------------------------------- crosses
CROSSED = [Table(40, 4, "user"), Table(40, 4, "item"), Table(5000, 4, "pair", crossed=("user", "item"))]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_cross_has_a_row_for_each_combination_of_ids(made: Any, shards: int) -> None:
    ours = made(CROSSED, shards=shards)
    ids = torch.cartesian_prod(torch.arange(40), torch.arange(40))
    found = ours(ids)
    assert found.keys() == ["user", "item", "pair"]
    rows = found["pair"].detach()
    assert len(torch.unique(rows, dim=0)) > 1300, "1,600 pairs in 5,000 rows: about 1,370 distinct ones"
    assert torch.equal(rows, ours({"item": ids[:, 1], "user": ids[:, 0]})["pair"]), "the order in the batch is nothing"
    assert not torch.equal(rows.view(40, 40, 4), rows.view(40, 40, 4).transpose(0, 1)), "(1, 2) is not (2, 1)"
    before = ours.to_state_dict()["embedding_bags.pair.weight"].requires_grad_()
    places = (rows[:, None] == before).all(2).int().argmax(1)
    (found["pair"] * torch.arange(4)).sum().backward()
    (before[places] * torch.arange(4)).sum().backward()
    ours.flush()
    assert before.grad is not None
    now = ours.to_state_dict()["embedding_bags.pair.weight"]
    assert torch.allclose(now, before - 0.5 * before.grad, atol=1e-5)
    assert ours.stats().sharing["pair"] == pytest.approx(1600 / 1370, abs=0.05)


def test_bags_are_crossed_in_all_pairs(made: Any) -> None:
    ours = made([Table(None, 4, "pair", crossed=("user", "item", "day"))])
    user, item, day = [[1, 2], [], [7], [3, 4, 5]], [[3], [4, 0], [5, 6], [1, 2]], [[0], [1], [2], [3]]
    found = ours({"user": flat(user), "item": flat(item), "day": flat(day)}).values()
    for at in range(4):
        pairs = torch.tensor([(u, i, d) for u in user[at] for i in item[at] for d in day[at]]).view(-1, 3)
        assert torch.allclose(found[at], ours(pairs).values().sum(0), atol=1e-6)
    assert not found[1].any()
    weight = torch.rand(6), torch.rand(7)
    found = ours({"user": (*flat(user), weight[0]), "item": (*flat(item), weight[1]), "day": flat(day)}).values()
    last = ours(torch.tensor([(u, i, 3) for u in user[3] for i in item[3]])).values()
    assert torch.allclose(found[3], torch.outer(weight[0][3:], weight[1][5:]).reshape(-1) @ last, atol=1e-6)


def test_crosses_are_looked_up_by_other_programs_too(made: Any) -> None:
    ours = made(CROSSED)
    asked = read_request(b'{"ids": {"user": [3, [1, 2]], "item": [4, [5, 6]]}}', ours.door.spec)
    given = {"user": flat([[3], [1, 2]]), "item": flat([[4], [5, 6]])}
    assert asked.same(BatchReader(ours.door.spec).read(given))


def test_too_many_combinations_are_refused(made: Any) -> None:
    long = flat([[1] * 3000, [2]])
    with pytest.raises(DataError, match=r"9,000,001 combinations of crossed ids in a batch: give shorter bags"):
        made(CROSSED)({"user": long, "item": long})


@pytest.mark.parametrize("rows", [1000, None])
@pytest.mark.parametrize("none", [0, -1])
def test_a_cross_with_no_id_has_no_row(made: Any, rows: int | None, none: int) -> None:
    tables = [Table(9, 4, "user", no_id=none), Table(rows, 4, "pair", crossed=("user", "item"), no_id=none)]
    found = made(tables)(torch.tensor([[1, 2], [none, 2], [1, none], [none, none]]))["pair"]
    assert found[0].any()
    assert not found[1:].any()
    with pytest.raises(DataError, match=r"'pair' has the id -1: .*give Table\(no_id=-1\)"):
        made([Table(rows, 4, "pair", crossed=("user", "item"))])(torch.tensor([[-1, 2]]))


def test_crosses_are_saved_with_their_tables(made: Any, tmp_path: Path) -> None:
    ours = made(CROSSED)
    assert TableSpec.read(ours.door.spec.text) == ours.door.spec
    assert '"crossed"' not in TableSpec((Table(9, 4, "t"),), SGD()).text, "tables saved before have no such key"
    ours.save_checkpoint(tmp_path / "saved")
    again = made(CROSSED, seed=3)
    again.load_checkpoint(tmp_path / "saved")
    ids = torch.randint(0, 40, (30, 2))
    assert torch.equal(again(ids).values(), ours(ids).values())


@pytest.mark.parametrize(
    "more",
    [{"crossed": "ab"}, {"crossed": 5}, {"crossed": ("a",)}, {"crossed": ("a", "b"), "feature_names": ["c", "d"]}],
)
def test_crosses_that_cannot_be_are_refused(more: Any) -> None:
    with pytest.raises(ConfigError, match=r"crossed=.*cross two features or more, into one feature"):
        Table(9, 4, "t", **more)


# ------------------------------------------------------------------------------------------ tables as plain modules
EVERY = [
    Table(40, 8, "shared", ["left", "right"]),
    Table(30, 4, "mean", pooling="mean", no_id=0),
    Table(20, 4, "wrapped", modulo=True, no_id=0),
    Table(None, 4, "grown"),
    Table(500, 4, "pair", crossed=("left", "wrapped"), no_id=0),
]
NAMES = ("left", "right", "mean", "wrapped", "grown")


def every_batch() -> list[Any]:
    matrix = torch.randint(0, 30, (6, 5), generator=torch.Generator().manual_seed(1))
    bags = [
        [[1, 2], [], [7, 7]],
        [[3], [4, 0], [5]],
        [[0, 1], [0], [2, 3]],
        [[0], [100, 7], [3]],
        [[9], [10**15], [-5]],
    ]
    ragged: dict[str, Any] = {name: flat(one) for name, one in zip(NAMES, bags, strict=True)}
    weighted = ragged | {"mean": (*ragged["mean"], torch.rand(5))}
    return [matrix, matrix.view(3, 5, 2), ragged, weighted, dict(zip(NAMES, matrix.T, strict=True))]


@pytest.mark.parametrize("kind", [EmbeddingBagCollection, EmbeddingCollection])
@pytest.mark.parametrize("shards", [1, 3])
def test_plain_modules_have_the_results_of_the_tables(made: Any, shards: int, kind: type) -> None:
    ours = made(EVERY, kind, shards=shards)
    for ids in every_batch():
        ours(ids)  # so that ids of the growing table have rows
    plain = ours.to_embedding_bags()
    assert (
        sorted(type(one).__name__ for one in plain.embedding_bags.values())
        == ["EmbeddingBag" if kind is EmbeddingBagCollection else "Embedding"] * 5
    )
    copied = copy.deepcopy(plain)
    for ids in every_batch():
        with torch.no_grad():
            wanted = ours(ids)
        for one in (plain, copied):
            found = one(ids)
            assert type(found) is type(wanted)
            for name in wanted.keys():  # noqa: SIM118 PooledFeatures is not a mapping
                assert torch.allclose(found[name], wanted[name], atol=1e-6), name
            if kind is EmbeddingCollection:
                for here, there in zip(found.padded("mean"), wanted.padded("mean"), strict=True):
                    assert torch.allclose(here, there)
    none = {name: one.padding_idx for name, one in plain.embedding_bags.items()}
    assert none == {"shared": None, "mean": 0, "wrapped": None, "grown": None, "pair": None}
    unseen = plain({**every_batch()[2], "grown": flat([[12345], [], [9]])})["grown"]
    assert torch.equal(unseen[0], plain.embedding_bags["grown"].weight[0]), "an id without a row"
    with pytest.raises(DataError, match="feature 'left' has the id 40"):
        plain(torch.full((2, 5), 40))


FIXED = [one for one in EVERY if not one.grows]


def test_a_plain_model_trains_and_comes_back(made: Any) -> None:
    ours = made(FIXED, shards=2)
    plain = ours.to_embedding_bags()
    ids = torch.randint(1, 20, (16, 4))
    for one in (ours, plain):
        (one(ids).values() * torch.arange(one(ids).values().numel()).view(16, -1)).square().mean().backward()
    with torch.no_grad():
        for weight in plain.parameters():
            weight -= 0.5 * weight.grad
    ours.flush()
    state = ours.to_state_dict()
    for key, weight in plain.state_dict().items():
        assert torch.allclose(state[key], weight, atol=1e-4, rtol=1e-4), key
    again = made(FIXED, seed=7)
    again.from_state_dict(plain.state_dict())
    assert torch.equal(again(ids).values(), plain(ids).values())
    assert state.keys() == plain.state_dict().keys()


class Model(nn.Module):
    def __init__(self, tables: nn.Module, width: int) -> None:
        super().__init__()
        self.tables = tables
        self.top = nn.Sequential(nn.Linear(width + 2, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids: Any, numbers: Tensor) -> Tensor:
        out: Tensor = self.top(torch.cat([self.tables(ids).values(), numbers], 1)).squeeze(1)
        return out


def test_a_model_with_plain_tables_is_an_ordinary_file(made: Any, tmp_path: Path) -> None:
    ours = made(FIXED, optimizer=RowwiseAdagrad(lr=0.1))
    model = Model(ours, ours.width)
    ids, numbers = torch.randint(1, 20, (16, 4)), torch.rand(16, 2)
    before = model(ids, numbers)
    model.tables = ours.to_embedding_bags()
    assert torch.allclose(model(ids, numbers), before, atol=1e-6)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert isinstance(loaded.tables, PlainTables)
    assert torch.equal(loaded(ids, numbers), model(ids, numbers))


EXPORT = """
import numpy as np, onnxruntime, torch
from torch import nn
from uneven.embedding import EmbeddingBagCollection, Table

class Model(nn.Module):
    def __init__(self, tables):
        super().__init__()
        self.tables = tables
        self.top = nn.Sequential(nn.Linear(tables.width + 2, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids, numbers):
        return self.top(torch.cat([self.tables(ids)["b"], self.tables(ids).values()[:, :8], numbers], 1)).squeeze(1)

tables = EmbeddingBagCollection([Table(40, 8, "a"), Table(None, 4, "b")], shards=2)
model = Model(tables)
ids, numbers = torch.randint(1, 20, (16, 2)), torch.rand(16, 2)
with torch.no_grad():
    rows, expected = tables(ids).values(), model(ids, numbers)
model.tables = tables.to_input()
torch.onnx.export(
    model, (rows, numbers), "dense.onnx", input_names=["rows", "numbers"],
    dynamic_shapes={"ids": {0: "batch"}, "numbers": {0: "batch"}}, external_data=False,
)
serving = onnxruntime.InferenceSession("dense.onnx", providers=["CPUExecutionProvider"])
for many in (16, 3):
    with torch.no_grad():
        rows = tables(ids[:many]).values().numpy()
    (found,) = serving.run(None, {"rows": rows, "numbers": numbers[:many].numpy()})
    assert np.allclose(found, expected[:many], atol=1e-6), np.abs(found - expected[:many].numpy()).max()
    print("equal for", many)
tables.close()
"""


def test_the_dense_part_in_onnx_predicts_as_torch(tmp_path: Path) -> None:
    if missing := [one for one in ("onnx", "onnxscript", "onnxruntime") if find_spec(one) is None]:
        pytest.skip(f"needs {missing}")
    (tmp_path / "export.py").write_text(EXPORT)
    env = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = run_script(["export.py"], cwd=tmp_path, env=env, merged=True, timeout_s=120)
    assert done.returncode == 0, done.stdout
    assert "equal for 16\nequal for 3" in done.stdout
