"""``uneven bench worlds``: the simulator compared with the emulated cluster.

Every description is run for real by ``uneven emulate`` and played by ``uneven simulate``, with even shares and with the
default balancer. The simulator gets the network's cost in core-seconds, as measured in the emulated run
(:mod:`uneven_bench.worlds.costs`), and everything else from the description. Then 10,000 workers are simulated, for its
speed.
"""

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from uneven import journal
from uneven.cli.demo.demo_training import network
from uneven.cluster.emulate.capabilities import why_not_isolated
from uneven.cluster.pure.describe.spec import ClusterSpec, Workload
from uneven.cluster.pure.simulate import Scenario, simulate
from uneven.cluster.virtual.datasets import images
from uneven.policy.balance import balancers
from uneven.policy.core.records import Record
from uneven.policy.sync import BSP
from uneven_bench.harness.program import program
from uneven_bench.harness.show import Progress, chosen
from uneven_bench.recorded.runs import emulate
from uneven_bench.worlds.cases import CHANGE_AT, GLOBAL_BATCH, WorldCase, calibration, cases
from uneven_bench.worlds.compare import BALANCERS, Compared, Pair, Race, close, iteration_s, summarize, summary
from uneven_bench.worlds.costs import as_in, own_sides, shape_of
from uneven_bench.worlds.keep import free, write
from uneven_bench.worlds.outside import bench as outside
from uneven_bench.worlds.worker import WIDTH

SETTLED = CHANGE_AT + 45  # the first iteration that counts: the split has been found, after a change as well
QUICK = "steady shares"  # the case of ``--quick``
OUTSIDE = "outside"  # the case that compares with measurements of others
_SEEDS = 5

_QUICK_WIDTH = 16

_MANY = 10_000
_ITERATIONS_OF_MANY, _QUICK_ITERATIONS_OF_MANY = 100, 5
_LIMIT_S = 240.0


class WorldTraining(NamedTuple):
    """A training."""

    data: str  # data set, by its name in ``uneven bench``
    width: int  # of the network


class Effort(NamedTuple):
    """The length of the measurement."""

    settled: int  # the first iteration that counts
    iterations: int  # of each run
    repeats: int  # of each run, the balancers taking turns
    close_repeats: int = 0  # more repeats if one of the worlds calls it a close race, which noise may decide


def run(
    quick: bool,
    data: str,
    progress: Progress,
    *,
    width: int | None = None,
    case: str | None = None,
    keep: Path | None = None,
) -> dict[str, Any]:
    """Play both worlds, then the large simulation. ``width``: of the network, by default 64, quickly 16; time grows
    with its square. ``case``: this one only; ``quick`` takes :data:`QUICK` by default. ``keep``: a new folder for the
    emulated runs as a data set. The result is the object that
    ``--json`` prints; ``docs/measurements/worlds.md`` explains every key. Raises LaunchError: an emulated run failed.
    UnknownNameError: no such case."""
    if case == OUTSIDE:
        return outside.run(progress)
    effort = Effort(SETTLED, SETTLED + 12, 1) if quick else Effort(SETTLED, SETTLED + 20, 1, close_repeats=2)
    case = QUICK if quick and case is None else case
    training = WorldTraining(data, (_QUICK_WIDTH if quick else WIDTH) if width is None else width)
    chosen(case, [*cases(_unknown(training)), OUTSIDE])
    if keep is not None:
        free(keep)
    isolated = not why_not_isolated()
    with tempfile.TemporaryDirectory(prefix="uneven-worlds-") as folder:
        place = Path(folder)
        progress("emulated", "calibration", 0.0)
        workload = measured(*calibration(_unknown(training)), place, training, SETTLED)
        wanted = {name: one for name, one in cases(workload).items() if case in (None, name)}
        played = {name: one for name, one in wanted.items() if isolated or not one.needs_root}
        compared, races = compare(played, place, training, effort, progress)
        if keep is not None:
            write(place, keep)
    progress("simulated", f"{_MANY:,} workers", 0.0)
    iterations = _QUICK_ITERATIONS_OF_MANY if quick else _ITERATIONS_OF_MANY
    large = many(_MANY, iterations)
    progress("simulated", f"{_MANY:,} workers", 1.0)
    return {
        **summarize(compared, races),
        "left_out": [name for name in wanted if name not in played],
        "repeats": effort.repeats,
        "width": training.width,
        "workload": {
            "overhead_core_s": workload.overhead_core_s,
            "per_sample_core_s": workload.per_sample_core_s,
            "exchange_core_s": workload.exchange_core_s,
        },
        "workers_10000_iterations": iterations,
        "workers_10000_s": large["took_s"],
        "workers_10000_peak_bytes": large["peak_bytes"],
        "events_per_s": large["events_per_s"],
    }


def _unknown(training: WorldTraining) -> Workload:
    """Return the network's traffic, with costs yet to be measured."""
    model = network(images(training.data), training.width)
    gradient_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
    return Workload(global_batch=GLOBAL_BATCH, gradient_bytes=gradient_bytes)


def measured(spec: ClusterSpec, split: str, place: Path, training: WorldTraining, iterations: int) -> Workload:
    """Return the description's workload with the network's costs, from one emulated run with a fixed split."""
    return shape_of(_emulate(spec, split, place / "calibration", training, iterations), spec.workload)


def compare(
    played: Mapping[str, WorldCase], place: Path, training: WorldTraining, effort: Effort, progress: Progress
) -> tuple[Compared, dict[str, list[Race]]]:
    """Return case → balancer → the results of both worlds, and case → the races between the balancers. ``place``:
    folder for the runs. Raises LaunchError: an emulated run failed."""
    pairs: dict[str, dict[str, list[Pair]]] = {name: {balance: [] for balance in BALANCERS} for name in played}
    races: dict[str, list[Race]] = {name: [] for name in played}

    def play(names: Sequence[str], repeats: range) -> None:
        jobs = [(repeat, name) for repeat in repeats for name in names]
        for number, (repeat, name) in enumerate(jobs):
            spec, runs = played[name].spec, []
            for place_in_job, balance in enumerate(BALANCERS):
                progress("emulated", f"{name}, {balance}", (number + place_in_job / len(BALANCERS)) / len(jobs))
                where = place / f"{spec.name}-{balance}-{repeat}"
                runs.append(_emulate(spec, balance, where, training, effort.iterations))
                pairs[name][balance].append(_pair(spec, balance, runs[-1], effort))
            races[name].append(_race(spec, runs[0], pairs[name], effort))

    play(list(played), range(effort.repeats))
    again = [name for name in played if close(races[name])]
    play(again, range(effort.repeats, effort.repeats + effort.close_repeats))
    return {name: {balance: summary(of) for balance, of in each.items()} for name, each in pairs.items()}, races


def _pair(spec: ClusterSpec, balance: str, emulated: list[Record], effort: Effort) -> Pair:
    return Pair(_simulated_s(spec, balance, emulated, effort), iteration_s(emulated, effort.settled))


def _race(spec: ClusterSpec, first: list[Record], pairs: Mapping[str, list[Pair]], effort: Effort) -> Race:
    """Return a race of the newest pairs; simulated balancers get the processors of the first one's emulated run."""
    one, other = (pairs[balance][-1] for balance in BALANCERS)
    there_s = _simulated_s(spec, BALANCERS[1], first, effort)
    return Race(one.simulated_s / there_s, one.emulated_s / other.emulated_s)


def _simulated_s(spec: ClusterSpec, balance: str, emulated: list[Record], effort: Effort) -> float:
    """Return the iteration time of the same run in virtual time, on processors as fast as the emulated ones: the median
    of several seeds, which decide where in its period each node begins."""
    scenario = Scenario(
        spec=as_in(spec, emulated, effort.settled),
        balancer=balancers.resolve(balance),
        policy=BSP(),
        iterations=effort.iterations,
        exchange_s=own_sides(spec, emulated, effort.settled),
    )
    found: list[float] = []
    for seed in range(_SEEDS):
        records: list[Record] = []
        simulate(replace(scenario, seed=seed, balancer=balancers.resolve(balance)), records.append)
        found.append(iteration_s(records, effort.settled))
    return statistics.median(found)


def _emulate(spec: ClusterSpec, balance: str, where: Path, training: WorldTraining, iterations: int) -> list[Record]:
    """Emulate one run, as a user would start it, and return its records."""
    told = training.data, iterations, GLOBAL_BATCH, training.width
    return list(journal.read(emulate(spec, balance, where, *told)).records())


def many(workers: int, iterations: int) -> dict[str, float]:
    """Simulate a large cluster in a separate process, to measure its memory; return ``took_s``, ``peak_bytes`` and
    ``events_per_s``. Raises LaunchError: it failed."""
    words = ("uneven_bench.worlds.many", workers, iterations)
    found: dict[str, float] = json.loads(program(*words, timeout_s=_LIMIT_S))
    return found
