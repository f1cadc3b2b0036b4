"""Takes every worker's profile before the training: together, within a bounded time, and nobody left waiting."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from uneven.errors import ConfigError, TrainingError
from uneven.policy.balance.profiled import Profile
from uneven.policy.core.records import ProfileRecord
from uneven.run.lines.transport import Transport
from uneven.run.measure.measure_profile import take_profile
from uneven.run.start.connect import compare

Progress = Callable[[int, float], None]
"""Told a size that is tried, and the part of the time that is spent."""


def profile_together(
    step: Callable[[int], object],
    model: nn.Module,
    optimizers: tuple[torch.optim.Optimizer, ...],
    *,
    transport: Transport,
    place: str,
    least: int,
    most: int,
    within_s: float,
) -> dict[int, Profile]:
    """Every worker measures itself, all at the same time, and tells the others.

    At the same time, because so they train: what workers on one machine take from each other (cores, the bandwidth of
    memory, a device) belongs to what a batch costs there. What memory is left is divided among those in one place.

    Args:
        step: forward and backward on a batch of so many samples.
        place: whose memory is filled, for instance host and device; the same text where it is the same memory.
        least: smallest batch of this worker.
        most: largest batch of this worker.
        within_s: time for all of it, the same on every rank.

    Returns:
        Profiles by rank, the same on every rank.

    Raises:
        ConfigError: as :func:`~uneven.run.measure.measure_profile.take_profile`, or layers that speak to the other
        workers.
        ConflictError: the ranks do not agree on ``within_s``.
        TrainingError: another rank failed; the message says which and of what.
    """
    refuse_speaking_layers(model, transport.size)
    said = compare(transport, {"within_s": within_s, "_place": place}, "session.profile")
    sharers = sum(one["_place"] == place for one in said)
    try:
        with _shown(transport.rank, most) as progress:
            own = take_profile(
                step, model, *optimizers, least=least, most=most, within_s=within_s, sharers=sharers, progress=progress
            )
    except Exception as error:
        transport.gather_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        raise
    measured = {"sizes": own.sizes, "seconds": own.seconds, "failed": own.failed}
    rows = [json.loads(text) for text in transport.gather_text(json.dumps(measured))]
    for rank, row in enumerate(rows):
        if "error" in row:
            raise TrainingError(f"session.profile: rank {rank} failed: {row['error']}")
    return {rank: _read(row) for rank, row in enumerate(rows)}


def profile_record(rank: int, own: Profile, most: int, took_s: float) -> ProfileRecord:
    """What the journal keeps of a worker's profile.

    Args:
        most: samples that the worker may be given.
    """
    return ProfileRecord(
        rank=rank,
        at_s=time.time(),
        sizes=own.sizes,
        seconds=own.seconds,
        saturation=own.saturation,
        most=most,
        failed=own.failed,
        took_s=took_s,
    )


def steps_on(step: Callable[[Any], object], batch_of: Callable[[int], Any], *, reads: bool) -> Callable[[int], object]:
    """The step of a profile out of one on a batch.

    Args:
        batch_of: samples → a batch.
        reads: whether reading a batch belongs to a step; else each is made once, before the steps that are timed.
    """
    kept: dict[int, Any] = {}

    def run(size: int) -> None:
        if reads or size not in kept:
            kept.clear()
            kept[size] = batch_of(size)
        step(kept[size])

    return run


def _read(row: dict[str, Any]) -> Profile:
    return Profile(sizes=tuple(row["sizes"]), seconds=tuple(row["seconds"]), failed=row["failed"])


def refuse_speaking_layers(model: nn.Module, workers: int) -> None:
    """A profile is taken by each worker alone.

    Raises:
        ConfigError: a layer that needs the others, and there are others.
    """
    names = [name for name, layer in model.named_modules() if isinstance(layer, nn.SyncBatchNorm)]
    if names and workers > 1:
        raise ConfigError(
            f"session.profile: {names[0]} is a SyncBatchNorm, which speaks to the other workers in every pass, while "
            f"they are at other sizes: say max_batch in session.loader instead, or use BatchNorm"
        )


@contextmanager
def _shown(rank: int, most: int) -> Iterator[Progress | None]:
    """A bar on the terminal of rank 0, where there is one: how far the sizes have come, or the time."""
    if rank != 0 or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("profile"), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bars:
        task = bars.add_task("", total=1.0)

        def moved(size: int, spent: float) -> None:
            done = math.log(size + 1) / math.log(most + 2)
            bars.update(task, completed=max(done, spent), description=f"{size} of up to {most} samples, rank 0")

        yield moved
