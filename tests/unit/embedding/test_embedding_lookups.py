"""Look-ups for other programs: what a request says, what is refused, and that a reader changes nothing."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from shards_in_memory import MemoryShards

from uneven.embedding.kernels import TorchKernels
from uneven.embedding.pure.config import SGD, Table, TableSpec
from uneven.embedding.pure.lookup_request import MOST_NUMBERS, LookupAnswer, read_request, together
from uneven.embedding.pure.route import BatchIds
from uneven.embedding.pure.row_optimizers import Bags
from uneven.embedding.pure.shard_tables import ShardSpec, whole_tables
from uneven.embedding.pure.sharding_plan import place
from uneven.embedding.pure.table_shard import TableShard
from uneven.embedding.pure.table_wire import READER, READING, Say, TableMessage, encode
from uneven.embedding.table_client import TableClient
from uneven.embedding.table_files import TableFiles
from uneven.embedding.table_reader import Lookups
from uneven.embedding.table_service import _LookupHandler
from uneven.errors import DataError, PeerError, UnevenError
from uneven.journal.report.http_server import HttpServer
from uneven.runtime.parameter_server.pure.wire import Refusal

TWO = TableSpec((Table(50, 4, "a"), Table(90, 2, "b", ("b", "a"), pooling="mean")), SGD())


def body(**given: Any) -> bytes:
    return json.dumps({"ids": {"a": [1, 2], "b": [[3, 4], []]}} | given).encode()


def test_a_request_is_read_sample_by_sample_for_each_column() -> None:
    ids = read_request(body(), TWO)
    assert (ids.batch, ids.features) == (2, 3), "a feature of two tables has two columns"
    assert ids.values.tolist() == [1, 3, 4, 1, 2, 2]
    assert ids.sizes.tolist() == [[1, 2, 1], [1, 0, 1]]
    assert read_request(body(ids={"a": [], "b": []}), TWO).batch == 0


def test_the_service_names_the_features_that_a_request_has() -> None:
    spec = TableSpec((Table(50, 4, "a"), Table(90, 2, "pair", crossed=("a", "b"))), SGD())
    serving = HttpServer(_LookupHandler, 0, lookups=SimpleNamespace(spec=spec), token="")
    with serving, urlopen(f"{serving.address}tables", timeout=10) as answer:
        names = json.load(answer)["features"]
    assert read_request(body(ids={one: [1] for one in names}), spec).features == 2
    assert names == ["a", "b"]


def test_samples_of_several_requests_are_joined_in_order() -> None:
    one, ragged = read_request(body(ids={"a": [5], "b": [6]}), TWO), read_request(body(), TWO)
    both = together([one, one])
    assert (both.batch, both.each, both.values.tolist()) == (2, 1, [5, 6, 5, 5, 6, 5])
    mixed = together([one, ragged])
    assert mixed.sizes.tolist() == [[1, 1, 1], [1, 2, 1], [1, 0, 1]]
    assert mixed.values.tolist() == [5, 6, 5, 1, 3, 4, 1, 2, 2]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (b"", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"ids": {"a": [' + b"7" * 5000 + b'], "b": [1]}}', "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"null", '"ids"'),
        (b'{"ids": [1]}', '"ids"'),
        (body(extra=1), '"ids"'),
        (body(ids={"a": [1]}), "'b'"),
        (body(ids={"a": [1], "b": [1], "\ud800": [1]}), "ud800"),
        (body(ids={"a": 1, "b": [1]}), "feature 'a'"),
        (body(ids={"a": [1.0], "b": [1]}), "whole number"),
        (body(ids={"a": [True], "b": [1]}), "whole number"),
        (body(ids={"a": [None], "b": [1]}), "whole number"),
        (body(ids={"a": [[[1]]], "b": [1]}), "whole number"),
        (body(ids={"a": [2**63], "b": [1]}), "whole number"),
        (body(ids={"a": [1, 2], "b": [1]}), "different numbers of samples"),
        (body(ids={"a": [[]] * (MOST_NUMBERS // 8 + 1), "b": [[]] * (MOST_NUMBERS // 8 + 1)}), "send fewer"),
        (b" " * (5 << 20), "5,242,880 bytes"),
    ],
)
def test_what_is_wrong_is_refused_with_the_reason(given: bytes, why: str) -> None:
    with pytest.raises(DataError, match=why) as refused:
        read_request(given, TWO)
    str(refused.value).encode()


def test_an_answer_has_its_numbers_as_text_and_as_bytes() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(2, 6)
    answer = LookupAnswer(rows, 7, {"a": slice(0, 4), "b": slice(4, 6)})
    assert json.loads(answer.text) == {
        "updates": 7,
        "features": {"a": [[0, 1, 2, 3], [6, 7, 8, 9]], "b": [[4, 5], [10, 11]]},
    }
    said, numbers = answer.frames
    head = json.loads(said)
    assert head == {"updates": 7, "shape": [2, 6], "columns": {"a": [0, 4], "b": [4, 6]}}
    assert np.array_equal(np.frombuffer(numbers, "<f4").reshape(head["shape"]), rows)


def learned(shards: MemoryShards, client: TableClient, ids: list[int]) -> None:
    asked = client.ask(shards.router.route(shards.features(ids)))
    client.give(asked, np.ones_like(asked.values()))


def test_a_reader_sees_the_rows_and_leaves_no_trace() -> None:
    shards = MemoryShards(2)
    trainer = shards.client()
    learned(shards, trainer, [1, 2])
    before = trainer.stats()
    reader = shards.client(READER + 5)
    ids = shards.router.route(shards.features([1, 2, 3]))
    seen = reader.ask(ids, learning=False).values()
    assert np.array_equal(seen, trainer.ask(ids, learning=False).values())
    reader.leave()
    trainer.flush()  # waits for no worker
    after = trainer.stats()
    assert after.staleness == before.staleness
    assert after.counts["served lookups"] == 2
    assert after.counts["lookups"] == before.counts["lookups"] + 2, "those of the trainer"
    assert after.counts["numbers"] == before.counts["numbers"] + 2 * 3 * 4
    assert reader.updates() == 1


@pytest.mark.parametrize("kind", sorted(set(Say) - READING - {one for one in Say if one >= Say.WELCOME}))
def test_what_would_change_a_shard_is_refused_from_a_reader(kind: Say) -> None:
    shards = MemoryShards(1)
    trainer = shards.client()
    learned(shards, trainer, [1])
    (shard,) = shards.shards
    assert shard.holding is not None
    rows, sequences = shard.holding.rows[0].copy(), shard._numbers()
    ids = np.array([1], np.int32)
    values = np.full((1, 4), 9, np.float32) if kind in (Say.GRADIENT, Say.WRITE) else None
    bags = (Bags(0, 4, 1, ids, 1, values=values),) if kind in (Say.LOOKUP, Say.GRADIENT, Say.WRITE, Say.SUMS) else ()
    sent = TableMessage(
        kind=kind, rank=READER, number=3, sequence=1, life=1, table=shards.specs[0].fingerprint, text="0", bags=bags
    )
    rank, (answer,) = shard.take(encode(sent), 0.0)
    assert (rank, answer.kind, answer.text) == (READER, Say.REFUSED, Refusal.READER.value)
    assert np.array_equal(shard.holding.rows[0], rows)
    assert shard._numbers() == sequences
    assert not shard.busy


def test_a_reader_admits_no_id_and_evicts_none() -> None:
    spec = TableSpec((Table(None, 4, "g", most_rows=3),), SGD())
    shard_spec = ShardSpec(spec, place(spec.tables, 1)[0])
    shard = TableShard(1, 1, TorchKernels(), TableFiles(None, 0))
    shard.take(encode(TableMessage(kind=Say.OPEN, table=shard_spec.fingerprint, text=shard_spec.text)), 0.0)
    assert shard.holding is not None
    read = TableMessage(
        kind=Say.READ, rank=READER, life=1, table=shard_spec.fingerprint, bags=(Bags(0, 4, 5, np.arange(5), 1),)
    )
    _, (answer,) = shard.take(encode(read), 0.0)
    assert answer.kind is Say.POOLED
    assert shard.holding.maps[0] is not None
    assert len(shard.holding.maps[0].taken()) == 0
    assert not shard.holding.maps[0].counts


def test_a_reader_waits_for_the_first_worker_and_for_the_first_after_a_restart() -> None:
    shards = MemoryShards(1)
    reader = shards.client(READER)
    assert shards.shards[0].holding is None, "a reader makes no tables"
    trainer = shards.client()
    shards.beat(READER)
    ids = shards.router.route(shards.features([1]))
    assert reader.ask(ids, learning=False).values().shape == (1, 8)
    shards.restart(0)
    asked = reader.ask(ids, learning=False)
    assert shards.shards[0].holding is None
    shards.beat(trainer.rank)
    shards.beat(READER)
    assert asked.values().shape == (1, 8)


def test_all_rows_must_be_found_before_a_reader_begins() -> None:
    one, other = MemoryShards(2).specs
    assert whole_tables({}) is None
    assert whole_tables({0: one}) is None
    assert whole_tables({1: other, 0: one}) == (one, other)
    found = whole_tables({0: one, 3: other})
    assert found is not None
    assert [len(each.groups) for each in found] == [1, 0, 0, 1], "servers between them have no rows"


class Slow:
    """Answers once the gate is open, and counts the look-ups."""

    def __init__(self, client: TableClient) -> None:
        self.client, self.specs, self.asked = client, client.specs, 0
        self.gate = threading.Event()

    def ask(self, routed: Any, *, learning: bool) -> Any:
        assert self.gate.wait(30)
        self.asked += 1
        return self.client.ask(routed, learning=learning)


def test_requests_that_come_meanwhile_are_looked_up_together_and_a_wrong_id_fails_its_own() -> None:
    shards = MemoryShards(2)
    slow = Slow(shards.client())
    lookups = Lookups()
    lookups.use(slow)  # type: ignore[arg-type]

    def asked(*ids: int) -> BatchIds:
        return shards.features(ids)

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(lookups.answers, [asked(0)])
        while lookups._queue or not lookups._turn.locked():
            pass  # until it waits at the gate
        more = [pool.submit(lookups.answers, [asked(one)]) for one in range(1, 7)]
        while len(lookups._queue) < 6:
            pass
        slow.gate.set()
        found = [one.result()[0] for one in (first, *more)]
    assert slow.asked == 2
    for at, one in enumerate(found):
        assert isinstance(one, LookupAnswer)
        want = shards.router.route(shards.features([at]))
        assert np.array_equal(one.rows, slow.client.ask(want, learning=False).values())
    good, bad, late = lookups.answers([asked(3, 4), asked(70), asked(5)])
    assert isinstance(good, LookupAnswer)
    assert isinstance(late, LookupAnswer)
    assert good.rows.shape == (2, 8)
    assert isinstance(bad, DataError)
    assert lookups.counts["rejected"] == 1
    assert slow.asked == 3, "the others stay together: with servers that do not answer, each look-up takes its time-out"


def test_too_many_waiting_requests_are_refused() -> None:
    shards = MemoryShards(1)
    lookups = Lookups()
    lookups.use(shards.client())
    found: list[LookupAnswer | UnevenError] = lookups.answers([shards.features([1])] * 1025)
    assert {type(one) for one in found} == {PeerError}
