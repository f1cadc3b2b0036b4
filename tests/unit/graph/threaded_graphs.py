"""Graphs for tests, and a cut one on workers that are threads."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from uneven import graph
from uneven.errors import PeerError
from uneven.policy.core.views import SyncView
from uneven.policy.sync import policies
from uneven.run.lines import ThreadLines
from uneven.run.step.callback import CallbackContext, Step


def some_graph(vertices: int = 60, edges: int = 240, *, symmetric: bool = True, seed: int = 0) -> Tensor:
    """Random edges with loops, some of them twice, and vertices without any."""
    draw = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, vertices - 5, (2, edges), generator=draw)
    ends = torch.cat([ends, ends[:, :3], torch.tensor([[1, 4, 4], [1, 4, 4]])], dim=1)
    return torch.cat([ends, ends.flip(0)], dim=1) if symmetric else ends


def features(vertices: int, width: int, seed: int = 1) -> Tensor:
    return torch.randn(vertices, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def on_threads(
    path: Path,
    size: int,
    work: Callable[[graph.PartedGraph], Any],
    own_s: Sequence[float] = (),
    changed: list[int] | None = None,
    **more: Any,
) -> list[Any]:
    """What ``work`` returns on each of ``size`` workers, whose samples count as in a session.

    Args:
        own_s: what each says that it has needed for its own part of a step.
        changed: gets the rank of each whose part has said that steps are other work from then on.
    """
    every = [graph.load(path, rank=rank, size=size, **more) for rank in range(size)]
    shares = tuple(one.samples for one in every)
    told = [] if changed is None else changed
    lines = ThreadLines.of(size, timeout_s=60.0)  # before the test is ended, which would hide what stopped one

    def one(rank: int) -> Any:
        every[rank].attach(
            CallbackContext(
                rank=rank,
                members=tuple(range(size)),
                lines=lines[rank],
                model=nn.Identity(),
                optimizers=(),
                log=lambda *_: None,
                own_time=lambda: (own_s[rank] if own_s else math.nan, math.nan, math.nan),
                work_changed=lambda: told.append(rank),
            )
        )
        members = tuple(range(size))
        plan = policies.resolve("bsp").plan(SyncView(rank=rank, clock=0, members=members))
        every[rank].before_step(Step(0, 0, 0, rank, members, shares, plan))
        return work(every[rank])

    # Layers are tried with torch.get_rng_state, which holds a lock of torch while it may collect garbage. To free a
    # tensor of numpy's memory it then waits for the interpreter's lock, which a thread holds that waits for torch's.
    gc.disable()
    try:
        with ThreadPoolExecutor(size) as pool:
            each = [pool.submit(one, rank) for rank in range(size)]
    finally:
        gc.enable()
    # What stopped one of them says more than that the others missed it.
    stopped = [error for it in each if (error := it.exception()) is not None and not isinstance(error, PeerError)]
    if stopped:
        raise stopped[0]
    return [it.result() for it in each]


def weighted(gradients: list[list[Tensor]], samples: list[int]) -> list[Tensor]:
    """The gradient that a session would make of the workers'."""
    total = sum(samples)
    scaled = [[one * count / total for one in each] for each, count in zip(gradients, samples, strict=True)]
    return [torch.stack(each).sum(0) for each in zip(*scaled, strict=True)]
