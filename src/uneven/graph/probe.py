"""How fast this machine sums over neighbours and multiplies: measured, in half a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.benchmark import Timer

from uneven.errors import ConfigError, DataError
from uneven.graph.capacity import GraphRates
from uneven.graph.reduce import row_sums
from uneven.graph.rows import RowIndex

_ROWS, _EDGES, _WIDTH = 16_384, 1 << 18, 64
_LEAST_S = 0.25
"""Long enough for a share of a core that is dealt out every hundredth of a second."""


def measured() -> GraphRates:
    """This machine's rates, with as many threads as torch has."""
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
    """Every worker's rates, all measuring at the same time, and who this one is; left when rank 0 is through.

    Raises:
        ConfigError: there is one worker only, or they may come and go.
        DataError: rank 0 has failed inside.
    """
    from uneven.run.start.connect import connect
    from uneven.world import discover

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
        told = connection.transport.gather([float(well)]).result()
        connection.close()
    if told is None or not told[0][0]:
        raise DataError("graph.partition has failed on rank 0, which cuts for all: its message says why")


def _seconds(work: Callable[[], Any]) -> float:
    timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=_LEAST_S).mean
