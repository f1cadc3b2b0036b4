"""Lines among threads: the public double does what lines between processes do, and waits no longer than it should."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from lines_contract import exchange_all
from uneven.errors import ConfigError, PeerError
from uneven.run.lines import ThreadLines
from uneven.run.lines.in_process_rendezvous import Hub


def together(body: Callable[[ThreadLines], Any], size: int, timeout_s: float = 20.0) -> list[Any]:
    """What ``body`` returns on each worker."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(body, ThreadLines.of(size, timeout_s)))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_exchange(size: int) -> None:
    together(exchange_all, size)


def test_traffic_is_counted_and_told_once() -> None:
    def body(lines: ThreadLines) -> list[Any]:
        line = lines.open("sums")
        handle = line.sum(torch.ones(6))
        handle.wait()
        handle.wait()  # a second time is nothing
        return [*lines.book.records(lines.rank, 7, 1.0), *lines.book.records(lines.rank, 8, 2.0)]

    for rank, (record,) in enumerate(together(body, 3)):
        assert (record.rank, record.iteration, record.line) == (rank, 7, "sums")
        assert (record.exchanges, record.sent_bytes) == (1, 2 * 2 * 24 // 3)
        assert record.waited_s >= 0.0


def test_who_opens_another_line_is_told() -> None:
    def body(lines: ThreadLines) -> str:
        with pytest.raises(ConfigError) as error:
            lines.open("a" if lines.rank else "b")
        return str(error.value)

    said = together(body, 2)
    assert "line 'b' is opened on rank 0 while rank 1 opens ['a', [0, 1]]" in said[0]


def test_who_does_not_come_is_missed() -> None:
    def body(lines: ThreadLines) -> None:
        line = lines.open("sums")
        if lines.rank == 0:
            with pytest.raises(PeerError, match="rank 1"):
                line.sum(torch.ones(1)).wait()
            with pytest.raises(PeerError, match=r"rank 1 has sent nothing to rank 0 within 0\.1 s"):
                line.receive(torch.ones(1), 1).wait()

    together(body, 2, 0.1)


def test_what_does_not_fit_is_refused() -> None:
    (lines,) = ThreadLines.of(1)
    line = lines.open("all")
    with pytest.raises(ConfigError, match=r"the run has \(0,\)"):
        lines.open("more", [0, 1])
    with pytest.raises(ConfigError, match="rank 1 is not one of its members"):
        line.send(torch.ones(1), 1)
    with pytest.raises(ConfigError, match="rank 0 is this worker itself"):
        line.receive(torch.ones(1), 0)
    with pytest.raises(ConfigError, match=r"shape \(4,\) and strides \(2,\) is not contiguous"):
        line.sum(torch.ones(8)[::2])
    with pytest.raises(ConfigError, match="not contiguous"):
        line.all_to_all([torch.ones(2)], [torch.ones(4)[::2]])
    with pytest.raises(ConfigError, match="gather into 2 tensors on 1 members"):
        line.gather(torch.ones(1), [torch.ones(1)] * 2)
    with pytest.raises(ConfigError, match="all_to_all with 0 tensors to send and 1 to receive"):
        line.all_to_all([], [torch.ones(1)])


def test_tensors_that_differ_from_worker_to_worker_are_refused_among_threads() -> None:
    def body(lines: ThreadLines) -> None:
        line, rank = lines.open("all"), lines.rank
        other = torch.ones(1 + 2 * rank)
        with pytest.raises(ConfigError, match=r"differ in shape or dtype: .*\(1,\), torch\.float32.*\(3,\)"):
            line.sum(other).wait()
        with pytest.raises(ConfigError, match=r"torch\.float32.*torch\.int32"):
            line.sum(torch.ones(2, dtype=torch.int32 if rank else torch.float32)).wait()
        for begun in (line.broadcast(other, 0), line.gather(other, [torch.ones(1), torch.ones(1)])):
            with pytest.raises(ConfigError, match="differ in shape"):
                begun.wait()
        with pytest.raises(ConfigError, match="differ in shape"):
            line.all_to_all([other, other], [torch.ones(2), torch.ones(2)]).wait()
        line.send(other, 1 - rank).wait()
        with pytest.raises(ConfigError, match="differ in shape"):
            line.receive(torch.ones(2), 1 - rank).wait()

    together(body, 2)


def test_what_was_exchanged_is_not_kept() -> None:
    found: list[weakref.ref[torch.Tensor]] = []

    class Seen(Hub):
        def put(self, turn: int, rank: int, value: Any) -> None:
            found.append(weakref.ref(value))
            super().put(turn, rank, value)

    (lines,) = ThreadLines.of(1)
    line = lines.open("all")
    line._carrier._place.hub = Seen(1)  # type: ignore[attr-defined]
    for _ in range(3):
        line.sum(torch.ones(4)).wait()
    assert [one() for one in found] == [None] * 3
