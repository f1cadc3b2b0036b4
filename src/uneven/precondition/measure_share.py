"""The measurement of the share of workers that should precondition a layer, made once when a part is attached."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from uneven.precondition.item_exchange import PackedExchanges
from uneven.precondition.item_work import ItemWork
from uneven.precondition.pure.packing import Layout
from uneven.run.step.part import Run

_TIMES = 3
_SIDE = 256


def probed_share(run: Run, name: str, works: Sequence[ItemWork]) -> float:
    """Return 1 or 1 / P, whichever gives the shorter plain step.

    With 1 every worker preconditions everything and nothing is sent; with 1 / P each layer is preconditioned once and
    gradients are sent. Shares in between cost in between. The slowest worker's times count.
    """
    size = len(run.members)
    if size == 1:
        return 1.0
    exchanges = PackedExchanges(run.lines, f"{name} probe")
    total = sum(one.sizes.result for one in works)
    layout = Layout.of([-(-total // size)] * size, run.members, run.members)
    device = works[0].weights[0].device
    flat, square = torch.zeros(layout.size, device=device), torch.ones(_SIDE, _SIDE, device=device)
    sending_s = _median_s(lambda: exchanges.among_all(flat, layout), device)
    rate = 2.0 * _SIDE**3 / _median_s(lambda: torch.mm(square, square), device)
    computing_s = sum(one.item.step for one in works) / rate
    rows = list(exchanges.table((sending_s, computing_s)).values())
    once_s = max(row[0] for row in rows) + max(row[1] for row in rows) / size
    return 1.0 / size if once_s < max(row[1] for row in rows) else 1.0


def _median_s(call: Callable[[], object], device: torch.device) -> float:
    wait = (lambda: None) if device.type == "cpu" else (lambda: torch.accelerator.synchronize(device))
    call()
    wait()
    taken = []
    for _ in range(_TIMES):
        began_s = time.perf_counter()
        call()
        wait()
        taken.append(time.perf_counter() - began_s)
    return statistics.median(taken)
