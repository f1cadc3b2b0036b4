"""What any lines must do, asked on each worker at the same time; in tests of threads and of processes alike."""

from __future__ import annotations

import pytest
import torch

from uneven.errors import ConfigError
from uneven.run.lines import Lines


def exchange_all(lines: Lines) -> None:
    """Each kind of exchange once, on all members and on some."""
    rank, size = lines.rank, len(lines.members)
    line, other = lines.open("one"), lines.open("two")
    mine = torch.full((3,), float(rank + 1))
    assert line.sum(mine).wait() == line.members
    assert mine.tolist() == [size * (size + 1) / 2] * 3

    told = torch.tensor([float(rank)])
    line.broadcast(told, size - 1).wait()
    assert told.item() == size - 1

    rows = [torch.empty(2) for _ in lines.members]
    line.gather(torch.tensor([rank, 10.0 * rank]), rows).wait()
    assert [row.tolist() for row in rows] == [[one, 10.0 * one] for one in range(size)]

    # a row as long as both ranks together say, so some are empty
    outgoing = [torch.full((rank + to,), float(rank)) for to in range(size)]
    incoming = [torch.empty(rank + source) for source in range(size)]
    line.all_to_all(outgoing, incoming).wait()
    assert [one.tolist() for one in incoming] == [[float(source)] * (rank + source) for source in range(size)]

    # two lines are under way at once, ended in another order on each worker
    first, second = torch.ones(1), torch.full((1,), 2.0)
    handles = [line.sum(first), other.sum(second)]
    for handle in handles[:: 1 if rank % 2 else -1]:
        handle.wait()
    assert (first.item(), second.item()) == (size, 2.0 * size)

    if size > 1:
        _pairs(lines)
    lines.close()


def _pairs(lines: Lines) -> None:
    pair = lines.open("pair", [1, 0])
    assert pair.members == (0, 1)
    if lines.rank > 1:
        with pytest.raises(ConfigError, match=r"rank \d is not one of its members"):
            pair.sum(torch.ones(1))
        return
    peer = 1 - lines.rank
    found = torch.zeros(4)
    receiving = pair.receive(found, peer)
    pair.send(torch.arange(4.0) + lines.rank, peer).wait()
    receiving.wait()
    assert found.tolist() == [peer, peer + 1.0, peer + 2.0, peer + 3.0]
    total = torch.ones(1)
    pair.sum(total).wait()
    assert total.item() == 2.0
