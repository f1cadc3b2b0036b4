"""The in-process transport keeps the protocol's promises, with real threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from uneven.errors import PeerError
from uneven.run.lines.in_process_rendezvous import Hub, ThreadTransport
from uneven.run.lines.transport import Transport


def crew(size: int, body: Callable[[ThreadTransport], object]) -> list[object]:
    """``body`` on an endpoint of each rank, in threads; what they returned, by rank."""
    hub, results = Hub(size), [None] * size

    def run(rank: int) -> None:
        results[rank] = body(hub.endpoint(rank))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_everybody_sees_every_row_by_rank() -> None:
    def body(line: ThreadTransport) -> object:
        first, second = line.gather([line.rank, 1]), line.gather([line.rank, 2])
        return second.result().tolist(), first.result().tolist(), line.gather_text(f"<{line.rank}>")  # in any order

    rows = ([[float(rank), float(n)] for rank in range(5)] for n in (2, 1))
    assert crew(5, body) == [(*rows, tuple(f"<{rank}>" for rank in range(5)))] * 5


def test_a_gather_does_not_wait_until_its_result_is_asked_for() -> None:
    hub = Hub(2)
    pending = hub.endpoint(0).gather([7])
    hub.endpoint(1).gather([8])
    assert pending.result().tolist() == [[7.0], [8.0]]


def test_who_is_missing_is_named() -> None:
    hub = Hub(4, timeout_s=0.05)
    pending = [hub.endpoint(rank).gather([0]) for rank in (0, 2)]
    with pytest.raises(PeerError, match=r"rank 1, 3 within 0\.05 s"):
        pending[0].result()


def test_it_is_a_transport() -> None:
    assert isinstance(Hub(1).endpoint(0), Transport)
