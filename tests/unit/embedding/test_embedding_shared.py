"""Workers on a shard's machine read its rows in place and learn as those that ask for them; nothing is left behind."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import resource
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from shards_in_memory import MemoryShards
from test_run_tables import rows_in_memory
from torch import Tensor

from uneven.embedding import SGD, EmbeddingBagCollection, RowwiseAdagrad, Table, shared_rows
from uneven.embedding.pure.row_optimizers import Bags
from uneven.embedding.pure.table_wire import PlacedArrays, Say, TableMessage, decode, encode
from uneven.embedding.shared_rows import can_share
from uneven.embedding.table_client import AskedRows, TableClient
from uneven.embedding.table_host import TABLES as FOLDER
from uneven.embedding.table_host import TableHost
from uneven.errors import ConfigError
from uneven.runtime.messages.keys import make_keys
from uneven.runtime.messages.shared_memory import SharedMemory, attached
from uneven.runtime.parameter_server.pure.wire import Refusal, Refused

pytestmark = pytest.mark.skipif(not can_share(), reason="shards share memory on Linux, x86-64, with numba")

MIXED = [
    Table(40, 8, "shared", ["left", "right"]),
    Table(3000, 8, "large"),  # cut by rows where there are several shards
    Table(None, 8, "grown", most_rows=100),  # looked up by messages
    Table(30, 4, "mean", pooling="mean"),
]
FEATURES = {"left": 40, "right": 40, "large": 3000, "grown": 1 << 40, "mean": 30}


@pytest.fixture
def closing() -> Iterator[list[EmbeddingBagCollection]]:
    opened: list[EmbeddingBagCollection] = []
    yield opened
    for one in opened:
        one.close()


def ragged(seed: int, batch: int = 12) -> dict[str, tuple[Tensor, ...]]:
    made = torch.Generator().manual_seed(seed)
    found: dict[str, tuple[Tensor, ...]] = {}
    for name, many in FEATURES.items():
        lengths = torch.randint(0, 4, (batch,), generator=made)
        ids = torch.randint(0, many, (int(lengths.sum()),), generator=made)
        found[name] = ids, torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]])
    return found


def sent(client: TableClient) -> Counter[Say]:
    """Count the messages that go by the line from now on, by kind."""
    post, found = client.line.post, Counter[Say]()

    def counted(shard: int, messages: Any) -> None:
        found.update(one.kind for one in messages)
        post(shard, messages)

    client.line.post = counted  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("optimizer", [RowwiseAdagrad(lr=0.1), SGD(lr=0.1)], ids=["adagrad", "sgd"])
@pytest.mark.parametrize("shards", [1, 3])
def test_one_worker_learns_the_same_to_the_bit(closing: list[Any], optimizer: Any, shards: int) -> None:
    here, there = (EmbeddingBagCollection(MIXED, optimizer=optimizer, shards=shards, seed=3) for _ in range(2))
    closing += [here, there]
    there.door.share = False
    for one in closing:
        one.flush()  # connected
    messages, others = sent(here.door.client), sent(there.door.client)
    for step in range(30):
        ids = ragged(step)
        found = [one(ids).values() for one in closing]
        assert torch.equal(*found)
        for one, out in zip(closing, found, strict=True):
            (out * torch.sin(torch.arange(out.numel())).view_as(out)).square().mean().backward()
            one.flush()  # or the next lookup might ask for what has not arrived
    first, second = (one.to_state_dict() for one in closing)
    assert all(torch.equal(first[key], second[key]) for key in second)
    assert messages[Say.GRADIENT] == 0 < others[Say.GRADIENT]
    stats, told = here.stats(), there.stats()
    assert stats.staleness == told.staleness
    for what in ("applied", "rows", "lookups"):
        assert stats.counts[what] == told.counts[what] > 0


class Gate:
    """A shard that does not look for messages until it is open."""

    def __init__(self, shard: Any) -> None:
        self._shard = shard
        self.waiting, self.open = Event(), Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)

    def tick(self, now_s: float) -> Any:
        self.waiting.set()
        assert self.open.wait(10.0)
        return self._shard.tick(now_s)


def test_a_request_after_a_gradient_sees_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_keys(tmp_path / FOLDER)
    monkeypatch.setenv("UNEVEN_RUN", str(tmp_path))
    with TableHost(tmp_path / FOLDER, 0, 1) as host, ThreadPoolExecutor(1) as pool:
        tables = EmbeddingBagCollection(MIXED[:2])
        tables.flush()
        rows = tables(torch.zeros(4, 3, dtype=torch.long)).values()
        host._server.shard = gate = Gate(host.shard)  # type: ignore[assignment]
        assert gate.waiting.wait(10.0)
        rows.sum().backward()
        stats = pool.submit(tables.stats)
        time.sleep(0.2)  # both wait for the shard now, in the pipe and in the socket
        gate.open.set()
        assert stats.result().counts["applied"] == 1
        tables.close()


def test_a_worker_that_died_is_followed_by_another_of_its_rank() -> None:
    shards = MemoryShards(1, members=2, share=True)
    other, first = shards.client(0), shards.client(1)
    routed = shards.router.route(shards.features([1, 2]))
    client = first
    for number in range(4):
        client = shards.client(1) if number == 2 else client
        asked = client.ask(routed)
        client.give(asked, np.ones_like(asked.values()))  # the second is under way when the first worker dies
        if number == 0:
            shards.beat(1)
    asked = other.ask(routed)
    other.give(asked, np.ones_like(asked.values()))
    shards.beat(1)
    (shard,) = shards.shards
    assert shard.counts["applied"] == 5
    assert (shard.counts["gaps"], shard.counts["repeated"]) == (0, 0)


def test_a_late_welcome_does_not_count_updates_again() -> None:
    shards = MemoryShards(1, share=True)
    client, (shard,) = shards.client(), shards.shards
    _, (welcome,) = shard.take(encode(client._links[0]._hello()), 0.0)
    for number in range(4):
        asked = client.ask(shards.router.route(shards.features([1])))
        client.give(asked, np.ones_like(asked.values()))
        shards.take_posts(0)
        if number == 2:  # the memory has told of two updates
            client.received(0, welcome)
    assert (shard.counts["applied"], shard.counts["repeated"]) == (4, 1)


def test_a_lookup_whose_own_update_is_under_way_asks_for_it() -> None:
    shards = MemoryShards(1, share=True)
    client = shards.client()
    held: list[TableMessage] = []
    shards.loses = lambda m: m.kind is Say.GRADIENT and (held.append(m) or len(held) == 1)
    kinds = sent(client)
    for _ in range(2):
        asked = client.ask(shards.router.route(shards.features([1])))
        client.give(asked, np.ones_like(asked.values()))
        asked = client.ask(shards.router.route(shards.features([1])))  # the first gradient was lost
        shards.beat()  # and is sent again
        asked.values()
    assert kinds[Say.LOOKUP] == 0
    shards.loses = lambda m: m.kind is Say.GRADIENT
    asked = client.ask(shards.router.route(shards.features([1])))
    client.give(asked, np.ones_like(asked.values()))
    asked = client.ask(shards.router.route(shards.features([1])))
    shards.loses = lambda m: False
    asked.values()
    assert kinds[Say.LOOKUP] == 1
    (shard,) = shards.shards
    assert shard.counts["lookups"] == 5 + 1, "gradients tell of those in shared memory"


def test_restarted_shards_offer_other_memory_and_updates_under_way_arrive(tmp_path: Path) -> None:
    def trained(kill: bool) -> list[np.ndarray]:
        shards = MemoryShards(2, folder=tmp_path / str(kill), share=True)
        client = shards.client()
        for step in range(6):
            ids = [(step * 7 + k) % 50 for k in range(6)]
            asked = client.ask(shards.router.route(shards.features(ids)))
            values = asked.values()
            if step == 3:
                shards.now_s = 101.0  # saves
                for _ in range(50):
                    shards.tick()
                shards.loses = lambda m: m.kind is Say.GRADIENT
            client.give(asked, np.sin(np.arange(values.size) + step).astype(np.float32).reshape(values.shape))
            if step == 3:
                if kill:
                    for shard in range(2):
                        shards.restart(shard)
                shards.loses = lambda m: False
                for _ in range(3):
                    shards.beat()
        shards.beat()
        assert client.restarts == 2 * kill
        assert client.lost == 0
        assert all(one.counts["applied"] == (3 if kill else 6) for one in shards.shards)
        assert all(one.life == shards.shards[shard].life for shard, one in client._readers.items())
        return [one.rows.copy() for shard in shards.shards if shard.holding for one in shard.holding]

    assert all(np.array_equal(one, other) for one, other in zip(trained(True), trained(False), strict=True))


def test_gradients_for_which_there_is_no_room_travel_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_rows, "_REGION_BYTES", 4096)
    shards = MemoryShards(1, share=True)
    client = shards.client()
    kinds, (shard,) = sent(client), shards.shards
    routed = shards.router.route(shards.features(range(12)))

    def give(asked: AskedRows) -> int | None:
        client.give(asked, np.ones((12, 8), np.float32))
        return client._links[0].kept[client._links[0].sequence].place

    shards.loses = lambda m: m.kind is Say.GRADIENT and m.place is None
    under_way = [client.ask(routed) for _ in range(9)]
    for one in under_way:
        one.values()
    places = [give(one) for one in under_way]
    room = places.index(None)
    assert 1 < room < 8
    assert places[room:] == [None] * (9 - room), "though there is room again, as the one before has not arrived"
    shards.loses = lambda m: False
    shards.beat()
    assert (shard.counts["applied"], shard.counts["gaps"], shard.counts["nonfinite"]) == (9, 0, 0)
    before = kinds[Say.GRADIENT]
    again = client.ask(routed)
    again.values()
    assert give(again) == places[0], "the lowest place is used again"
    assert kinds[Say.GRADIENT] == before


def gradient(**changes: Any) -> TableMessage:
    bags = (Bags(0, 4, 3, np.array([1, 2, 3], np.int32), 1, None, None, np.ones((3, 4), np.float32)),)
    return TableMessage(**{"kind": Say.GRADIENT, "number": 5, "sequence": 1, "life": 1, "bags": bags, **changes})


def test_a_placed_message_is_checked_and_its_ids_are_copied() -> None:
    memory = np.zeros(1024, np.uint8)
    into = PlacedArrays(memory, 128)
    into.next(3, np.dtype(np.int32))[:] = [1, 2, 3]
    into.next(12, np.dtype(np.float32))[:] = 1
    found = decode(encode(gradient(place=100)), lambda rank: memory).bags[0]
    assert found.ids is not None
    assert found.values is not None
    assert (found.ids.tolist(), found.values.sum()) == ([1, 2, 3], 12)
    assert not np.shares_memory(found.ids, memory), "a worker could change them after the check"
    assert np.shares_memory(found.values, memory)
    for message, shared, frames, reason in (
        (gradient(place=1000), memory, [], Refusal.BYTES),  # the values end behind the memory
        (gradient(place=1 << 60), memory, [], Refusal.BYTES),
        (gradient(place=128), None, [], Refusal.FRAMES),  # of a worker that shares none
        (gradient(place=128), memory, [b"x"], Refusal.FRAMES),
        (gradient(place=128, kind=Say.WRITE), memory, [], Refusal.KIND),
        (gradient(lookups=1, kind=Say.WRITE), memory, [], Refusal.KIND),
    ):
        with pytest.raises(Refused) as refused:
            decode([*encode(message), *frames], lambda rank, shared=shared: shared)
        assert refused.value.reason is reason


def test_noise_in_a_region_and_in_the_pipe_changes_nothing_for_another_worker() -> None:
    def trained(noise: bool) -> tuple[Any, np.ndarray]:
        shards = MemoryShards(1, members=2, share=True)
        client, noisy = shards.client(0), shards.client(1)._readers[0]
        (shard,), random = shards.shards, np.random.default_rng(0)
        assert shard.shared is not None
        assert shard.holding is not None
        for step in range(300):
            if noise:
                noisy._region[: 1 << 16] = random.integers(0, 256, 1 << 16, dtype=np.uint8)
            for _ in range(10 * noise):
                place = int(random.integers(1 << 16))
                sent = gradient(rank=1, place=place + 112, table=shards.specs[0].fingerprint, life=1)
                head = np.frombuffer(b"".join(encode(sent)), np.uint8).copy()
                head[random.integers(len(head), size=random.integers(3))] = random.integers(256)
                noisy._region[place : place + len(head)] = head
                os.write(noisy._posts, shared_rows._POST.pack(1, len(head), place))
            os.write(noisy._posts, random.bytes(int(random.integers(40))) if noise else b"")
            asked = client.ask(shards.router.route(shards.features([step % 50, 7])))
            client.give(asked, np.sin(np.arange(asked.values().size) + step).astype(np.float32).reshape(2, 8))
            for frames in shard.shared.taken():
                shards.answer([decode(encode(one)) for one in shard.take(frames, 0.0)[1]], 0)
            shards.beat()
        return shard, shard.holding.rows[0].copy()

    (noisy, rows), (_, quiet) = trained(True), trained(False)
    assert noisy.counts["applied"] == 300
    assert np.array_equal(rows, quiet)
    assert all(noisy.counts[one.value] > 0 for one in (Refusal.ROW, Refusal.HEADER, Refusal.MAGIC))
    assert noisy.counts["gaps"] + noisy.counts["repeated"] > 0, "an update behind noise is sent again"


def test_only_the_shard_writes_its_rows_and_only_its_user_reads_them() -> None:
    memory = SharedMemory("uneven-test", 4096, read_only=True)
    memory.bytes[0] = 7
    assert attached(os.getpid(), memory.fd)[0] == 7
    with pytest.raises(OSError, match="not permitted"):
        attached(os.getpid(), memory.fd, write=True)
    with pytest.raises(ValueError, match="read-only"):
        attached(os.getpid(), memory.fd)[0] = 1
    with pytest.raises(OSError, match="not permitted"):
        os.truncate(memory.fd, 0)
    with pytest.raises(OSError, match="not permitted"):  # a worker could keep later ones out
        fcntl.fcntl(memory.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    if os.getuid() == 0:
        path = f"/proc/{os.getpid()}/fd/{memory.fd}"
        other = subprocess.run(["cat", path], user=65534, cwd="/", capture_output=True, check=False)
        assert b"Permission denied" in other.stderr


def test_without_a_free_descriptor_rows_are_read_by_messages() -> None:
    shards = MemoryShards(1, members=2, share=True)
    (shard,), limits = shards.shards, resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        client = shards.client()
        assert not client._readers, "the worker has none, too"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for one in (client, shards.client(1)):
        kinds = sent(one)
        asked = one.ask(shards.router.route(shards.features([1, 2])))
        one.give(asked, np.ones_like(asked.values()))
        assert kinds[Say.LOOKUP] == 1
    shards.beat(1)
    assert kinds[Say.GRADIENT] == 0, "there is room for these"
    assert (shard.counts["applied"], shard.counts["failed"]) == (2, 0)


def test_a_forked_process_does_not_write_into_the_memory_of_its_parent(closing: list[EmbeddingBagCollection]) -> None:
    closing.append(EmbeddingBagCollection(MIXED[:2]))
    ids = torch.zeros(4, 3, dtype=torch.long)
    closing[0](ids)
    here, there = os.pipe()
    if not (child := os.fork()):
        try:
            closing[0](ids)
        except ConfigError as error:
            os.write(there, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(there)
    with os.fdopen(here) as said:
        assert f"{child} was forked from process {os.getpid()}, whose tables were open" in said.read()


def test_closed_tables_of_one_process_free_their_rows() -> None:
    gc.collect()
    before = rows_in_memory()
    tables = EmbeddingBagCollection(MIXED[:2])
    tables.flush()
    assert len(rows_in_memory() - before) == 3, "state, regions and rows"
    for _ in range(2):
        tables.close()
        gc.collect()
        assert rows_in_memory() == before


def test_another_process_with_the_number_of_the_shard_is_not_read() -> None:
    shards = MemoryShards(1, share=True)
    client = shards.client()
    shared = shards.shards[0].shared
    assert shared is not None
    of = shared_rows.SharedReader.of
    assert of(shared.offer, client._readers[0].life, 0, shards.specs[0]) is not None
    assert of(shared.offer, 12345, 0, shards.specs[0]) is None
    machine, pid, *others = json.loads(shared.offer)
    for text in ([machine, 1 << 30, *others], ["another", pid, *others], [machine, pid, others[2], *others[1:]]):
        assert of(json.dumps(text), client._readers[0].life, 0, shards.specs[0]) is None
    assert of("", 1, 0, shards.specs[0]) is None
