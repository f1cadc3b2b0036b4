"""Each row's sum begins at what the optimizer says, wherever a row begins; a sum that was saved stays what it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shards_in_memory
import torch
from shards_in_memory import MemoryShards
from test_embedding_shard import train

from uneven.embedding import SGD, EmbeddingBagCollection, RowwiseAdagrad, Table
from uneven.embedding.pure.config import TableSpec
from uneven.embedding.pure.shard_tables import Holding, ShardSpec
from uneven.embedding.pure.sharding_plan import RowRange
from uneven.embedding.pure.table_wire import Say
from uneven.errors import ConfigError

FIRST = 0.25
BEGUN = RowwiseAdagrad(lr=0.1, initial_accumulator_value=FIRST)
FIXED = [Table(30, 4, "a"), Table(40, 4, "b")]
GROWN = Table(None, 4, "grows", most_rows=100)
SHY = Table(None, 4, "shy", most_rows=100, admit=200)  # all ids share the first row


def holding(*tables: Table, optimizer: Any = BEGUN) -> Holding:
    ranges = tuple(RowRange(number, 0, table.held) for number, table in enumerate(tables))
    return Holding.of(ShardSpec(TableSpec(tables, optimizer), ranges))


def stepped(tables: EmbeddingBagCollection, ids: torch.Tensor) -> torch.Tensor:
    """How far each number of the rows of some ids, shape (n,), goes under a gradient of ones."""
    before = tables(ids.unsqueeze(1)).values()
    before.sum().backward()
    tables.flush()
    with torch.no_grad():
        return before - tables(ids.unsqueeze(1)).values()


def after(squares: float) -> float:
    """The step with a sum that begins at FIRST and has got so much."""
    return 0.1 / (FIRST + squares) ** 0.5


def test_all_sums_of_numbered_tables_begin_at_it_and_one_of_a_table_that_grows() -> None:
    assert all((one.sums == np.float32(FIRST)).all() for one in holding(*FIXED))
    (grown,) = holding(GROWN)
    assert grown.sums[0] == FIRST, "of all ids without a row"
    assert not grown.sums[1:].any(), "memory is used as rows come"
    assert [len(one.sums) for one in holding(*FIXED, optimizer=SGD())] == [0, 0]


def test_a_row_that_comes_and_one_that_goes_to_another_id_begin_at_it() -> None:
    held = holding(Table(None, 4, "grows", most_rows=2))
    slots = held.slots(0, np.array([7, 8]), counted=True)
    assert held.sums[0].tolist() == [FIRST] * 3
    held.sums[0][:] = 9.0
    for _ in range(70):
        held.slots(0, np.array([8]), counted=True)
    (again,) = held.slots(0, np.array([9]), counted=True)
    assert again == slots[0], "of the id that was seen least lately"
    assert held.sums[0][again] == FIRST
    assert held.sums[0][slots[1]] == 9.0


@pytest.mark.parametrize("shards", [1, 3])
def test_tables_in_threads_begin_at_it_and_begin_anew_with_what_is_loaded(shards: int) -> None:
    tables = EmbeddingBagCollection([Table(50, 4, "a")], optimizer=BEGUN, shards=shards)
    ids = torch.tensor([1, 17, 49])
    assert torch.allclose(stepped(tables, ids), torch.tensor(after(1)))
    assert torch.allclose(stepped(tables, ids), torch.tensor(after(2)))
    tables.from_state_dict(tables.to_state_dict())
    assert torch.allclose(stepped(tables, ids), torch.tensor(after(1)))
    tables.close()


@pytest.mark.parametrize("table", [Table(50, 4, "a"), GROWN], ids=["numbered", "grows"])
def test_a_sum_that_was_saved_stays_what_it_was(tmp_path: Path, table: Table) -> None:
    plain = EmbeddingBagCollection([table], optimizer=RowwiseAdagrad(lr=0.1))
    ids = torch.tensor([3, 4])
    stepped(plain, ids)
    plain.save_checkpoint(tmp_path)
    plain.close()
    begun = EmbeddingBagCollection([table], optimizer=BEGUN, shards=2)
    begun.load_checkpoint(tmp_path)
    assert torch.allclose(stepped(begun, ids), torch.tensor(0.1 / 2**0.5)), "1 that was saved, and 1"
    new = torch.tensor([5])
    wanted = after(1) if table.grows else 0.1  # a row that nobody had looked up was saved as well, where it is numbered
    assert torch.allclose(stepped(begun, new), torch.tensor(wanted))
    begun.close()


@pytest.mark.parametrize("table", [Table(50, 4, "a"), GROWN, SHY], ids=["numbered", "grows", "shared"])
def test_sums_that_were_not_saved_begin_at_it(tmp_path: Path, table: Table) -> None:
    plain = EmbeddingBagCollection([table], optimizer=SGD())
    ids = torch.tensor([3])
    stepped(plain, ids)
    plain.save_checkpoint(tmp_path)
    plain.close()
    begun = EmbeddingBagCollection([table], optimizer=BEGUN)
    stepped(begun, ids)
    begun.load_checkpoint(tmp_path)
    assert torch.allclose(stepped(begun, ids), torch.tensor(after(1)))
    begun.close()


def test_a_shard_that_starts_again_with_nothing_saved_begins_at_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shards_in_memory, "TABLES", TableSpec(tuple(FIXED), BEGUN))
    shards = MemoryShards(2, folder=tmp_path)
    client = shards.client()
    train(shards, client, 3)
    shards.restart(1)
    shards.beat()
    shards.beat()
    lived, again = (one.holding for one in shards.shards)
    assert lived is not None
    assert again is not None
    assert all((one.sums >= FIRST).all() and (one.sums > FIRST).any() for one in lived)
    assert all((one.sums == FIRST).all() for one in again)


def test_a_shard_is_told_it_and_another_one_is_another_table() -> None:
    ranges = (RowRange(0, 0, 30),)
    told = ShardSpec(TableSpec(tuple(FIXED), BEGUN), ranges)
    assert ShardSpec.read(told.text) == told
    plain = ShardSpec(TableSpec(tuple(FIXED), RowwiseAdagrad(lr=0.1)), ranges)
    assert plain.fingerprint != told.fingerprint
    for wrong in ("-1", "NaN", "Infinity", "1e39", '"a"', "null", "1" + "0" * 400):
        with pytest.raises(ConfigError, match="initial_accumulator_value"):
            TableSpec.read(told.tables.text.replace(f'"initial_accumulator_value": {FIRST}',
                                                    f'"initial_accumulator_value": {wrong}'))  # fmt: skip


def test_numbers_too_large_for_any_number_are_refused_and_end_no_shard() -> None:
    text = TableSpec(tuple(FIXED), BEGUN).text
    for name, value in (("lr", "0.1"), ("seed", "0")):
        wrong = text.replace(f'"{name}": {value}', f'"{name}": ' + ("1" + "0" * 400 if name == "lr" else "Infinity"))
        assert wrong != text
        with pytest.raises(ConfigError, match="no description of tables"):
            TableSpec.read(wrong)
    with pytest.raises(ConfigError, match="no description of a shard"):
        ShardSpec.read(json.dumps([text, [[0, 0, float("inf")]]]))


OLDER = (
    '{"optimizer": ["adagrad", {"eps": 1e-08, "lr": 0.1}], "save_every_s": 100.0, "seed": 0, "tables": [{"admit": 1, '
    '"dim": 4, "evict": "age", "features": ["a"], "modulo": false, "most_rows": 1048576, "name": "a", "pooling": '
    '"sum", "rows": 50, "scale": null}, {"admit": 1, "dim": 4, "evict": "age", "features": ["b"], "modulo": false, '
    '"most_rows": 1048576, "name": "b", "pooling": "sum", "rows": 90, "scale": null}]}'
)
"""What tables were described by before there was an initial value."""


def test_what_was_saved_before_there_was_an_initial_value_is_gone_on_from(tmp_path: Path) -> None:
    assert TableSpec.read(OLDER) == shards_in_memory.TABLES
    shards = MemoryShards(1, folder=tmp_path)
    client = shards.client()
    train(shards, client, 4)
    shards.now_s += 100.0
    shards.beat()
    while shards.shards[0].busy or not list(tmp_path.glob("*/shard-0.json")):
        shards.tick()
    (mark,) = tmp_path.glob("*/shard-0.json")
    said = json.loads(mark.read_text())
    said["tables"] = json.dumps([OLDER, json.loads(said["tables"])[1]])
    mark.write_text(json.dumps(said))
    shards.restart(0)
    shards.beat()
    shards.beat()
    assert shards.shards[0].counts["restored"] == 1
    with client._changed:
        asked = {0: client._request(0, Say.LOAD, text=str(mark.parent))}
    assert client.outcome(asked, "load")[0].text == ""
