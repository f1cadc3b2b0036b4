"""The shared stream with real processes: everybody gets everything once, whoever is slow, dies or is killed."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fleet_parts as parts
from uneven.errors import ConfigError, DataError
from uneven.fleet.pure.sections import Stream
from uneven.fleet.stream.feed import Feed, look
from uneven.fleet.stream.preprocess import Source
from uneven.fleet.stream.sample_ring import Field, Ring, arrays_of, check, layout_of
from uneven.runtime.jobs import How
from uneven.runtime.jobs.call import Child
from uneven.runtime.jobs.engines import Local
from uneven.runtime.jobs.executor import Linked

TRAIN, VALIDATE, CHUNK, SLOTS = 101, 23, 8, 6
LAYOUT = (Field("float32", (1, 3, 3)), Field("int64", ()))


@pytest.fixture(autouse=True, scope="module")
def light_processes() -> Iterator[None]:
    """New processes import the script that was started, which is pytest here; they can do without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["__main__"], "__spec__", None)
        patch.delattr(sys.modules["__main__"], "__file__", raising=False)
        yield


class World:
    """A feed and its readers, listened to from here."""

    def __init__(self, transform: Any = parts.noisy, most: int = 2, timeout_s: float = math.inf) -> None:
        self.events = Local()
        source = Source(parts.Counted(TRAIN), parts.Counted(VALIDATE), transform, None)
        self.stream = Stream(TRAIN, VALIDATE, CHUNK, seed=5)
        self.readers: dict[str, Child] = {}
        self.got: dict[str, list[tuple[list[list[int]], float]]] = {}
        self.feed = Feed(
            self.events, source, self.stream, LAYOUT, slots=SLOTS, most=most, timeout_s=timeout_s,
            tell=lambda name, message: self.readers[name].send(message),
        )  # fmt: skip
        self.feed.needs(float("inf"))

    def read(self, name: str, size: int, delay_s: float = 0.0) -> None:
        arguments = (self.feed.ring.handle(writable=False), self.stream, size, delay_s)
        self.readers[name] = Child(self.events, name, parts.read_all, arguments, heard=self._heard, ended=self._died)
        self.got[name] = []

    def _heard(self, child: Child, message: Any) -> None:
        if message[0] == "section":
            self.got[child.name].append(message[1:])
        else:
            getattr(self.feed, message[0])(child.name, *message[1:])

    def _died(self, child: Child) -> None:
        self.feed.leave(child.name)
        del self.readers[child.name]

    def run(self, epoch: int) -> None:
        """One pass for all readers."""
        for name, reader in self.readers.items():
            self.feed.join(name)
            reader.send(epoch)
        sections = 2 * (epoch + 1)
        self.feed.allow(self.stream.begins(epoch + 1), self.stream.begins(epoch + 1))
        while any(len(self.got[name]) < sections for name in self.readers):
            self.feed.wait(5.0)
        for name in list(self.feed.ledger.readers):
            self.feed.leave(name)

    def close(self) -> None:
        for reader in self.readers.values():
            reader.end()
        self.feed.close()
        self.events.close()


@contextmanager
def world(**options: Any) -> Iterator[World]:
    made = World(**options)
    try:
        yield made
    finally:
        made.close()


def flat(batches: list[list[int]]) -> list[int]:
    return [label for batch in batches for label in batch]


def test_all_get_every_sample_once_in_their_own_batches_whoever_is_slow_or_killed() -> None:
    with world() as one:
        for name, size, delay_s in (("small", 7, 0.0), ("slow", 32, 0.02), ("large", 40, 0.0), ("doomed", 1, 0.05)):
            one.read(name, size, delay_s)
        doomed = one.readers["doomed"]
        os.kill(doomed.process.pid, signal.SIGSTOP)  # it reads nothing, and everybody waits for it
        maker = next(iter(one.feed._makers.values()))
        for name, reader in one.readers.items():
            one.feed.join(name)
            reader.send(0)
        one.feed.allow(one.stream.begins(1), one.stream.begins(1))
        while not one.feed.ledger.full:
            one.feed.wait(5.0)
        assert "doomed" in one.feed.ledger.holding()
        assert one.feed.samples <= CHUNK * SLOTS
        os.kill(maker.process.pid, signal.SIGKILL)
        os.kill(doomed.process.pid, signal.SIGKILL)
        while any(len(one.got[name]) < 2 for name in one.readers):
            one.feed.wait(5.0)
        assert "doomed" not in one.readers
        assert one.feed.deaths == 1
        for name in list(one.readers):
            one.feed.leave(name)
        one.run(1)
        order = [one.stream.order(epoch).tolist() for epoch in (0, 1)]
        for name, size in (("small", 7), ("slow", 32), ("large", 40)):
            train, validate, again, _ = (batches for batches, _ in one.got[name])
            assert flat(train) == order[0]
            assert flat(again) == order[1]
            assert flat(validate) == list(range(VALIDATE))
            assert {len(batch) for batch in train[:-1]} == {size}
        sums = {tuple(total for _, total in one.got[name]) for name in one.readers}
        assert len({tuple(round(total, 3) for total in each) for each in sums}) == 1  # the same noise for all
        assert one.feed.samples <= 2 * (TRAIN + VALIDATE) + CHUNK
        first = sums.pop()
    with world(most=1) as other:  # another number of preprocessors, nobody killed: the same data
        other.read("alone", 10)
        other.run(0)
        assert [total for _, total in other.got["alone"]] == pytest.approx(list(first[:2]))


@pytest.mark.parametrize(
    ("transform", "complaint"),
    [
        (parts.fails_on_17, "sample 17 of the training set (.|\n)*this one is broken"),
        (parts.grows_on_17, r"sample 17 of the training set (.|\n)*float32 \(1, 4, 3\)"),
        (parts.dies_on_17, r"3 preprocessors died \(exit code 3\) over positions \d+ to \d+ of the training set"),
    ],
)
def test_a_sample_that_cannot_be_prepared_is_named(transform: Any, complaint: str) -> None:
    with world(transform=transform) as one:
        one.read("reader", 16)
        with pytest.raises(DataError, match=complaint):
            one.run(0)


def test_a_sample_that_hangs_twice_is_named_and_its_process_ended(tmp_path: Path) -> None:
    noted = tmp_path / "begun"
    with world(transform=parts.Hangs(noted), most=1, timeout_s=300.0) as one:
        one.read("reader", 16)
        one.feed.join("reader")
        one.readers["reader"].send(0)
        one.feed.allow(one.stream.begins(1), one.stream.begins(1))
        for times in (1, 2):
            (maker,) = one.feed._makers.values()
            while not noted.exists() or len(noted.read_text().splitlines()) < times:
                one.feed.wait(0.1)
            assert one.feed.deaths == times - 1
            while maker._line.poll():  # what it said before
                one.events.wait(0.0)
            one.events.awake.now_s += 301.0
            if times == 1:
                one.feed.wait(0.0)
                assert (maker.ending.how, one.feed.deaths) == (How.HUNG, 1)
        with pytest.raises(DataError, match="for 300 s, the last one at sample 17 of the training set"):
            one.feed.wait(0.0)
        assert maker.ending.how is How.HUNG


def test_writing_into_a_shared_batch_ends_the_writer_only() -> None:
    events, heard = Local(), []
    ring = Ring(LAYOUT, slots=2, chunk=4, writable=True)
    ring.slot(0)[0][:] = 7.0
    child = Child(
        events, "writer", parts.spoil, (ring.handle(writable=False),),
        heard=lambda _, message: heard.append(message[0]), ended=lambda one: heard.append(str(one.ending)),
    )  # fmt: skip
    while len(heard) < 2:
        events.wait(5.0)
    assert heard == ["mapped", "SIGSEGV"]
    assert float(ring.tensors[0][:4].min()) == 7.0
    child.end()
    ring.close()
    ring.close()
    events.close()


def test_batches_are_views_unless_they_go_around_the_end() -> None:
    ring = Ring(LAYOUT, slots=2, chunk=4, writable=True)
    for number in range(2):
        ring.slot(number)[1][:] = np.arange(4) + 4 * number
    assert ring.batch(10, 3)[1].tolist() == [2, 3, 4]
    assert ring.batch(10, 3)[1].untyped_storage().data_ptr() == ring.tensors[1].untyped_storage().data_ptr()
    assert ring.batch(14, 4)[1].tolist() == [6, 7, 0, 1]
    ring.close()


def test_the_first_samples_are_looked_at(tmp_path: Path) -> None:
    events = Local()
    found = look(events, Source(parts.Counted(3), parts.Counted(2), parts.noisy, None))
    assert found.layout == LAYOUT
    with pytest.raises(DataError, match="sample 0 of the validation set"):
        look(events, Source(parts.Counted(3), [torch.zeros(2)], None, None))

    def later(process: Linked) -> None:
        events.awake.now_s += 301.0 if process.at else 0.0

    with pytest.raises(DataError, match="no heartbeat for 300 s, the last one at sample 0 of the training set"):
        look(events, Source(parts.Counted(3), None, parts.Hangs(tmp_path / "begun", 0), None), 300.0, later)
    with pytest.raises(ConfigError, match="cannot be sent to another process"):
        look(events, Source(parts.Counted(3), None, lambda sample: sample, None))
    events.close()


def test_what_no_sample_is_refused() -> None:
    assert layout_of([1, 2.0, True, np.float32(1), torch.zeros(2)], "it") == (
        Field("int64", ()), Field("float64", ()), Field("bool", ()), Field("float32", ()), Field("float32", (2,)),
    )  # fmt: skip
    for bad in ("text", {"x": 1}, None, np.array(["a"])):
        with pytest.raises(DataError, match="field 1 is a"):
            arrays_of((1, bad), "it")
    with pytest.raises(DataError, match="NumPy cannot represent"):
        arrays_of(torch.zeros(2, dtype=torch.bfloat16), "it")
    with pytest.raises(DataError, match="it has the fields int64"):
        check(arrays_of((1,), "it"), LAYOUT, "it")


def test_memory_that_cannot_be_had() -> None:
    with pytest.raises(ConfigError, match="fewer samples"):
        Ring((Field("float32", (2**40,)),), slots=2**10, chunk=2**10, writable=True)
