"""A model's state dict keeps its tables, a copy of them is refused, and frozen tables do not change."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

import uneven
from uneven.embedding import SGD, EmbeddingBagCollection, RowwiseAdagrad, Table
from uneven.embedding.table_host import PROGRAM, TABLES
from uneven.errors import ConfigError
from uneven.runtime.messages.process import ShardKeeper

FIXED = [Table(30, 4, "a"), Table(3000, 4, "large")]
GROWN = [Table(None, 4, "a", most_rows=50), Table(None, 4, "large", most_rows=50)]
IDS = torch.randint(0, 30, (8, 2), generator=torch.Generator().manual_seed(1))


class Model(nn.Module):
    def __init__(self, tables: list[Table] = FIXED, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(options.get("seed", 0))
        self.tables = EmbeddingBagCollection(tables, **options)
        self.top = nn.Linear(8, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.top(self.tables(ids).values()).squeeze(1)


@pytest.fixture
def made() -> Iterator[Callable[..., Model]]:
    models: list[Model] = []

    def make(*args: Any, **options: Any) -> Model:
        models.append(Model(*args, **options))
        return models[-1]

    yield make
    for one in models:
        one.tables.close()


def train(model: Model, steps: int) -> None:
    optimizer = torch.optim.Adagrad([one for one in model.parameters() if one.requires_grad], lr=0.1)
    for _ in range(steps):
        (model(IDS) - 1).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.tables.flush()


def predictions(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(IDS)


@pytest.mark.parametrize("optimizer", [RowwiseAdagrad(lr=0.1), SGD(lr=0.1)], ids=["adagrad", "sgd"])
def test_a_loaded_state_dict_predicts_and_learns_as_the_model_did(made: Any, optimizer: Any) -> None:
    first, second = made(optimizer=optimizer), made(optimizer=optimizer, seed=5, shards=3)
    train(first, 4)
    torch.save(first.state_dict(), file := io.BytesIO())
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    sums = ["sum"] if isinstance(optimizer, RowwiseAdagrad) else []
    keys = {f"tables.embedding_bags.{one.name}.{what}" for one in FIXED for what in ("weight", *sums)}
    assert saved.keys() == keys | {"top.weight", "top.bias"}
    second.tables.door.ahead(IDS, learning=True)  # asks for rows from before
    second.load_state_dict(saved)
    assert get_model_state_dict(second).keys() == saved.keys()
    assert torch.equal(predictions(second), predictions(first))
    for one in (first, second):
        train(one, 3)
    assert torch.allclose(predictions(second), predictions(first), atol=1e-6)


def test_a_state_without_rows_or_with_wrong_ones_does_not_load(made: Any) -> None:
    model = made()
    before, state = predictions(model), model.state_dict()
    weights = {key: one for key, one in state.items() if not key.endswith(".sum")}
    model.load_state_dict(weights)  # as plain modules and TorchRec save them
    key = "tables.embedding_bags.large.weight"
    with pytest.raises(RuntimeError, match=f'Missing key.*"{key}"'):
        model.load_state_dict({name: one for name, one in weights.items() if name != key})
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"tables.embedding_bags.other.weight"'):
        model.load_state_dict(weights | {"tables.embedding_bags.other.weight": torch.zeros(2, 4)})
    with pytest.raises(RuntimeError, match=r"large\.weight has the shape \(3, 4\), the table has \(3000, 4\)"):
        model.load_state_dict(weights | {key: torch.zeros(3, 4)})
    with pytest.raises(RuntimeError, match=r"large\.weight has a NaN"):
        model.load_state_dict(weights | {key: torch.full((3000, 4), torch.nan)})
    found = model.load_state_dict({name: one for name, one in state.items() if "top" in name}, strict=False)
    assert found.missing_keys == ["tables.embedding_bags.a.weight", key]
    assert torch.equal(predictions(model), before)


@pytest.mark.parametrize(
    ("tables", "why"),
    [(GROWN, "table 'a' grows"), ([Table(2**31 - 2, 1 << 14, "a")], "GB of memory are free")],
    ids=["grown", "large"],
)
def test_tables_that_a_state_dict_cannot_hold_are_refused_or_left_out(made: Any, tables: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"{why}.*in_state_dict=False.*tables.save_checkpoint\(folder\)"):
        made(tables).state_dict()
    model = made(tables, in_state_dict=False)
    assert model.state_dict().keys() == {"top.weight", "top.bias"}
    model.load_state_dict(model.state_dict())


def test_closed_tables_have_no_state(made: Any) -> None:
    model = made()
    train(model, 1)
    model.tables.close()
    with pytest.raises(ConfigError, match=r"rows ended with them: call tables\.close\(\) last"):
        model.state_dict()


def test_copies_are_refused(made: Any) -> None:
    model = made()
    for copy in (deepcopy, AveragedModel, pickle.dumps, lambda one: torch.save(one, io.BytesIO())):
        with pytest.raises(ConfigError, match="its rows are on servers, so copy and pickle cannot copy them"):
            copy(model)
    with pytest.raises(ConfigError, match="its rows are on servers"):
        deepcopy((list(model.parameters()), model))  # parameters that were copied before


def frozen_one_by_one(model: Model) -> None:
    for one in model.parameters():
        one.requires_grad = False


@pytest.mark.parametrize("tables", [FIXED, GROWN], ids=["fixed", "grown"])
@pytest.mark.parametrize(
    "freeze",
    [frozen_one_by_one, lambda model: model.requires_grad_(False), lambda model: model.tables.requires_grad_(False)],
    ids=["each", "model", "tables"],
)
def test_frozen_tables_neither_step_nor_grow_until_they_are_thawed(made: Any, freeze: Any, tables: Any) -> None:
    model = made(tables)
    train(model, 2)
    freeze(model)
    model.top.requires_grad_(True)
    before = model.tables.to_state_dict()
    fresh = IDS + 30 if tables is GROWN else IDS.flip(0)
    with uneven.Session() as session:
        session.setup(model)
        for (ids,) in session.loader(TensorDataset(fresh), global_batch_size=4, ids=lambda batch: batch[0], ahead=1):
            model(ids).sum().backward()
    train(model, 1)
    after = model.tables.to_state_dict()
    assert all(torch.equal(after[key], one) for key, one in before.items())
    model.requires_grad_(True)
    train(model, 1)
    assert not any(
        torch.equal(model.tables.to_state_dict()[key], one) for key, one in before.items() if "weight" in key
    )


def test_a_resumed_session_goes_on_as_if_it_had_not_stopped(made: Any) -> None:
    data = TensorDataset(torch.arange(60) % 30, torch.arange(60.0) / 60)

    def trained(state: dict[str, Any] | None, stop: int) -> tuple[Tensor, dict[str, Any]]:
        model = made(shards=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with uneven.Session(seed=3) as session:
            session.setup(model, optimizer)
            loader = session.loader(data, global_batch_size=10)
            for key, part in {"model": model, "optimizer": optimizer, "session": session}.items() if state else ():
                part.load_state_dict(state[key])
            for place, (ids, target) in enumerate(loader, 1):
                (model(torch.stack([ids, ids], 1)) - target).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if place == stop:
                    break
            named = {"model": model, "optimizer": optimizer, "session": session}
            return predictions(model), {key: one.state_dict() for key, one in named.items()}

    whole, _ = trained(None, 6)
    _, half = trained(None, 3)
    rest, _ = trained(half, 3)
    assert torch.allclose(rest, whole, atol=1e-6)


def test_two_workers_load_before_either_trains(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = made(seed=5)
    train(alone, 2)
    state = deepcopy(alone.state_dict())
    train(alone, 1)
    monkeypatch.setenv("UNEVEN_RUN", str(tmp_path))
    with ShardKeeper(tmp_path / TABLES, 1, 2, program=PROGRAM), ThreadPoolExecutor(2) as threads:
        workers = [made(), made()]
        for rank, one in enumerate(workers):
            for name, value in {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}.items():
                monkeypatch.setenv(name, str(value))
            assert one.tables.door.client.rank == rank

        def load(model: Model) -> None:
            model.load_state_dict(state)
            if model is workers[0]:  # and trains at once
                model(IDS).sub(1).square().sum().backward()
            model.tables.flush()

        list(threads.map(load, workers))
        for key, rows in alone.tables.to_state_dict().items():
            assert torch.allclose(workers[1].tables.to_state_dict()[key], rows, atol=1e-6)
        assert workers[1].tables.stats().counts["applied"] == 5, "two tables by each, and one gradient"
        for one in workers:
            one.tables.close()
