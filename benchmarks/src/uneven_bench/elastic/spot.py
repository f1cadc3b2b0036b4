"""A trace of spot machines that come and go, and the part of their capacity that became useful samples."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from uneven.cluster import files
from uneven.cluster.pure.describe.quantities import Recorded
from uneven.cluster.series import SeriesFiles
from uneven.errors import ConfigError, LaunchError
from uneven_bench.elastic import arms, judge, logs, trace
from uneven_bench.elastic.cases import CHANGES, CHANGES_QUICK, SPOT_QUICK_S, SPOT_S, STEADY
from uneven_bench.elastic.play import playing
from uneven_bench.elastic.workload import CountedWorkload
from uneven_bench.harness.show import Progress

STAY = 2  # machines that are always present
_FILE = "traces/spot_traces.npz"
_ZONES = ("us-east-1c", "us-east-1d", "us-east-1f", "us-west-2a")
_SERIES = tuple(f"availability|1-node|aws-02-15-2023|{zone}_v100_1" for zone in _ZONES)
_LENGTH, _LENGTH_QUICK = 64, 8  # values of the series that are played, one for every 195 s
_SHIPPED_STEP_S, _SHIPPED_LENGTH = 195 / 60, 72
"""In which steps descriptions are read, and how many at least: those of spot."""

_PER_SAMPLE_S = 0.1 / 60
_STEADY_S, _STEADY_QUICK_S = 8.0, 2.5
_READY = 5


def machines(description: str | None = None) -> tuple[list[tuple[float, ...]], str]:
    """Return the series of each spot machine, and the name of their record. ``description``: name or file of a cluster
    description; None is our usual record. Raises ConfigError, UnknownNameError: there is none, or its record cannot be
    read."""
    if description is not None:
        return _described(description, ()), f"the description {description}"
    try:
        read = SeriesFiles(None)
        return [read(Recorded(file=_FILE, key=key)) for key in _SERIES], _FILE
    except ConfigError:
        return _described("spot", _ZONES), "the description spot, as UNEVEN_DATA names no folder with spot_traces.npz"


def _described(description: str, those: Sequence[str]) -> list[tuple[float, ...]]:
    """Return the series of these machines of a description, or of all that come or go in it."""
    spec = files.load(description)
    named = those or tuple(dict.fromkeys(event.node for event in spec.events))
    if not named:
        raise ConfigError(f"nobody comes or goes in {description}: name a description with present, as spot has it")
    moves = [[event.at_s or 0.0 for event in spec.events if event.node == one] for one in named]
    first = [one in spec.initial_members for one in named]
    length = math.ceil(max(map(max, moves)) / _SHIPPED_STEP_S) + 1
    return trace.sampled(first, moves, _SHIPPED_STEP_S, max(length, _SHIPPED_LENGTH))


def spot(
    name: str,
    quick: bool,
    seed: int,
    rates: dict[int, float],
    folders: Iterator[Path],
    progress: Progress,
    description: str | None = None,
) -> dict[str, Any]:
    """Play the trace on one arm. ``description``: see :func:`machines`; ``rates``: number of workers → samples/s of
    undisturbed DDP; missing ones are measured first. Result: ``goodput``, ``useful`` samples, ``capacity`` (samples),
    ``seconds``, ``changes``, ``most`` machines, ``rates_per_s`` (undisturbed, by the number of workers), ``record``,
    ``lost``, ``twice``, ``more_steps``, and ``lived``: True if a worker trained in the end. Raises LaunchError: the
    workers could not be started."""
    phase = f"spot-{name}"
    series, record = machines(description)
    length = _LENGTH_QUICK if quick else _LENGTH
    begin = trace.window(series, length, CHANGES_QUICK if quick else CHANGES)
    seconds = SPOT_QUICK_S if quick else SPOT_S
    plan = trace.play(series, begin, length, seconds=seconds, stay=STAY, seed=seed)
    workload = CountedWorkload(per_sample_s=_PER_SAMPLE_S)
    sizes = sorted({STAY, plan.most} if quick else {STAY, (STAY + plan.most) // 2, plan.most})
    for count in (count for count in sizes if count not in rates):
        progress(phase, f"undisturbed, {count} workers", 0.0)
        rates[count] = _undisturbed(workload, count, _STEADY_QUICK_S if quick else _STEADY_S, next(folders))
    limits = {"least": STAY, "most": plan.most, "between_faults_s": seconds / len(plan.changes)}
    arm = arms.make(name, workload=workload, folder=next(folders), **limits)
    with playing(arm) as player:
        progress(phase, "starts", 0.0)
        player.start(STAY)
        since_s = player.follow(plan, lambda what, done: progress(phase, what, done))
        player.logs.look()
        lived = bool(player.logs.alive()) or arm.running
        steps = logs.history(player.logs.all())
    useful = judge.useful(steps, since_s, since_s + seconds)
    capacity = judge.capacity(plan.present, seconds, judge.between(rates))
    ledger = judge.ledger(steps, workload.samples, workload.global_batch)
    progress(phase, "", 1.0)
    return {
        "goodput": useful / capacity, "useful": useful, "capacity": capacity, "seconds": seconds,
        "changes": len(plan.changes), "most": plan.most, "rates_per_s": dict(rates), "record": record,
        "lost": ledger.lost, "twice": ledger.twice, "more_steps": ledger.more, "lived": lived,
    }  # fmt: skip


def _undisturbed(workload: CountedWorkload, workers: int, seconds: float, folder: Path) -> float:
    """Return the samples/s of DDP without faults."""
    arm = arms.make(STEADY, workload=workload, folder=folder, least=workers, most=workers, between_faults_s=0.0)
    with playing(arm) as player:
        player.start(workers, ready=_READY)
        player.wait(lambda: False, seconds)
        moments = judge.progress(player.logs.all())[_READY:]
    if len(moments) < 2:
        raise LaunchError(f"{workers} workers took {len(moments)} steps within {seconds:g} s:\n{arm.said()[-3000:]}")
    return workload.global_batch / judge.step_s(moments)
