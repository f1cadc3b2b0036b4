"""Costs of a worker's iterations, measured at the start of a run, for the oracle and for LBB's profile."""

import statistics
import time
from collections.abc import Callable

from torch.nn.parallel import DistributedDataParallel

from uneven.cli.demo.demo_training import ReadyMark
from uneven.policy.core.cost import Affine
from uneven.run.measure.meter import HostClock
from uneven_bench.balancers.rivals.cubic import Cubic
from uneven_bench.workloads.base import TrainingWorkload, stretch

_EXCHANGES = 14
_PROFILE_SHARE = 0.6  # the largest part of the time for LBB's profile, which is longer than the oracle's two sizes


def affine(work: TrainingWorkload, total: int, seconds: float) -> Affine:
    """Return this worker's cost Γ(x) = a + b x, without any exchange: a line through the means at two batch sizes."""
    small, large = max(total // 32, 1), total // 6
    found = _timed(work, (small, large), seconds, least=3)
    low, high = (statistics.fmean(times[1:]) for times in found.values())
    per_sample_s = max((high - low) / (large - small), 1e-9)
    return Affine(overhead_s=max(low - per_sample_s * small, 0.0), per_sample_s=per_sample_s)


def cubic(work: TrainingWorkload, total: int, seconds: float) -> Cubic:
    """Return LBB's profile of this worker: medians at up to seven sizes, each twice the one before, up to X / 2."""
    largest = max(total // 2, 8)
    sizes = tuple(sorted({max(largest >> power, 1) for power in range(7)}))
    found = _timed(work, sizes, seconds * _PROFILE_SHARE, least=3)
    return Cubic.fit(sizes, [statistics.median(found[size][1:]) for size in sizes])


def _timed(work: TrainingWorkload, sizes: tuple[int, ...], seconds: float, least: int) -> dict[int, list[float]]:
    """Return seconds of a step at each size, the sizes by turns; the first of each warms up."""
    step = _step(work, sizes[-1])
    found: dict[int, list[float]] = {size: [] for size in sizes}
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s or len(found[sizes[-1]]) < least:
        for size, times in found.items():
            started_s = time.perf_counter()
            step(size)
            times.append(time.perf_counter() - started_s)
    return found


def _step(work: TrainingWorkload, most: int) -> Callable[[int], None]:
    model = work.make()
    optimizer = work.optimizer(model.parameters())
    data, _ = stretch(work, most)

    def step(samples: int) -> None:
        x, y = data.take(range(samples))
        work.loss(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def transfer_s(work: TrainingWorkload, total: int) -> float:
    """Return this worker's processor time in an exchange, at its pace. Without it in the oracle's costs, a worker with
    a tenth of a core would finish computing in time but be late with the exchange."""
    model = work.make()
    mark = ReadyMark(model)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = work.optimizer(model.parameters())
    clock = HostClock()
    samples = max(total // 16, 1)
    x, y = stretch(work, samples)[0].take(range(samples))
    found = []
    for _ in range(_EXCHANGES):
        begin = clock.mark()
        work.loss(ddp, x, y).backward()
        done = clock.mark()
        optimizer.step()
        optimizer.zero_grad()
        end = clock.mark()
        exchange_s, moved_s = done[0] - mark.ready_s, done[1] - mark.worked_s
        whole_s, worked_s = clock.between(begin, end)
        pace = (whole_s - exchange_s) / (worked_s - moved_s)
        found.append(min(exchange_s, moved_s * pace))
    return statistics.fmean(found[2:])
