"""Tables saved by some shards are those of any other number; a shard that dies goes on from what it saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shards_in_memory import MemoryShards
from test_embedding_shard import tables, train

from uneven.embedding import EmbeddingBagCollection, RowwiseAdagrad, Table, table_files
from uneven.embedding.pure.sharding_plan import MeasuredTables
from uneven.embedding.pure.table_wire import Say
from uneven.errors import CheckpointError, ConfigError, PeerError

TABLES = [Table(300, 8, "a", ["left", "right"]), Table(7000, 8, "b"), Table(40, 4, "c")]


def trained(shards: int, steps: int, first: int = 0, made: Any = None) -> EmbeddingBagCollection:
    found = made or EmbeddingBagCollection(TABLES, optimizer=RowwiseAdagrad(lr=0.1), shards=shards)
    for step in range(first, first + steps):
        ids = torch.randint(0, 40, (16, 4), generator=torch.Generator().manual_seed(step))
        found(ids).values().square().sum().backward()
    found.flush()
    return found


def test_another_number_of_shards_goes_on_just_as_one_would_have(tmp_path: Path) -> None:
    whole, half = trained(1, 12), trained(3, 6)
    half.save_checkpoint(tmp_path / "saved")
    half.close()
    rest = EmbeddingBagCollection(TABLES, optimizer=RowwiseAdagrad(lr=0.1), shards=2)
    rest.load_checkpoint(tmp_path / "saved")
    trained(2, 6, 6, rest)
    for key, weight in whole.to_state_dict().items():
        assert torch.allclose(weight, rest.to_state_dict()[key], atol=1e-6)
    files = sorted(path.name for path in (tmp_path / "saved").glob("shard-*.json"))
    assert files == ["shard-0.json", "shard-1.json", "shard-2.json"]
    other = EmbeddingBagCollection([*TABLES, Table(9, 8, "d")])
    with pytest.raises(CheckpointError, match="lacks 9 rows of table 'd'"):
        other.load_checkpoint(tmp_path / "saved")
    wider = EmbeddingBagCollection([Table(40, 16, "c")])
    with pytest.raises(CheckpointError, match=r"rows of shape \(4,\), but the table has \(16,\)"):
        wider.load_checkpoint(tmp_path / "saved")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot save .*file"):
        whole.save_checkpoint(tmp_path / "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a-0-300.rows.npy").symlink_to("/dev/full")
    with pytest.raises(CheckpointError, match="No space left"):
        whole.save_checkpoint(tmp_path / "full")
    assert not list((tmp_path / "full").glob("shard-*.json"))
    for one in (whole, rest, other, wider):
        one.close()
    with pytest.raises(ConfigError, match="save_every_s=0"):
        EmbeddingBagCollection(TABLES, save_every_s=0)


def saved(shards: MemoryShards) -> None:
    """It is time to save, and all do."""
    shards.now_s += 100.0
    shards.beat()
    for _ in range(50):
        shards.tick()
    assert not any(one.busy for one in shards.shards)


def test_a_shard_that_dies_goes_on_from_what_it_saved_and_the_lost_are_counted(tmp_path: Path) -> None:
    shards = MemoryShards(2, folder=tmp_path)
    client = shards.client()
    train(shards, client, 8)
    saved(shards)
    then = tables(shards)
    train(shards, client, 5, first=8)
    shards.restart(1)
    train(shards, client, 3, first=13)
    assert (client.restarts, client.lost) == (1, 5)
    assert [one.counts["restored"] for one in shards.shards] == [0, 1]
    assert shards.shards[0].version == 16
    assert shards.shards[1].version == 11, "eight that were saved, and three"
    again = MemoryShards(2)
    other = again.client()
    train(again, other, 8)
    assert all(np.array_equal(one, two) for one, two in zip(tables(again), then, strict=True))
    train(again, other, 5, first=8)
    train(again, other, 3, first=13)
    same = [np.array_equal(one, two) for one, two in zip(tables(again), tables(shards), strict=True)]
    assert same == [True, False], "the shard that lived has them all"


def test_of_two_saves_one_stays_whole(tmp_path: Path) -> None:
    shards = MemoryShards(1, folder=tmp_path)
    client = shards.client()
    for first in (0, 4):
        train(shards, client, 4, first=first)
        saved(shards)
    before = tables(shards)
    train(shards, client, 4, first=8)
    shards.now_s += 100.0
    shards.tick()  # has begun with the older one, and is killed
    assert shards.shards[0].busy
    shards.restart(0)
    shards.beat()
    shards.beat()
    assert shards.shards[0].version == 8
    assert all(np.array_equal(one, two) for one, two in zip(before, tables(shards), strict=True))
    assert client.lost == 4


def test_updates_that_are_under_way_when_a_shard_dies_are_not_lost() -> None:
    shards = MemoryShards(1)
    client = shards.client()
    asked = client.ask(shards.router.route(shards.features([1])))
    asked.values()
    shards.loses = lambda message: True
    client.give(asked, np.ones((1, 8), np.float32))
    shards.restart(0)
    shards.loses = lambda message: False
    for _ in range(4):
        shards.beat()
    assert shards.shards[0].counts["applied"] == 1
    assert client.lost == 0


def test_the_next_start_places_tables_by_what_was_measured(tmp_path: Path) -> None:
    tables = [Table(100, 4, "busy"), Table(100, 4, "idle"), Table(100, 4, "dull")]
    first = EmbeddingBagCollection(tables, shards=2)
    ids = {name: torch.zeros(8, 9 if name == "busy" else 1, dtype=torch.long) for name in ("busy", "idle", "dull")}
    first(ids).values().sum().backward()
    first.save_checkpoint(tmp_path)
    first.close()
    measured = MeasuredTables.read((tmp_path / "measured.json").read_text())
    assert measured.lookups == {"busy": 9.0, "idle": 1.0, "dull": 1.0}
    assert len(measured.speeds) == 2
    assert min(measured.speeds) > 0
    (tmp_path / "measured.json").write_text(MeasuredTables(measured.lookups, (3.0, 1.0)).text)
    second = EmbeddingBagCollection(tables, shards=2, placed_by=tmp_path)
    second.load_checkpoint(tmp_path)
    held = [{part.table: part.rows for part in one.ranges} for one in second.door.shards()]
    assert held[0][0] == 75, "busy is cut by speed"
    assert second(ids).values().shape == (8, 12)
    second.close()
    with pytest.raises(ConfigError, match="placed_by"):
        EmbeddingBagCollection(tables, placed_by=tmp_path / "none")
    with pytest.raises(ConfigError, match="no measurements"):
        MeasuredTables.read("[]")


def test_a_save_that_lasts_is_asked_for_again_and_done_once(tmp_path: Path) -> None:
    """A beat asks again for whatever has not been answered, and a save of gigabytes takes many beats."""
    shards = MemoryShards(1)
    shard, client = shards.shards[0], shards.client()

    def asked(folder: str) -> dict[int, int]:
        with client._changed:
            return {0: client._request(0, Say.SAVE, text=str(tmp_path / folder))}

    number = asked("here")
    for _ in range(3):
        shards.beat()
        assert client._answers[0, number[0]] is None, "it is still at it"
    while shard.busy:
        shards.tick()
    assert client.outcome(number, "save")[0].text == ""
    assert shard.counts["saved"] == 1

    shards.loses = lambda message: message.kind is Say.DONE
    number = asked("there")
    while shard.busy:
        shards.tick()
    shards.loses = lambda message: False
    shards.beat()  # and asks again, for the answer was lost
    assert client.outcome(number, "save")[0].text == ""
    assert (shard.counts["saved"], shard.busy) == (2, False)
    again = client._links[0]._new(Say.SAVE, text=str(tmp_path / "there"))
    shards.client()  # another process of this rank, whose questions have the same numbers
    shards.hand(0, replace(again, number=number[0]))
    assert shard.busy


def test_a_save_that_is_asked_for_while_a_shard_saves_by_itself_comes_after_that(tmp_path: Path) -> None:
    shards = MemoryShards(1, folder=tmp_path)
    shard, client = shards.shards[0], shards.client()
    assert shard.holding is not None
    shard._begin_saving(None, shard.holding)
    with client._changed:
        number = {0: client._request(0, Say.SAVE, text=str(tmp_path / "here"))}
    for _ in range(3):
        shards.beat()
    assert client._answers[0, number[0]] is None
    while shard.busy:
        shards.tick()
    assert client.outcome(number, "save")[0].text == ""
    assert shard.counts["saved"] == 2
    assert any((tmp_path / "here").iterdir())


def loading(shards: MemoryShards, client: Any, folder: Path) -> dict[int, int]:
    """All are asked to load."""
    with client._changed:
        return {shard: client._request(shard, Say.LOAD, text=str(folder)) for shard in range(len(shards.shards))}


@pytest.fixture
def elsewhere(tmp_path: Path) -> tuple[Path, list[np.ndarray]]:
    """A folder that other shards saved to, and the rows there."""
    others = MemoryShards(1)
    client = others.client()
    train(others, client, 9)
    with client._changed:
        client._request(0, Say.SAVE, text=str(tmp_path / "saved"))
    while others.shards[0].busy:
        others.tick()
    return tmp_path / "saved", tables(others)


@pytest.mark.parametrize("busy", [False, True])
def test_a_shard_that_dies_after_a_restore_goes_on_from_that(
    tmp_path: Path, elsewhere: tuple[Path, list[np.ndarray]], busy: bool
) -> None:
    folder, wanted = elsewhere
    shards = MemoryShards(1, folder=tmp_path / "own")
    client = shards.client()
    for first in (0, 4):
        train(shards, client, 4, first=first)
        saved(shards)
    shards.now_s += 100.0
    for _ in range(int(busy)):
        shards.tick()  # it has begun to save by itself
    assert shards.shards[0].busy == busy
    client.outcome(loading(shards, client, folder), "load")
    assert not shards.shards[0].busy, "rows from before and after would be one save"
    shards.restart(0)
    shards.beat()
    shards.beat()
    assert shards.shards[0].counts["restored"] == 1
    assert all(np.array_equal(one, two) for one, two in zip(tables(shards), wanted, strict=True))
    train(shards, client, 3, first=20)
    saved(shards)
    then = tables(shards)
    shards.restart(0)
    shards.beat()
    shards.beat()
    assert all(np.array_equal(one, two) for one, two in zip(tables(shards), then, strict=True)), "and then from later"
    assert client.lost == 0


def test_who_saves_while_tables_are_loaded_is_told_and_what_is_there_is_no_save(
    tmp_path: Path, elsewhere: tuple[Path, list[np.ndarray]]
) -> None:
    folder, wanted = elsewhere
    shards = MemoryShards(1, members=2)
    first, second = shards.client(0), shards.client(1)
    with first._changed:
        asked = {0: first._request(0, Say.SAVE, text=str(tmp_path / "mixed"))}
    shards.tick()
    second.outcome(loading(shards, second, folder), "load")
    assert "loaded meanwhile" in first.outcome(asked, "save")[0].text
    assert all(np.array_equal(one, two) for one, two in zip(tables(shards), wanted, strict=True))
    answer = second.outcome(loading(shards, second, tmp_path / "mixed"), "load")[0].text
    assert "no saved tables" in answer
    assert shards.shards[0].counts["not saved"] == 1


def test_a_folder_that_was_saved_into_by_different_numbers_of_shards_is_named_as_one(tmp_path: Path) -> None:
    for count in (3, 2):
        made = trained(count, 2)
        made.save_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"rows of table 'a' more than once.*save each into its own folder"):
        made.load_checkpoint(tmp_path)
    made.close()


def test_a_save_that_ended_before_all_shards_began_it_is_named(tmp_path: Path) -> None:
    made = trained(2, 2)
    made.save_checkpoint(tmp_path)
    before = (tmp_path / "shard-1.json").read_bytes()
    made.save_checkpoint(tmp_path)
    made.load_checkpoint(tmp_path)
    (tmp_path / "shard-1.json").write_bytes(before)
    with pytest.raises(CheckpointError, match="the last save into it was not completed"):
        made.load_checkpoint(tmp_path)
    made.close()


def test_a_table_with_another_number_of_rows_is_named(tmp_path: Path) -> None:
    made = EmbeddingBagCollection([Table(1000, 4, "a")])
    made.save_checkpoint(tmp_path)
    for rows in (600, 2000):
        other = EmbeddingBagCollection([Table(rows, 4, "a")])
        with pytest.raises(CheckpointError, match=rf"table 'a' has 1,000 rows there, and {rows:,} here"):
            other.load_checkpoint(tmp_path)
        other.close()
    made.close()


FOREIGN = (
    "[1]",
    "5",
    "{}",
    '{"ranges": 5}',
    '{"tables": "", "version": 1, "ranges": [["a"]]}',
    '{"ranges": [], "version": []}',
)


def test_a_folder_without_tables_is_refused_and_the_rows_stay(tmp_path: Path) -> None:
    made = trained(1, 2)
    then = made.to_state_dict()
    for place, text in enumerate(FOREIGN):
        (tmp_path / str(place)).mkdir()
        (tmp_path / str(place) / "shard-0.json").write_text(text)
    for folder in ("none", "a\0b", *map(str, range(len(FOREIGN)))):
        with pytest.raises(CheckpointError, match="it has no saved tables: name a folder"):
            made.load_checkpoint(tmp_path / folder)
    with pytest.raises(CheckpointError, match=r"cannot save .*null byte"):
        made.save_checkpoint(tmp_path / "a\0b")
    assert all(torch.equal(rows, then[key]) for key, rows in made.to_state_dict().items())
    made.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_shard_that_ends_with_an_error_says_so_to_its_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = trained(2, 2)
    monkeypatch.delattr(table_files, "_written")
    with pytest.raises(PeerError, match="line to the tables has ended: name '_written' is not defined"):
        made.save_checkpoint(tmp_path)
    with pytest.raises(PeerError, match="name '_written' is not defined"):
        made.flush()
    with pytest.raises(PeerError, match=r"shard at .* has ended: name '_written'"):
        made.close()
