"""Runs recorded on emulated clusters, as cases of ``uneven bench predictors``: real processes disturb real training.

The journal holds the predictors' inputs for each iteration: speed, batch, and the readings of the processor's and the
memory's use right after it.
"""

import statistics
from pathlib import Path
from typing import NamedTuple

import numpy as np

from uneven import journal
from uneven.cluster.emulate.capabilities import why_not_isolated
from uneven.cluster.files import load as load_cluster
from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.errors import ConfigError, access
from uneven_bench.harness.show import Progress
from uneven_bench.harness.steps import took_s
from uneven_bench.predictors.cases import Floats, PredictorCase
from uneven_bench.predictors.traces import common_steps, recorded, use_traces
from uneven_bench.recorded import cases
from uneven_bench.recorded.runs import DESCRIPTION, RUN, emulate
from uneven_bench.recorded.steps import SpeedChange, find

BALANCER = "lb-bsp:predictor=narx"
"""The balancer of recorded runs: the default with a predictor that has the machine read on every step."""


class RecordedRun(NamedTuple):
    """A kept run."""

    case: PredictorCase  # the predictors' inputs
    steps: list[SpeedChange]  # scored changes of speed at known moments, if any
    iteration_s: float  # median
    lasted_s: float  # from the start of the training to its end


def clusters() -> dict[str, ClusterSpec]:
    """Return case → emulated cluster: rivals at known moments, a replayed trace of processor use, and short bursts."""
    name, use = next(iter(use_traces().items()))  # one of them: recording takes minutes
    replayed = cases.replayed(name, use)
    return {cases.ANNOUNCED: cases.announced(), f"{name}, emulated": replayed, cases.BURSTS: cases.bursts()}


def why_not() -> str:
    """Return the reason why runs cannot be recorded here; "" if they can."""
    return why_not_isolated()


def record(folder: Path, data: str, progress: Progress, iterations: int = cases.ITERATIONS) -> None:
    """Record all cases, a folder for each. Raises ConfigError: this machine cannot, or a folder exists already.
    LaunchError: a run failed."""
    if why_not():
        raise ConfigError(f"runs cannot be recorded here: {why_not()}")
    specs = clusters()
    with access(f"look into {folder}"):
        there = [spec.name for spec in specs.values() if (folder / spec.name).exists()]
    if there:
        raise ConfigError(f"{folder} has a run {there[0]!r} already: name a new folder, or score that with --runs")
    for number, (name, spec) in enumerate(specs.items()):
        progress("recording", name, number / len(specs))
        emulate(spec, BALANCER, folder / spec.name, data, iterations, cases.GLOBAL_BATCH)
    progress("recording", "", 1.0)


def load(folder: Path) -> dict[str, RecordedRun]:
    """Load the runs that :func:`record` has kept. Raises ConfigError: there are none. JournalError: one of them cannot
    be read, or is too short."""
    names = {spec.name: name for name, spec in clusters().items()}
    found = {}
    with access(f"look into {folder}"):
        places = sorted(folder.iterdir()) if folder.is_dir() else []
        described = [place for place in places if (place / DESCRIPTION).is_file()]
    for place in described:
        name = names.get(place.name, place.name)
        found[name] = _read(name, place)
    if not found:
        raise ConfigError(f"there are no recorded runs in {folder}: make some with --record {folder}")
    return found


def _read(name: str, place: Path) -> RecordedRun:
    case = recorded(place / RUN, name=name)
    begins_s, ends_s = _times(place / RUN)
    spec = load_cluster(place / DESCRIPTION)
    steps = find(case.speeds_per_s, ends_s - begins_s, [node.load for node in spec.nodes])
    scored = [one for one in steps if name == cases.ANNOUNCED and one.first >= case.scored_from]
    return RecordedRun(case, scored, statistics.median(np.diff(ends_s).tolist()), float(ends_s[-1] - begins_s))


def _times(run: Path) -> tuple[float, Floats]:
    """Return when the description began to hold, and when each iteration (iterations,) ended on the last rank; Unix
    times."""
    its = common_steps(run, journal.read(run).ranks).values()
    first = [steps[0] for steps in its]
    begins_s = max(one.ended_at_s - took_s(one) for one in first)  # the last one ready
    return begins_s, np.array([[one.ended_at_s for one in steps] for steps in its]).max(axis=0)
