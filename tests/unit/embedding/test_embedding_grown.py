"""Tables that grow learn as a dictionary of rows would, on any number of shards, and are saved with their ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from uneven.embedding import EmbeddingBagCollection, RowwiseAdagrad, Table
from uneven.embedding.pure.dynamic_ids import PINNED
from uneven.errors import ConfigError

HUGE = 1 << 60
TABLES = [
    Table(30, 4, "plain"),
    Table(None, 4, "grows", feature_names=["left", "right"], most_rows=3000, pooling="mean"),
    Table(30, 4, "wraps", modulo=True),
]


@pytest.fixture
def made() -> Iterator[Any]:
    opened: list[EmbeddingBagCollection] = []

    def make(**more: Any) -> EmbeddingBagCollection:
        more = {"tables": TABLES, "optimizer": RowwiseAdagrad(lr=0.1)} | more
        opened.append(EmbeddingBagCollection(more.pop("tables"), **more))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def batch(seed: int, *, ragged: bool) -> Any:
    random = torch.Generator().manual_seed(seed)
    shape = (20, 3)
    few = [torch.randint(0, most, shape, generator=random) for most in (30, 300, 300, 90)]
    ids = dict(zip(("plain", "left", "right", "wraps"), few, strict=True))
    ids = {name: one * 999_983 - HUGE if name in ("left", "right") else one for name, one in ids.items()}
    if not ragged:
        return torch.stack(list(ids.values()), 1)
    offsets = torch.arange(20) * 3 + torch.randint(0, 3, (20,), generator=random)
    offsets[0] = 0
    return {name: (one.reshape(-1), offsets) for name, one in ids.items()}


def train(tables: EmbeddingBagCollection, *, ragged: bool, steps: range = range(15)) -> Tensor:
    for step in steps:
        values = tables(batch(step, ragged=ragged)).values()
        (values * torch.sin(torch.arange(values.numel())).view_as(values)).square().mean().backward()
    tables.flush()
    with torch.no_grad():
        return tables(batch(99, ragged=ragged)).values()


@pytest.mark.parametrize("ragged", [False, True])
def test_rows_learn_alike_on_any_number_of_shards(made: Any, ragged: bool) -> None:
    found = [train(made(shards=shards), ragged=ragged) for shards in (1, 2, 5)]
    assert torch.allclose(found[0], found[1], atol=1e-6)
    assert torch.allclose(found[0], found[2], atol=1e-6)


def test_it_learns_as_a_table_that_has_all_rows(made: Any) -> None:
    grown = made(tables=[Table(None, 4, "a", most_rows=500)], shards=2)
    ids = torch.randint(0, 400, (30, 1), generator=torch.Generator().manual_seed(0)) * 7_777_777_777
    grown(ids).values()
    names, rows = grown.grown("a")
    assert sorted(names.tolist()) == sorted(set(ids.flatten().tolist()))
    fixed = made(tables=[Table(len(names), 4, "a")])
    fixed.from_state_dict({"embedding_bags.a.weight": rows[1:]})
    place = {name: at for at, name in enumerate(names.tolist())}
    known = torch.tensor([[place[one]] for one in ids.flatten().tolist()])
    for _ in range(5):
        for tables, wanted in ((grown, ids), (fixed, known)):
            tables(wanted).values().square().sum().backward()
            tables.flush()
    assert torch.allclose(grown(ids).values(), fixed(known).values(), atol=1e-6)
    state = grown.to_state_dict()
    assert torch.equal(state["embedding_bags.a.ids"], names)
    assert state["embedding_bags.a.weight"].shape == (1 + len(names), 4)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_rows_are_saved_with_their_ids(made: Any, tmp_path: Path, before: int, after: int) -> None:
    first = made(shards=before)
    seen = train(first, ragged=False)
    first.save_checkpoint(tmp_path)
    second = made(shards=after)
    second.load_checkpoint(tmp_path)
    with torch.no_grad():
        assert torch.allclose(second(batch(99, ragged=False)).values(), seen, atol=1e-6)
    assert second.stats().counts["admitted"] == first.stats().counts["admitted"]
    on = [train(one, ragged=False, steps=range(20, 25)) for one in (first, second)]
    assert torch.allclose(*on, atol=1e-6), "Adagrad's sums as well"


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 2)])
def test_saved_ids_load_into_tables_with_more_or_fewer_rows(made: Any, tmp_path: Path, before: int, after: int) -> None:
    ids = torch.arange(300) * 7919 + 5
    tables = made(tables=[Table(None, 4, "a", most_rows=2000)], shards=before)
    tables(ids.unsqueeze(1)).values()
    names, rows = tables.grown("a")
    tables.save_checkpoint(tmp_path)
    for most in (1000, 4000):
        other = made(tables=[Table(None, 4, "a", most_rows=most)], shards=after)
        other.load_checkpoint(tmp_path)
        found, loaded = other.grown("a")
        assert torch.equal(found.sort().values, ids)
        assert torch.equal(loaded[1:][found.argsort()], rows[1:][names.argsort()])


def test_ids_without_a_row_share_one_and_an_evaluation_is_no_sighting(made: Any) -> None:
    tables = made(tables=[Table(None, 4, "a", most_rows=100, admit=2)])
    ids = torch.arange(10).unsqueeze(1) + HUGE
    with torch.no_grad():
        for _ in range(3):
            assert len(tables(ids).values().unique(dim=0)) == 1
    assert len(tables(ids).values().unique(dim=0)) == 1
    assert len(tables(ids).values().unique(dim=0)) == 10
    counts = tables.stats().counts
    assert (counts["admitted"], counts["waiting"]) == (10, 10)


def test_an_id_that_is_evicted_while_rows_are_read_has_the_shared_row(made: Any, monkeypatch: Any) -> None:
    tables = made(tables=[Table(None, 4, "a", most_rows=16)])
    client = tables.door.client
    for ids in (torch.arange(16), *[torch.arange(1, 16)] * PINNED):
        tables(ids.unsqueeze(1)).values()
    names = client.names

    def evicted(*given: int) -> Any:
        found = names(*given)
        tables(torch.tensor([[999]])).values()  # as another worker may
        return found

    monkeypatch.setattr(client, "names", evicted)
    ids, rows = tables.grown("a")
    assert tables.stats().counts["evicted"] == 1
    assert torch.equal(rows[1 + ids.tolist().index(0)], rows[0])


def test_ids_modulo_rows_are_told_how_many_share_one(made: Any) -> None:
    tables = made(tables=[Table(100, 4, "a", modulo=True)])
    ids = torch.arange(1000).unsqueeze(1) - 2000
    values = tables(ids).values()
    assert torch.equal(values[:100], values[100:200])
    assert tables.stats().sharing["a"] == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Table(None, 4, "a", admit=0), "admit=0"),
        (lambda: Table(None, 4, "a", admit=2.5), "admit=2.5"),
        (lambda: Table(None, 4, "a", evict="size"), "evict='size'"),
        (lambda: Table(None, 4, "a", most_rows=0), "most_rows=0"),
        (lambda: Table(None, 4, "a", modulo=True), "one of the two"),
    ],
)
def test_tables_that_cannot_grow_so_are_refused(make: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()


def test_what_a_table_that_grows_cannot_do_is_refused(made: Any) -> None:
    tables = made()
    with pytest.raises(ConfigError, match="'grows' grows"):
        tables.from_state_dict({})
    with pytest.raises(ConfigError, match="table 'plain' is not a growing table"):
        tables.grown("plain")
    assert "grows: up to 3,000 × 4" in repr(tables)
