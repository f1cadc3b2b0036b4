"""Rows on disk learn as rows in memory do, with any part of them in memory; a save has each row whole."""

from __future__ import annotations

import json
import os
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shards_in_memory
import torch
from shards_in_memory import MemoryShards
from test_embedding_shard import train as train_shards
from torch import Tensor

from uneven.embedding import SGD, EmbeddingBagCollection, RowwiseAdagrad, Table, table_disk
from uneven.embedding.pure.config import TableSpec
from uneven.embedding.pure.row_cache import UNCOUNTED, WAYS, RowCache, runs, slot_bytes
from uneven.embedding.pure.shard_tables import ShardSpec
from uneven.embedding.pure.sharding_plan import RowRange
from uneven.embedding.pure.table_wire import Say
from uneven.embedding.table_host import PROGRAM, TABLES
from uneven.embedding.transfer import read_state
from uneven.errors import CheckpointError, ConfigError, PeerError
from uneven.runtime.messages.process import ShardKeeper

ROWS = 3000
ADAGRAD = RowwiseAdagrad(lr=0.1, initial_accumulator_value=0.01)
ALL, TENTH = 64 * ROWS * slot_bytes(8), ROWS // 10 * slot_bytes(8)


def on_disk(memory: int | str, **more: Any) -> list[Table]:
    """Two tables of one width, one of another, and one in memory."""
    return [
        Table(ROWS, 8, "a", ["left", "right"], memory=memory, **more),
        Table(ROWS, 8, "b", pooling="mean", memory=memory, **more),
        Table(ROWS, 5, "c", memory=memory, **more),
        Table(40, 8, "d", modulo=True),
    ]


IN_MEMORY = [Table(one.num_embeddings, one.embedding_dim, one.name, one.feature_names, one.pooling, modulo=one.modulo)
             for one in on_disk(ALL)]  # fmt: skip


@pytest.fixture
def made() -> Iterator[Callable[..., EmbeddingBagCollection]]:
    opened: list[EmbeddingBagCollection] = []

    def make(tables: list[Table], **more: Any) -> EmbeddingBagCollection:
        opened.append(EmbeddingBagCollection(tables, **({"optimizer": ADAGRAD} | more)))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def batch(step: int, many: int = 30) -> Any:
    """Ragged bags with weights; a few ids come often, and most ids come once."""
    random = np.random.default_rng(step)
    offsets = torch.arange(many) * 2
    offsets[1:] += torch.from_numpy(random.integers(0, 2, many - 1))
    ranks = {name: ROWS ** random.random(2 * many + 5) for name in ("left", "right", "b", "c", "d")}  # by Zipf's law
    weights = torch.from_numpy(random.random(2 * many + 5).astype(np.float32))
    return {
        name: (torch.from_numpy(one.astype(np.int64) * 977 % ROWS), offsets, weights) for name, one in ranks.items()
    }


def train(tables: EmbeddingBagCollection, steps: range) -> Tensor:
    """Return the pooled rows of the last batch, before its update."""
    values = torch.empty(0)
    for step in steps:
        values = tables(batch(step)).values()
        (values * torch.sin(torch.arange(values.numel())).view_as(values)).sum().backward()
    tables.flush()
    return values.detach()


def state(tables: EmbeddingBagCollection) -> dict[str, Tensor]:
    """All rows and sums."""
    return read_state(tables.door, sums=isinstance(tables.door.spec.optimizer, RowwiseAdagrad))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(rows, other[key]) for key, rows in one.items())


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("optimizer", [ADAGRAD, SGD(lr=0.1)], ids=["adagrad", "sgd"])
def test_rows_on_disk_are_bit_identical_to_rows_in_memory(made: Any, optimizer: Any, shards: int) -> None:
    """After the same training from the same rows, with memory for all of them and for a tenth."""
    whole = made(IN_MEMORY, optimizer=optimizer)
    begin = whole.to_state_dict()
    last = train(whole, range(60))
    for memory in (ALL, TENTH):
        tables = made(on_disk(memory), optimizer=optimizer, shards=shards)
        tables.from_state_dict(begin)
        assert same(tables.to_state_dict(), begin)
        values = train(tables, range(60))
        assert same(state(tables), state(whole))
        assert torch.equal(values, last)
        # The table as it was loaded, and then none, or those that made room.
        assert (tables.stats().counts["written"] > 3 * ROWS + 1000) == (memory == TENTH)


def test_rows_begin_by_their_ids_wherever_they_are(made: Any) -> None:
    grown = made([Table(None, 8, "a", most_rows=ROWS, scale=0.1)])
    ids = torch.arange(ROWS).unsqueeze(1)
    wanted = grown(ids).values().detach()
    for memory, shards in ((ALL, 1), (TENTH, 2)):
        tables = made([Table(ROWS, 8, "a", scale=0.1, memory=memory)], shards=shards)
        assert torch.equal(tables(ids).values().detach(), wanted)
        assert torch.equal(torch.cat([rows for _, _, rows in tables.rows()]), wanted)


def test_a_lookup_of_an_evaluation_sees_all_updates_and_evicts_no_row(made: Any) -> None:
    tables = made([Table(ROWS, 8, "a", memory=TENTH)])
    ids = torch.arange(200).unsqueeze(1)
    for _ in range(3):
        tables(ids).values().sum().backward()
    tables.flush()
    before, wanted = tables.stats().counts, tables.to_state_dict()["embedding_bags.a.weight"]
    tables.requires_grad_(False)
    assert torch.equal(tables(torch.arange(ROWS).unsqueeze(1)).values(), wanted)
    after = tables.stats().counts
    assert after["written"] == before["written"], "a row that was changed is still in memory"
    tables.requires_grad_(True)
    tables(ids).values()
    assert tables.stats().counts["read"] - after["read"] == before["written"], "those that never were in memory"


def seen(cache: RowCache, ids: np.ndarray, weight: float = 1.0) -> None:
    ids = ids.astype(np.int32)
    slots = cache.find(ids)
    new = cache.see(ids, slots, np.full(len(ids), weight, np.float32))
    assert not np.isin(new[new >= 0], slots).any()
    assert len(set(new[new >= 0].tolist())) == (new >= 0).sum()
    cache.place(ids[new >= 0], new[new >= 0])


def test_frequent_rows_stay_while_rare_ones_pass_and_leave_when_their_time_is_over() -> None:
    cache = RowCache(64 * WAYS)
    frequent = np.arange(400)
    for _ in range(8):
        seen(cache, frequent)
    for start in range(1000, 3000, 50):
        seen(cache, np.arange(start, start + 50))
    assert (cache.find(frequent.astype(np.int32)) >= 0).all(), "2,000 other ids, each once"
    for start in range(10_000, 40_000, 50):
        seen(cache, np.arange(start, start + 50))
    assert (cache.find(frequent.astype(np.int32)) < 0).all()
    recent = np.arange(39_000, 40_000, dtype=np.int32)
    held = cache.find(recent)
    assert (held >= 0).mean() > 0.8
    seen(cache, np.arange(50_000, 60_000), UNCOUNTED)
    assert (cache.find(recent) == held).all(), "lookups that do not count take no slot of a row in use"


def test_a_row_that_makes_room_for_another_one_of_its_batch_keeps_its_update() -> None:
    spec = TableSpec((Table(100, 4, "a", memory=WAYS * slot_bytes(4)),), RowwiseAdagrad())
    rows = table_disk.DiskRows(ShardSpec(spec, (RowRange(0, 0, 100),)), 0, None)
    for ids, often in ((range(WAYS), 1), ([WAYS, *range(WAYS)], 50)):
        places = np.array(ids, np.int32)
        _, sums, slots = rows.take(places, np.where(places < WAYS, 1, often).astype(np.float32))
        rows.put(places, slots, np.repeat(places[:, None], 4, 1).astype(np.float32), sums)
    assert np.array_equal(rows.take(places, np.ones(len(places), np.float32))[0][:, 0], places)


def test_each_row_in_memory_has_one_slot_and_neighbours_are_one_run() -> None:
    random, cache = np.random.default_rng(2), RowCache(4 * WAYS)
    for _ in range(300):
        seen(cache, np.unique(random.zipf(1.3, 40) % 500))
        ids = cache.ids.reshape(-1)
        taken = np.flatnonzero(ids >= 0)
        assert (cache.find(ids[taken]) == taken).all()
        assert len(set(ids[taken].tolist())) == len(taken)
    cache.changed[taken[::2]] = True
    slots, ids = cache.leaving(taken)
    assert (np.diff(ids) > 0).all()
    assert sorted(slots.tolist()) == taken[::2].tolist()
    assert runs(np.array([0, 1, 2, 7, 9, 10])) == [(0, 3), (7, 1), (9, 2)]
    assert runs(np.array([], np.int64)) == []


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_a_save_loads_on_any_number_of_shards_with_rows_on_disk_or_in_memory(
    made: Any, tmp_path: Path, before: int, after: int
) -> None:
    first = made(on_disk(TENTH), shards=before)
    train(first, range(20))
    wanted = state(first)
    first.save_checkpoint(tmp_path / "disk")
    assert same(state(first), wanted)
    memory = made(IN_MEMORY, shards=after, seed=0)
    memory.load_checkpoint(tmp_path / "disk")
    assert same(state(memory), wanted)
    memory.save_checkpoint(tmp_path / "memory")
    for folder in ("disk", "memory"):
        second = made(on_disk(TENTH), shards=after, placed_by=tmp_path / folder)
        train(second, range(30, 35))
        second.load_checkpoint(tmp_path / folder)
        assert same(state(second), wanted)
    train(second, range(20, 30))
    train(memory, range(20, 30))
    assert same(state(second), state(memory)), "sums as well"
    second.save_checkpoint(tmp_path / "again")
    train(memory, range(40, 45))
    memory.save_checkpoint(tmp_path / "again")
    second.load_checkpoint(tmp_path / "again")
    assert same(state(second), state(memory)), "not those that the table on disk saved there before"


def test_rows_that_were_saved_with_sgd_begin_with_adagrads_initial_sum(made: Any, tmp_path: Path) -> None:
    tables = [Table(100, 4, "a", memory=WAYS * slot_bytes(4))]
    first = made(tables, optimizer=SGD())
    first(torch.arange(50).unsqueeze(1)).values().sum().backward()
    first.flush()
    first.save_checkpoint(tmp_path)
    second = made(tables)
    second.load_checkpoint(tmp_path)
    assert (state(second)["embedding_bags.a.sum"] == np.float32(0.01)).all()


def test_a_save_has_the_holes_of_the_file_on_the_same_disk_and_on_another(made: Any, tmp_path: Path) -> None:
    tables = made([Table(10**6, 16, "a", memory="1MB", path=str(tmp_path))])
    assert not any(tmp_path.iterdir()), "the file has no name"
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 2000, (1000, 1)) * 499)
    for _ in range(2):
        tables(ids).values().sum().backward()
        tables(ids // 499).values().sum().backward()
    wanted = tables(ids).values().detach()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        for folder in (tmp_path / "saved", Path(memory) / "saved"):
            tables.save_checkpoint(folder)
            (file,) = folder.glob("*.disk")
            assert file.stat().st_size == 10**6 * 68
            assert file.stat().st_blocks * 512 < file.stat().st_size / 3
            again = made([Table(10**6, 16, "a", memory="5MB")], shards=2)
            again.load_checkpoint(folder)
            assert torch.equal(again(ids).values().detach(), wanted)
        with file.open("r+b") as damaged:
            damaged.truncate(1000)
        with pytest.raises(CheckpointError, match="has 1,000 bytes, but 1,000,000 rows of 16 numbers"):
            again.load_checkpoint(folder)
        next(folder.glob("*.newer")).unlink()
        with pytest.raises(CheckpointError, match="No such file"):
            again.load_checkpoint(folder)


def test_a_row_that_changes_during_a_save_is_saved_whole_with_all_earlier_updates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = TableSpec(
        (Table(50, 4, "a", memory=32 * slot_bytes(4)), Table(90, 4, "b", memory=16 * slot_bytes(4))), ADAGRAD
    )
    monkeypatch.setattr(shards_in_memory, "TABLES", spec)
    monkeypatch.setattr(table_disk, "_BLOCK", 7)
    monkeypatch.setattr(table_disk, "_PIECE_BYTES", 1)
    monkeypatch.setattr(table_disk, "_PAGE", 8)
    shards = MemoryShards(1)
    (shard,), client = shards.shards, shards.client()
    train_shards(shards, client, 10)
    rows = Rows(shards)
    history = [rows.now()]
    with client._changed:
        client._request(0, Say.SAVE, text=str(tmp_path))
    step = 10
    while shard.busy:
        shards.tick()
        train_shards(shards, client, 1, first=step)
        history.append(rows.now())
        step += 1
    assert step > 30, "many steps, and an update between any two"
    shards.restart(0)
    shards.beat()
    shards.beat()
    with client._changed:
        asked = {0: client._request(0, Say.LOAD, text=str(tmp_path))}
    assert client.outcome(asked, "load")[0].text == ""
    saved = Rows(shards).now()
    versions = [
        next((time for time, then in enumerate(history) if np.array_equal(then[row], saved[row])), -1)
        for row in range(len(saved))
    ]
    assert min(versions) == 0, "no torn row, and none from before the save"
    assert len(set(versions)) > 5, "of different times"


class Rows:
    """All rows and sums of a shard with two tables on disk."""

    def __init__(self, shards: MemoryShards) -> None:
        (shard,) = shards.shards
        assert shard.holding is not None
        self._disk = shard.holding.disks[0]

    def now(self) -> np.ndarray:
        rows, sums, _ = self._disk.take(np.arange(140, dtype=np.int32), np.full(140, UNCOUNTED, np.float32))
        return np.column_stack([rows, sums])


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardKeeper]:
    monkeypatch.setenv("UNEVEN_RUN", str(tmp_path))
    with ShardKeeper(tmp_path / TABLES, 1, 1, program=PROGRAM) as keeper:
        yield keeper


def test_a_killed_server_has_exactly_the_rows_of_its_last_checkpoint(
    made: Any, servers: ShardKeeper, tmp_path: Path
) -> None:
    tables = made(on_disk(TENTH))
    train(tables, range(20))
    tables.save_checkpoint(tmp_path / "saved")
    wanted = state(tables)
    train(tables, range(20, 40))
    tables.load_checkpoint(tmp_path / "saved")
    train(tables, range(40, 60))
    assert not same(state(tables), wanted)
    os.kill(servers.pids()[0], signal.SIGKILL)
    assert same(state(tables), wanted)
    assert (tables.stats().restarts, tables.stats().lost) == (1, 20)


@pytest.mark.rest
def test_a_server_that_saves_itself_restarts_from_that(
    made: Any, servers: ShardKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = made(on_disk(TENTH), save_every_s=0.3)
    step = 0
    while tables.stats().counts["saved"] < 3:
        train(tables, range(step, step + 5))
        step += 5
    os.kill(servers.pids()[0], signal.SIGKILL)
    found = state(tables)
    assert tables.stats().counts["restored"] == 1
    tables.close()
    marks = (tmp_path / TABLES / "saved").glob("*/shard-0.json")
    newest = max(marks, key=lambda one: json.loads(one.read_text())["version"])
    monkeypatch.delenv("UNEVEN_RUN")
    alone = made(on_disk(ALL))
    alone.load_checkpoint(newest.parent)
    assert same(state(alone), found)


def test_a_disk_that_fails_ends_the_training_with_its_error(made: Any, servers: ShardKeeper) -> None:
    tables = made([Table(ROWS, 8, "a", memory=TENTH)])
    tables.flush()
    for pid in servers.pids():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, 4096))
    draw = np.random.default_rng(0)

    def until_rows_leave_the_memory() -> None:
        for _ in range(100):
            tables(torch.from_numpy(draw.integers(0, ROWS, (100, 1)))).values().sum().backward()

    with pytest.raises(PeerError, match=r"the disk of its rows has failed: .*File too large; make room"):
        until_rows_leave_the_memory()
    with pytest.raises(PeerError, match="File too large"):
        tables.flush()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Table(9, 4, "a", memory="2 gigabytes"), "memory='2 gigabytes'.*as '500MB'"),
        (lambda: Table(9, 4, "a", memory=0), "memory=0"),
        (lambda: Table(9, 4, "a", memory=float("inf")), "memory=inf"),
        (lambda: Table(None, 4, "a", memory="2GB"), "num_embeddings=None, memory='2GB'.*modulo=True"),
        (lambda: Table(9, 4, "a", memory="2GB", path="rows"), "path='rows'.*absolute"),
        (lambda: Table(9, 4, "a", path="/tmp"), "path='/tmp'.*memory="),
        (lambda: Table(2**31 - 1, 4, "a", memory="2GB"), "num_embeddings=2147483647"),
    ],
)
def test_tables_that_cannot_be_on_disk_are_refused(make: Callable[[], Table], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()


def test_sizes_are_numbers_with_decimal_units() -> None:
    assert [Table(9, 4, "a", memory=one).memory_bytes for one in (7, "7", "1.5kB", "2 MB", "2GB", "1TB")] == [
        7, 7, 1500, 2 * 10**6, 2 * 10**9, 10**12,
    ]  # fmt: skip
    assert Table(9, 4, "a", memory=np.int64(7), path=Path("/ssd")) == Table(9, 4, "a", memory=7, path="/ssd")


def test_a_shard_without_room_says_so_before_the_training(made: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for table, why in (
        (Table(9, 4, "a", memory="1MB", path=f"{tmp_path}/none"), "'a' cannot store rows in .*none: .*No such file"),
        (Table(9, 4, "a", memory="1MB", path=f"{tmp_path}/file"), "'a' cannot store rows in .*file: .*ot a directory"),
        (Table(10**9, 2**14, "a", memory="2MB"), r"'a': its rows take up to 65,540.0 GB on disk, and .* larger disk"),
        (Table(10**9, 4, "a", memory="900TB"), "need 900,000.0 GB of memory .*, and .* GB are free: lower"),
    ):
        with pytest.raises(PeerError, match=why):
            _ = made([table]).door.client
    with pytest.raises(ConfigError, match=r"tables 'a', 'b' have 200 bytes of memory on a shard: .* at least 464"):
        _ = made([Table(9000, 4, name, memory=100) for name in "ab"]).door.client
    with pytest.raises(ConfigError, match=r"4,000,000,000 rows of 4 numbers exceed one shard"):
        _ = made([Table(2 * 10**9, 4, name, memory="1MB") for name in "ab"]).door.client


def test_a_state_dict_holds_no_table_on_disk(made: Any) -> None:
    tables = made([Table(9, 4, "a", memory="1MB")])
    with pytest.raises(ConfigError, match=r"state_dict: table 'a' is on disk.*in_state_dict=False.*save_checkpoint"):
        tables.state_dict()
    assert tables.to_state_dict()["embedding_bags.a.weight"].shape == (9, 4)
    with pytest.raises(ConfigError, match=r"to_state_dict: the rows take .* tables.rows\(\)"):
        made([Table(10**9, 2**14, "a", memory="2MB")]).to_state_dict()


def test_tables_in_memory_are_described_as_before() -> None:
    text = TableSpec((Table(9, 4, "a"),), ADAGRAD).text
    assert "memory" not in text
    assert "path" not in text
    spec = TableSpec((Table(9, 4, "a", memory="2GB", path="/ssd"),), ADAGRAD)
    assert TableSpec.read(spec.text) == spec
