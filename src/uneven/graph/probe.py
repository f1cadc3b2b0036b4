"""How fast this machine sums over neighbours and multiplies: measured, in half a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from uneven.errors import ConfigError
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
    rows = RowIndex.of(target, source, _ROWS, _ROWS)
    x, weight = torch.randn(_ROWS, _WIDTH), torch.randn(_WIDTH, 4 * _WIDTH)
    return GraphRates(
        _seconds(lambda: row_sums(rows, x)) / (_EDGES * _WIDTH),
        _seconds(lambda: x @ weight) / (2 * x.numel() * weight.shape[1]),
    )


def all_measured() -> tuple[list[GraphRates], int, Callable[[bool], bool]]:
    """Every worker's rates, all measuring at the same time; who this one is; and what all call when rank 0 is through.

    Raises:
        ConfigError: there is one worker only, or they may come and go.
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

    def through(well: bool) -> bool:
        told = connection.transport.gather([float(well)]).result()
        connection.close()
        return told is not None and bool(told[0][0])

    return [GraphRates(float(number_s), float(flop_s)) for number_s, flop_s in rows], world.rank, through


def _seconds(work: Callable[[], Any]) -> float:
    work()
    began_s, count = time.perf_counter(), 0
    while time.perf_counter() - began_s < _LEAST_S:
        work()
        count += 1
    return (time.perf_counter() - began_s) / count
