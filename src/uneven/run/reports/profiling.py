"""Profiles all workers at the same time before the training."""

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

Progress = Callable[[int, float], None]  # called with the size under test and the fraction of the time that is spent


def profile_together(
    step: Callable[[int], object],  # forward and backward on a batch of a number of samples
    model: nn.Module,
    optimizers: tuple[torch.optim.Optimizer, ...],
    *,
    transport: Transport,
    place: str,  # names the memory that is filled, for instance host and device; workers with the same text share it
    least: int,  # smallest batch of this worker
    most: int,  # largest batch of this worker
    within_s: float,  # time for the whole measurement, the same on every rank
) -> dict[int, Profile]:
    """Measure all workers at the same time and exchange the results.

    They share cores, memory bandwidth or a device in training too, and a batch's cost must include that. Workers in one
    place share its free memory.

    Returns:
        Profiles by rank, the same on every rank.

    Raises:
        ConfigError: as :func:`~uneven.run.measure.measure_profile.take_profile`, or layers that exchange with other
        workers.
        ConflictError: the ranks do not agree on ``within_s``.
        TrainingError: another rank failed; the message has its error.
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
        # The other ranks wait in this gather: report the error instead of leaving them to the time-out.
        transport.gather_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        raise
    measured = {"sizes": own.sizes, "seconds": own.seconds, "failed": own.failed}
    rows = [json.loads(text) for text in transport.gather_text(json.dumps(measured))]
    for rank, row in enumerate(rows):
        if "error" in row:
            raise TrainingError(f"session.profile: rank {rank} failed: {row['error']}")
    return {rank: _read(row) for rank, row in enumerate(rows)}


def profile_record(rank: int, own: Profile, most: int, took_s: float) -> ProfileRecord:
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
    """Return a profile's step from a step on a batch.

    A batch is read inside each step if ``reads``; otherwise each size is read once, before the timed steps.
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
    """Raise ConfigError if layers exchange with other workers, which are at other sizes."""
    names = [name for name, layer in model.named_modules() if isinstance(layer, nn.SyncBatchNorm)]
    if names and workers > 1:
        raise ConfigError(
            f"session.profile: {names[0]} is a SyncBatchNorm, which needs all workers in every pass, while they try "
            "different sizes: give session.loader max_batch instead, or use BatchNorm"
        )


@contextmanager
def _shown(rank: int, most: int) -> Iterator[Progress | None]:
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
