"""Lines among threads: the public double does what lines between processes do, and waits no longer than it should."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from lines_contract import exchange_all
from uneven.errors import ConfigError, PeerError
from uneven.run.lines import ThreadLines


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
        return [*lines.records(7, 1.0), *lines.records(8, 2.0)]

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
    with pytest.raises(ConfigError, match="rank 1 is none of its members"):
        line.send(torch.ones(1), 1)
    with pytest.raises(ConfigError, match="gather into 2 tensors on 1 members"):
        line.gather(torch.ones(1), [torch.ones(1)] * 2)
    with pytest.raises(ConfigError, match="all_to_all with 0 tensors to send and 1 to receive"):
        line.all_to_all([], [torch.ones(1)])
