"""A benchmark of this machine's neighbour sums and products that takes half a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.benchmark import Timer

from uneven.errors import ConfigError, DataError
from uneven.graph.adjacency import RowIndex
from uneven.graph.pure.capacity import GraphRates
from uneven.graph.reduce import row_sums

_ROWS, _EDGES, _WIDTH = 16_384, 1 << 18, 64
_LEAST_S = 0.25
"""Much longer than the 10 ms period in which cgroups limit a share of a core."""


def measured() -> GraphRates:
    """Return this machine's rates, with torch's number of threads."""
    draw = np.random.default_rng(0)
    source, target = draw.integers(0, _ROWS, (2, _EDGES), dtype=np.int32)
    rows = RowIndex.of(target, source, _ROWS)
    x, weight = torch.randn(_ROWS, _WIDTH), torch.randn(_WIDTH, 4 * _WIDTH)
    return GraphRates(
        _seconds(lambda: row_sums(rows, x)) / (_EDGES * _WIDTH),
        _seconds(lambda: x @ weight) / (2 * x.numel() * weight.shape[1]),
    )


@contextmanager
def all_measured() -> Iterator[tuple[list[GraphRates], int]]:
    """Yield every worker's rates, measured at the same time, and this worker's rank; leave when rank 0 has finished."""
    from uneven.run.start.connect import connect
    from uneven.runtime.world import discover

    world = discover()
    if world.size == 1 or world.elastic is not None:
        raise ConfigError(
            "by='speed' measures the workers of a run of several: start the script with uneven run --nproc 4, without "
            "--elastic, or give shares=(4, 2, 1)"
        )
    connection = connect(world, timeout_s=1800.0)
    mine = measured()
    rows = connection.transport.gather([mine.number_s, mine.flop_s]).result()
    assert rows is not None  # all take part
    well = False
    try:
        yield [GraphRates(float(number_s), float(flop_s)) for number_s, flop_s in rows], world.rank
        well = True
    finally:
        # A barrier with the result of rank 0: the other workers must not load a folder that it has not written.
        told = connection.transport.gather([float(well)]).result()
        connection.close()
    if told is None or not told[0][0]:
        # all workers fail with rank 0
        raise DataError("graph.partition has failed on rank 0, which cuts for all: its message says why")


def _seconds(work: Callable[[], Any]) -> float:
    timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=_LEAST_S).mean
