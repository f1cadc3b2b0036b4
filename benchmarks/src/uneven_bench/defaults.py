"""``uneven bench defaults``: which balancer, with which predictor, is the best default in real runs?

Every candidate trains the same network on the same emulated clusters, a run of its own each, taking turns; what happens
to the nodes is the same for all. Compared is how many iterations they finish in the same time.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from uneven import journal
from uneven.cluster.emulate.capabilities import why_not_isolated
from uneven.cluster.pure.describe.spec import ClusterSpec, Do, Event, Node, Trace, steady
from uneven.errors import ConfigError
from uneven.policy.core.records import Record, StepRecord
from uneven_bench.overhead import share_of
from uneven_bench.predictors.traces import use_traces
from uneven_bench.recorded import cases as recorded_cases
from uneven_bench.recorded.runs import emulate

PRESENT = "lb-bsp"
"""The default, to which the others are compared."""

ARMS = (
    PRESENT,
    "lb-bsp:predictor=ema",
    "lb-bsp:predictor=narx",
    "lb-bsp:predictor=auto",
    "model",
    "model:predictor=auto",
)
GLOBAL_BATCH = 128

_ITERATIONS = 160
_WARM_S = 2.0  # first seconds, which do not count: the first split is found in them
_STEP_S = 6.0
_UNEQUAL = (0.6, 0.4, 0.2, 0.1)
_MBIT = 1e6

Progress = Callable[[str, str, float], None]


class TrainingRun(NamedTuple):
    """One training.

    Attributes:
        ends_s: when each iteration ended on the last rank, in seconds from the start of the training.
        control: share of the time spent on measuring and deciding, workers weighed by their samples.
    """

    ends_s: tuple[float, ...]
    control: float


def clusters() -> dict[str, ClusterSpec]:
    """Case → what is emulated."""
    trace, use = next(iter(use_traces().items()))
    narrow = Trace(values=(40 * _MBIT,))
    limited = [
        replace(node, up_bit_per_s=narrow, down_bit_per_s=narrow) if place == 1 else node
        for place, node in enumerate(_nodes(0.5, 0.35, 0.2, 0.15))
    ]
    step = Event(do=Do.SLOW, node="node0", at_s=_STEP_S, factor=0.4)
    return {
        "steady shares": ClusterSpec(name="steady", nodes=_nodes(*_UNEQUAL)),
        "a step": ClusterSpec(name="step", nodes=_nodes(0.5, 0.35, 0.3, 0.25), events=(step,)),
        f"{trace}, replayed": recorded_cases.replayed(trace, use),
        "a narrow link": ClusterSpec(name="narrow", nodes=tuple(limited)),
        "equal nodes": ClusterSpec(name="equal", nodes=_nodes(0.35, 0.35, 0.35, 0.35)),
    }


def _nodes(*cores: float) -> tuple[Node, ...]:
    return tuple(Node(name=f"node{rank}", cores=share, load=steady(0.0)) for rank, share in enumerate(cores))


def run(quick: bool, data: str, progress: Progress) -> dict[str, Any]:
    """All candidates on all cases.

    Returns:
        What ``--json`` prints; ``docs/measurements/predictors.md`` explains every key.

    Raises:
        ConfigError: this machine cannot emulate them.
        LaunchError: a run failed.
    """
    why = why_not_isolated()
    if why:
        raise ConfigError(f"bench defaults emulates clusters with rivals and links, as root on Linux: {why}")
    repeats, iterations = (1, _ITERATIONS // 2) if quick else (3, _ITERATIONS)
    with tempfile.TemporaryDirectory(prefix="uneven-defaults-") as folder:
        played = play(clusters(), ARMS, Path(folder), data, repeats, iterations, progress)
    return {**summarize(played), "repeats": repeats, "iterations": iterations}


def play(
    specs: Mapping[str, ClusterSpec],
    arms: Iterable[str],
    place: Path,
    data: str,
    repeats: int,
    iterations: int,
    progress: Progress,
) -> dict[str, list[dict[str, TrainingRun]]]:
    """Case → repeat → arm → its run.

    Args:
        place: folder for the runs.

    Raises:
        LaunchError: a run failed.
    """
    arms = tuple(arms)
    jobs = [(repeat, name, arm) for repeat in range(repeats) for name in specs for arm in arms]
    found: dict[str, list[dict[str, TrainingRun]]] = {name: [{} for _ in range(repeats)] for name in specs}
    for number, (repeat, name, arm) in enumerate(jobs):
        progress("emulated", f"{name}, {arm}", number / len(jobs))
        where = place / f"{specs[name].name}-{repeat}-{arms.index(arm)}"
        run_directory = emulate(specs[name], arm, where, data, iterations, GLOBAL_BATCH)
        found[name][repeat][arm] = read(list(journal.read(run_directory).records()))
    progress("emulated", "", 1.0)
    return found


def read(records: list[Record]) -> TrainingRun:
    """What counts of a run."""
    ends_s: dict[int, float] = {}
    begins_s = 0.0
    for step in records:
        if isinstance(step, StepRecord):
            ends_s[step.iteration] = max(step.ended_at_s, ends_s.get(step.iteration, 0.0))
            if step.iteration == 0:
                begins_s = max(begins_s, step.ended_at_s - step.data_s - step.compute_s - step.exchange_s)
    share, _ = share_of(records)
    return TrainingRun(tuple(ends_s[iteration] - begins_s for iteration in sorted(ends_s)), share)


def iteration_s(ends_s: Iterable[float], since_s: float, until_s: float) -> float:
    """Mean time of an iteration between two moments; one that is under way counts by the part of it that is inside."""
    ends = np.concatenate([[0.0], np.fromiter(ends_s, float)])
    inside = np.interp([since_s, until_s], ends, np.arange(len(ends)))
    return float((until_s - since_s) / (inside[1] - inside[0]))


def summarize(played: Mapping[str, list[dict[str, TrainingRun]]]) -> dict[str, Any]:
    """Ratios within a repeat, over the time in which all arms ran, then the median over the repeats."""
    cases: dict[str, dict[str, Any]] = {}
    for name, repeats in played.items():
        arms = tuple(repeats[0])
        until_s = [min(one.ends_s[-1] for one in repeat.values()) for repeat in repeats]
        times_s = {
            arm: [
                iteration_s(repeat[arm].ends_s, _WARM_S, end)
                for repeat, end in zip(repeats, until_s, strict=True)
            ]
            for arm in arms
        }
        ratios = {
            arm: [first / own for first, own in zip(times_s[arms[0]], times_s[arm], strict=True)] for arm in arms
        }
        cases[name] = {
            "iteration_s": {arm: statistics.median(each) for arm, each in times_s.items()},
            "speedup": {arm: statistics.median(each) for arm, each in ratios.items()},
            "speedup_range": {arm: [min(each), max(each)] for arm, each in ratios.items()},
            "control_share": {
                arm: statistics.median(repeat[arm].control for repeat in repeats) for arm in arms
            },
            "compared_s": statistics.median(until_s) - _WARM_S,
        }
    return {"cases": cases, "compared_to": next(arm for repeats in played.values() for arm in repeats[0])}


def tables(result: dict[str, Any]) -> list[Table]:
    """The result for people."""
    arms = list(next(iter(result["cases"].values()))["speedup"])
    speed = Table(title=f"Iterations in the same time ÷ those of {result['compared_to']}", box=SIMPLE_HEAD)
    control = Table(title="Measuring and deciding, share of the time", box=SIMPLE_HEAD)
    for table in (speed, control):
        for heading in ("", *arms):
            table.add_column(heading, justify="right" if heading else "left")
    for name, case in result["cases"].items():
        cells = []
        for arm in arms:
            low, high = case["speedup_range"][arm]
            around = f" [{low:.2f} … {high:.2f}]" if high > low else ""
            cells.append(f"{case['speedup'][arm]:.3f}{around}")
        speed.add_row(f"{name} ({1e3 * case['iteration_s'][arms[0]]:.0f} ms)", *cells)
        control.add_row(name, *(f"{case['control_share'][arm]:.2%}" for arm in arms))
    return [speed, control]
