"""Each update is in the rows once, whatever gets lost; what is malformed changes nothing; nobody waits for the gone."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from shards_in_memory import TABLES, MemoryShards

from uneven.embedding import EmbeddingBagCollection, Table, access
from uneven.embedding.pure.row_optimizers import Bags
from uneven.embedding.pure.shard_tables import ShardSpec
from uneven.embedding.pure.table_wire import ENTRY_BYTES, HEADER_BYTES, READER, Say, TableMessage, decode, encode
from uneven.embedding.table_client import TableClient
from uneven.errors import ConfigError, PeerError
from uneven.runtime.parameter_server.pure.wire import PIECE_BYTES, Refusal, Refused


def train(shards: MemoryShards, client: TableClient, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        ids = [(step * 7 + k) % 50 for k in range(6)]
        asked = client.ask(shards.router.route(shards.features(ids)))
        heard(shards, client, lambda asked=asked: all(client._answers[key] for key in asked._numbers.items()))
        client.give(asked, np.sin(np.arange(48) + step).astype(np.float32).reshape(asked.values().shape))
    heard(shards, client, lambda: not any(link.kept for link in client._links.values()))


def heard(shards: MemoryShards, client: TableClient, done: Callable[[], bool]) -> None:
    for _ in range(500):
        if done():
            return
        shards.beat(client.rank)
    raise AssertionError("it never arrives")


def tables(shards: MemoryShards) -> list[np.ndarray]:
    return [one.rows.copy() for shard in shards.shards if shard.holding for one in shard.holding]


@pytest.mark.parametrize("seed", range(5))
def test_updates_are_applied_once_whatever_is_lost(seed: int) -> None:
    sound, lossy = MemoryShards(2), MemoryShards(2)
    train(sound, sound.client(), 20)
    random = np.random.default_rng(seed)
    lossy.loses = lambda message: bool(random.random() < 0.3)
    client = lossy.client()
    train(lossy, client, 20)
    for one, other in zip(tables(sound), tables(lossy), strict=True):
        assert np.array_equal(one, other)
    assert client.lost == 0


def test_a_repeated_update_is_passed_over_and_a_missing_one_asked_for() -> None:
    shards = MemoryShards(1)
    client = shards.client()
    kept: list[TableMessage] = []
    shards.loses = lambda message: message.kind is Say.GRADIENT and (kept.append(message) or len(kept) == 1)
    for _ in range(2):
        asked = client.ask(shards.router.route(shards.features([1])))
        asked.values()
        client.give(asked, np.ones((1, 8), np.float32))
    (shard,) = shards.shards
    assert shard.counts["gaps"] == 1
    assert shard.counts["applied"] == 2, "the first was sent again, before the second"
    before = tables(shards)
    assert shard.take(encode(kept[0]), 0.0) == (0, [])
    assert shard.counts["repeated"] >= 1
    assert all(np.array_equal(one, other) for one, other in zip(before, tables(shards), strict=True))


def test_a_nan_is_refused_as_a_whole_and_counted() -> None:
    shards = MemoryShards(1)
    client = shards.client()
    asked = client.ask(shards.router.route(shards.features([1, 2])))
    given = np.ones_like(asked.values())
    given[1, 0] = np.nan
    before = tables(shards)
    client.give(asked, given)
    assert shards.shards[0].counts["nonfinite"] == 1
    assert all(np.array_equal(one, other) for one, other in zip(before, tables(shards), strict=True))
    train(shards, client, 2)
    assert shards.shards[0].counts["applied"] == 2, "those after it are"


def test_how_stale_lookups_were_is_counted() -> None:
    shards = MemoryShards(1)
    client = shards.client()
    routed = shards.router.route(shards.features([3]))
    ahead = client.ask(routed)
    for _ in range(3):
        asked = client.ask(routed)
        client.give(asked, np.ones_like(asked.values()))
    client.give(ahead, np.ones_like(ahead.values()))
    stats = client.stats()
    assert stats.staleness == {0: 3, 3: 1}
    assert (stats.stale(0.5), stats.stale(0.95)) == (0, 3)


def test_a_flush_waits_for_all_who_are_there_and_for_nobody_else() -> None:
    shards = MemoryShards(2, members=3)
    one, other = shards.client(0), shards.client(1)
    with pytest.raises(
        PeerError, match=r"no answer to a flush of all workers within 0\.01 s from shard 0 \(memory 0\)"
    ):
        one.flush()  # the other has not come, and the third may still
    assert one._meetings == 1
    other._meetings = 1
    shards.now_s = 6.0  # the third has never come, and one has been silent
    shards.beat(1)
    shards.tick()
    other.flush()
    other.leave()
    shards.beat(0)
    one.flush()  # the other has left; signs of life do not take that back
    shards.beat(1)
    one.flush()


def test_flushes_of_workers_that_have_started_again_wait_for_each_other() -> None:
    shards = MemoryShards(1, members=2)
    for start in range(2):
        one, other = shards.client(0), shards.client(1)
        for meeting in range(3):
            with pytest.raises(PeerError, match="no answer to a flush"):
                one.flush()
            other.flush()
            assert one._meetings == other._meetings == meeting + 1, start


def test_a_shard_with_other_tables_refuses() -> None:
    shards = MemoryShards(1, members=2)
    shards.client(0)
    shards.specs = (ShardSpec(TABLES, shards.specs[0].ranges[:1]),)
    other = shards.client(1)
    asked = other.ask(shards.router.route(shards.features([1])))
    shards.beat(1)
    with pytest.raises(PeerError, match="another table"):
        asked.values()
    assert shards.shards[0].counts["another table of tensors"] >= 1


def test_a_worker_that_joins_later_is_told_that_tables_know_those_of_the_start() -> None:
    shards = MemoryShards(1, members=2)
    joined = shards.client(2)
    asked = joined.ask(shards.router.route(shards.features([1])))
    shards.beat(2)
    with pytest.raises(PeerError, match=r"not a member of this run: .* 2 workers of the start, and rank 2 came later"):
        asked.values()


def message(**changes: Any) -> TableMessage:
    ids, lengths = np.array([1, 2, 3], np.int32), np.array([2, 0, 1], np.int32)
    weights, values = np.ones(3, np.float32), np.ones((3, 4), np.float32)
    plain: dict[str, Any] = {"number": 5, "sequence": 1, "life": 1, "text": "τ"}
    bags = (Bags(0, 4, 3, ids, 0, lengths, weights, values), Bags(0, 4, 3, ids, 1, None, None, values))
    return TableMessage(**{"kind": Say.GRADIENT, "bags": bags, **plain, **changes})


@pytest.mark.parametrize("rows", [1, PIECE_BYTES // 16, PIECE_BYTES // 4 + 3])
def test_a_message_arrives_as_it_was(rows: int) -> None:
    ids = np.arange(rows, dtype=np.int32)
    values = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    sent = message(bags=(Bags(2, 4, rows, ids, 1, None, None, values),))
    found = decode([bytes(frame) for frame in encode(sent)])
    assert np.array_equal(found.bags[0].ids, ids)
    assert np.array_equal(found.bags[0].values, values)
    assert (found.kind, found.number, found.text) == (sent.kind, 5, "τ")
    ragged = decode(encode(message())).bags[0]
    assert (ragged.lengths.tolist(), ragged.weights.tolist()) == ([2, 0, 1], [1, 1, 1])


def packed(**places: int) -> list[bytes]:
    """A message with other bytes at some place of a frame, as "f2_16": frame 2, offset 16, a 64-bit number."""
    frames = [bytearray(bytes(frame)) for frame in encode(message())]
    for place, value in places.items():
        frame, offset = place[1:].split("_")
        struct.pack_into("<Q", frames[int(frame)], int(offset), value)
    return [bytes(frame) for frame in frames]


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (packed()[:2], Refusal.FRAMES),
        (packed()[:-1], Refusal.FRAMES),
        ([*packed(), b"x"], Refusal.FRAMES),
        ([packed()[0][:-1], *packed()[1:]], Refusal.HEADER),
        ([b"XXXX" + packed()[0][4:], *packed()[1:]], Refusal.MAGIC),
        ([packed()[0][:4] + b"\x01\x00" + packed()[0][6:], *packed()[1:]], Refusal.VERSION),
        ([packed()[0][:6] + b"\x63" + packed()[0][7:], *packed()[1:]], Refusal.KIND),
        ([packed()[0], b"", *packed()[2:]], Refusal.BYTES),
        ([packed()[0], b"\xff\xff", *packed()[2:]], Refusal.BYTES),
        ([*packed()[:2], packed()[2][:-1], *packed()[3:]], Refusal.ENTRIES),
        (packed(f2_8=4), Refusal.PIECES),  # ids
        (packed(f2_8=1 << 40), Refusal.BYTES),
        (packed(f2_16=1 << 40), Refusal.BYTES),  # bags
        (packed(f2_24=7 << 32 | 2), Refusal.BYTES),  # ragged, and two in each
        (packed(f2_24=3 << 32), Refusal.DTYPE),  # no values
        (packed(f2_24=15 << 32), Refusal.DTYPE),  # of two kinds
        (packed(f4_0=5), Refusal.PIECES),  # lengths
        (packed(f4_0=(1 << 64) - 1), Refusal.PIECES),
    ],
)
def test_what_is_malformed_is_refused_with_the_reason(frames: list[bytes], reason: Refusal) -> None:
    with pytest.raises(Refused) as refused:
        decode(frames)
    assert refused.value.reason is reason


@pytest.mark.parametrize(
    ("bags", "reason"),
    [
        (Bags(3, 4, 1, np.zeros(1, np.int32), 1), Refusal.ROW),
        (Bags(0, 5, 1, np.zeros(1, np.int32), 1), Refusal.ROW),
        (Bags(0, 4, 1, np.array([140], np.int32), 1), Refusal.ROW),
        (Bags(0, 4, 1, np.array([-1], np.int32), 1), Refusal.ROW),
    ],
)
def test_rows_that_are_not_here_are_refused(bags: Bags, reason: Refusal) -> None:
    shards = MemoryShards(1)
    shards.client()
    (shard,) = shards.shards
    asked = TableMessage(kind=Say.LOOKUP, life=1, number=9, table=shards.specs[0].fingerprint, bags=(bags,))
    _, (answer,) = shard.take(encode(asked), 0.0)
    assert (answer.kind, answer.number, answer.text) == (Say.REFUSED, 9, reason.value)


ZEROS, NAN, ROWS = np.zeros(4, np.int32), np.array([0, np.nan], np.float32), np.zeros((2, 4), np.float32)


@pytest.mark.parametrize(
    ("sent", "counted"),
    [
        (message(kind=Say.WRITE, bags=(Bags(0, 4, 2, ZEROS, 2, values=ROWS),)), Refusal.BYTES.value),
        (message(kind=Say.LOOKUP, bags=(Bags(0, 4, 0, ZEROS[:0], 1 << 31),)), Refusal.BYTES.value),
        (message(bags=(Bags(0, 4, 2, ZEROS[:2], 1, None, NAN, ROWS),)), Refusal.VALUE.value),
        (message(sequence=2, number=(1 << 64) - 1), "gaps"),
    ],
)
def test_an_odd_message_is_counted_and_ends_nothing(sent: TableMessage, counted: str) -> None:
    shards = MemoryShards(1)
    shards.client()
    (shard,), before = shards.shards, tables(shards)
    _, answers = shard.take(encode(replace(sent, table=shards.specs[0].fingerprint)), 0.0)
    assert all(decode(encode(one)).number in (5, sent.number) for one in answers)
    assert shard.counts[counted] == 1
    assert all(np.array_equal(one, other) for one, other in zip(before, tables(shards), strict=True))


@pytest.mark.parametrize("text", ["", "[]", "[1, 2]", '["{}", [[0, 0, 1]]]', '["nothing", []]', "[" * 100_000])
def test_tables_that_cannot_be_are_refused(text: str) -> None:
    (shard,) = MemoryShards(1).shards
    _, (answer,) = shard.take(encode(TableMessage(kind=Say.OPEN, text=text)), 0.0)
    assert answer.text.startswith(f"{Refusal.SPEC.value}: ")
    wrong = ShardSpec(TABLES, MemoryShards(1).specs[0].ranges).text.replace("[0, 0, 50]", "[0, 0, 51]")
    _, (answer,) = shard.take(encode(TableMessage(kind=Say.OPEN, text=wrong)), 0.0)
    assert answer.text.startswith(f"{Refusal.SPEC.value}: ")
    assert shard.holding is None


def test_damaged_messages_change_nothing_and_end_nothing() -> None:
    """Bits, lengths and whole frames of good messages are changed; what passes as good is of the same rows."""
    shards = MemoryShards(1)
    shards.client()
    (shard,) = shards.shards
    table = shards.specs[0].fingerprint
    ids = np.array([1, 2, 3], np.int32)
    good = [
        [bytes(frame) for frame in encode(one)]
        for one in (
            TableMessage(kind=Say.LOOKUP, life=1, table=table, bags=(Bags(0, 4, 3, ids, 1),)),
            TableMessage(kind=Say.OPEN, table=table, text=shards.specs[0].text),
            TableMessage(kind=Say.READ, rank=READER, life=1, table=table, bags=(Bags(0, 4, 3, ids, 1),)),
            message(table=table, life=1, sequence=2),
            message(table=table, life=1, sequence=3, kind=Say.FLUSH, bags=()),
        )
    ]
    random = np.random.default_rng(0)
    before = tables(shards)
    for _ in range(20_000):
        frames = list(good[random.integers(len(good))])
        at = int(random.integers(len(frames)))
        what = random.integers(4)
        if what == 0:
            frames[at] = frames[at][: int(random.integers(len(frames[at]) + 1))]
        elif what == 1:
            del frames[at]
        elif what == 2:
            frames.insert(at, random.bytes(int(random.integers(200))))
        else:
            length = HEADER_BYTES if at == 0 else ENTRY_BYTES
            frames[at] = random.bytes(length)
        shard.take(frames, 0.0)
    assert shard.counts["applied"] == 0
    assert all(np.array_equal(one, other) for one, other in zip(before, tables(shards), strict=True))
    assert sum(shard.counts[one.value] for one in Refusal) > 15_000


@pytest.mark.parametrize(("arriving", "learning", "looks"), [(8, True, 8), (3, True, 4 + 500), (8, False, 0)])
def test_a_worker_starts_after_the_first_updates_of_lower_ranks_or_when_none_comes(
    monkeypatch: pytest.MonkeyPatch, arriving: int, learning: bool, looks: int
) -> None:
    shards = MemoryShards(2, members=3)
    first, slept = shards.client(0), []
    door = access.TableAccess(TABLES, stagger=4)
    door._client, door.router = shards.client(2), shards.router

    def sleep(pause_s: float) -> None:
        if len(slept) < arriving:
            train(shards, first, 1, len(slept))
        slept.append(pause_s)

    monkeypatch.setattr(access, "time", SimpleNamespace(sleep=sleep))
    for _ in range(2):  # the second lookup does not wait
        door.ask(torch.tensor([[1, 2]]), learning=learning).values()
    assert len(slept) == looks
    assert door.client.updates() == min(arriving, looks)


@pytest.mark.parametrize("stagger", [-1, 1.5, True])
def test_a_stagger_is_a_number_of_updates(stagger: Any) -> None:
    with pytest.raises(ConfigError, match=f"stagger={stagger}: give a whole number"):
        EmbeddingBagCollection([Table(5, 4, "a")], stagger=stagger)
