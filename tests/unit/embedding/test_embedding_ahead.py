"""Rows are asked for ahead in a session's loader; which shard has which rows is the same answer for all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import uneven
from uneven.embedding import EmbeddingBagCollection, Table
from uneven.embedding.pure.sharding_plan import groups_of, place
from uneven.errors import ConfigError, DataError


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection([Table(100, 4, "a")])
        self.top = nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.tables(ids).values())


class Run:
    """A session that is alone, with a model that has tables."""

    def __init__(self, *, share: bool = True, **loader: Any) -> None:
        self.model = Model()
        self.model.tables.door.share = share
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.session = uneven.Session()
        self.session.setup(self.model, self.optimizer)
        data = TensorDataset(torch.arange(60).unsqueeze(1))
        self.loader = self.session.loader(data, global_batch_size=10, ids=lambda batch: batch[0], **loader)

    def train(self, most: int = 99) -> list[int]:
        """The samples of so many batches."""
        seen: list[int] = []
        for number, (ids,) in enumerate(self.loader, 1):
            self.model(ids).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            seen += ids.flatten().tolist()
            if number == most:
                break
        return seen

    def close(self) -> None:
        self.session.close()
        self.model.tables.close()


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_rows_that_are_asked_for_ahead_are_as_much_older(ahead: int, share: bool) -> None:
    run = Run(ahead=ahead, share=share)
    assert run.loader.lookahead == ahead
    assert sorted(run.train()) == list(range(60))
    with run.session.evaluation_model():
        stats = run.model.tables.stats()
    assert stats.counts["lookups"] == stats.counts["applied"] == 6, "nothing is asked for twice"
    assert max(stats.staleness) <= ahead, "what is read in place is read when it is needed"
    assert share or max(stats.staleness) == ahead
    run.close()


def test_what_was_only_read_ahead_is_not_used() -> None:
    first = Run(ahead=2, shuffle=False)
    seen = first.train(most=2)
    state = first.session.state_dict()
    first.close()
    second = Run(ahead=2, shuffle=False)
    second.session.load_state_dict(state)
    assert seen + second.train() == list(range(60))
    second.close()


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(torch.zeros(20, 1, dtype=torch.long))


def test_ids_that_are_changed_in_place_after_they_are_read_ahead_get_their_own_rows() -> None:
    tables = EmbeddingBagCollection([Table(100, 4, "a")])
    ids = torch.tensor([[1], [2]])
    tables.door.ahead(ids, learning=True)
    ids += 10
    assert torch.equal(tables(ids).values(), tables(ids.clone()).values())
    tables.close()


def test_reading_ahead_in_vain_is_refused() -> None:
    session = uneven.Session()
    plain = nn.Linear(2, 1)
    session.setup(plain)
    data = TensorDataset(torch.zeros(20, 2))
    for loader, error, why in (
        ({"ahead": 1}, DataError, "and ids="),
        ({"ahead": -1, "ids": len}, DataError, "0 or more"),
        ({"ahead": 1, "ids": len}, ConfigError, "models with tables"),
    ):
        with pytest.raises(error, match=why):
            session.loader(data, global_batch_size=4, **loader)
    session.close()
    run = Model()
    other = uneven.Session()
    other.setup(run)
    with pytest.raises(DataError, match="of a stream"):
        other.loader(Stream(), global_batch_size=4, ahead=1, ids=len)
    other.close()
    run.tables.close()


TABLES = [Table(1000, 64, "wide"), Table(1000, 16, "narrow"), Table(100_000, 16, "long"), Table(10, 16, "small")]


def test_every_row_is_on_one_shard_and_costs_are_even() -> None:
    for shards in (1, 2, 3, 7):
        found = place(TABLES, shards)
        rows = sorted(part for each in found for part in each)
        for number, table in enumerate(TABLES):
            parts = [one for one in rows if one.table == number]
            assert [one.start for one in parts] == [0, *(one.stop for one in parts[:-1])]
            assert parts[-1].stop == table.num_embeddings
        for each in found:
            for group in groups_of(TABLES, each):
                assert group.bases[0] == 0
                assert group.rows == sum(one.rows for one in group.ranges)
    costs = [one.embedding_dim / one.num_embeddings for one in TABLES]
    cost = [sum(costs[one.table] * one.rows for one in each) for each in place(TABLES, 2)]
    assert max(cost) <= 64, "the widest alone"


def test_a_dear_table_is_cut_by_speed_and_a_large_one_by_room() -> None:
    (one,), (other,) = place([Table(900, 16, "a")], 2, speeds=[2, 1])
    assert (one.rows, other.rows) == (600, 300)
    dear = place(TABLES, 2, lookups={"small": 100.0})
    assert sum(one.table == 3 for each in dear for one in each) == 2
    cut = place([Table(1000, 15, "a"), Table(10, 15, "b")], 4, most_bytes=24_000)
    assert max(sum(one.rows for one in each) for each in cut) * 64 <= 24_000
    with pytest.raises(ConfigError, match=r"table 'a': .* fit into no shard"):
        place([Table(1000, 15, "a")], 2, most_bytes=24_000)
    with pytest.raises(ConfigError, match="0 shards"):
        place(TABLES, 0)
    with pytest.raises(ConfigError, match="for 2 shards: give a number above 0"):
        place(TABLES, 2, speeds=[1.0, 0.0])
