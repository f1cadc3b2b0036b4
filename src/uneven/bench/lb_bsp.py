"""``uneven bench lb-bsp``: does balancing make unequal workers as fast as they can be, and cost equal ones nothing?

Two runs. In the first, four workers have 0.6, 0.4, 0.2 and 0.1 of a core; DDP, the balancers and the oracle
take turns, block by block, in the same processes. The oracle knows every worker's cost, measured at the start
of the same run, and splits by the exact integer min-max; it runs on plain DDP. In the second run the workers
are equal and unthrottled, and ``uneven`` takes turns with DDP.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from uneven import journal, launch
from uneven.bench.lb_bsp_worker import PROGRESS, RESULTS, Task
from uneven.core.records import StepRecord
from uneven.errors import LaunchError
from uneven.launch import Launch

SHARES = (0.6, 0.4, 0.2, 0.1)
PERIOD_S = 0.01
"""Run-and-stop cycle of the throttle. An exchange meets several stopped workers in turn, so a long cycle would
make this machine's communication look slower than that of machines that are merely slow."""

UNEVEN = "lb-bsp"
"""The arm that is meant by "ours"."""

ARMS = {
    "ddp": "ddp",
    "even": "even",
    "static": "static:profile=4",
    "last": "lb-bsp:predictor=last",
    "ema": "lb-bsp:predictor=ema",
    UNEVEN: "lb-bsp",
    "oracle": "oracle",
}


Progress = Callable[[str, str, float], None]
"""Told the phase, what it is doing, and how much of it is done, 0 … 1."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and the middle half of a list of ratios or seconds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Of at least one value."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(statistics.median(values), low, high)


def unequal_task(quick: bool, data: str) -> Task:
    """DDP, balancers and oracle on four unequal workers."""
    return Task(
        data=data, global_batch=256, width=64, arms=ARMS, block=4 if quick else 5, settling=5 if quick else 8,
        rare_every=3 if quick else 1, rounds=40, seconds=22.0 if quick else 240.0, profile_s=3.0 if quick else 8.0,
    )  # fmt: skip


def equal_task(quick: bool, data: str) -> Task:
    """DDP and ours on four equal workers."""
    return Task(
        data=data, global_batch=256, width=64, arms={"ddp": "ddp", UNEVEN: "lb-bsp"}, block=8, settling=2,
        rounds=80, seconds=8.0 if quick else 120.0, profile_s=0.0,
    )  # fmt: skip


def run(quick: bool, data: str, progress: Progress) -> dict[str, Any]:
    """Both runs.

    Returns:
        What ``--json`` prints; ``docs/ideas/lb-bsp.md`` explains every key.

    Raises:
        LaunchError: a worker died.
    """
    with tempfile.TemporaryDirectory(prefix="uneven-bench-") as folder:
        unequal = _run(Path(folder) / "unequal", unequal_task(quick, data), SHARES, progress)
        equal = _run(Path(folder) / "equal", equal_task(quick, data), (), progress)
    return {**summarize(unequal), **summarize_equal(equal)}


def _run(
    directory: Path, task: Task, shares: tuple[float, ...], progress: Progress
) -> dict[str, Any]:
    directory.mkdir(parents=True)
    task.write(directory / "task.json")
    what = Launch(
        target=("uneven.bench.lb_bsp_worker", str(directory)), module=True, nproc=str(len(SHARES)), shares=shares,
        wait_ready=True, throttle_period_s=PERIOD_S,
    )  # fmt: skip
    log = directory / "output.txt"
    with launch.start(what, run_directory=directory, output=log) as workers:
        while (code := workers.poll()) is None:
            _report(directory, task, progress)
            time.sleep(0.2)
    if code:
        raise LaunchError(f"a worker of the {directory.name} run died:\n{log.read_text()[-3000:]}", code)
    result: dict[str, Any] = json.loads((directory / RESULTS).read_text())
    result["control"] = _control(directory / UNEVEN, task.settling * task.block)
    result["task"] = task
    return result


def _report(directory: Path, task: Task, progress: Progress) -> None:
    path = directory / PROGRESS
    text = path.read_text() if path.exists() else ""
    if not text:
        progress(f"{directory.name} workers", "starting", 0.0)
        return
    rounds, share = text.split()
    state = "settling" if int(rounds) < 0 else f"round {rounds}"
    progress(f"{directory.name} workers", state, min(float(share), 1.0))


def _control(run_directory: Path, first: int) -> list[float]:
    """Share of the iteration time that measuring and deciding took, on each worker, from iteration ``first`` on."""
    shares = []
    for records in journal.read(run_directory).ranks.values():
        steps = [record for record in records if isinstance(record, StepRecord) and record.iteration >= first]
        total_s = sum(step.data_s + step.compute_s + step.exchange_s for step in steps)
        shares.append(sum(step.control_s for step in steps) / total_s)
    return shares


def _weighted(result: dict[str, Any]) -> float:
    """Share of its throughput that the group loses to measuring and deciding: each worker's, by its samples."""
    batches = result["shares"][UNEVEN]
    return sum(x * share for x, share in zip(batches, result["control"], strict=True)) / sum(batches)


def summarize(result: dict[str, Any]) -> dict[str, Any]:
    """The keys that come from the unequal run."""
    wall = _walls(result)
    ratio = {name: _ratios(wall["ddp"], seconds) for name, seconds in wall.items()}
    of_limit = {name: _ratios(wall["oracle"], seconds) for name, seconds in wall.items()}
    floor_s = max(
        cost["overhead_s"] + cost["per_sample_s"] * share
        for cost, share in zip(result["costs"], result["oracle"], strict=True)
    )
    return {
        "workers": len(SHARES),
        "shares": list(SHARES),
        "global_batch": result["task"].global_batch,
        "rounds": {name: len(seconds) for name, seconds in wall.items()},
        "iteration_s": {name: statistics.median(seconds.values()) for name, seconds in wall.items()},
        "iteration_spread_s": {name: _pair(Spread.of([*seconds.values()])) for name, seconds in wall.items()},
        "speedup_vs_ddp": statistics.median(ratio[UNEVEN]),
        "speedups_vs_ddp": {name: statistics.median(values) for name, values in ratio.items()},
        "speedup_spread": _pair(Spread.of(ratio[UNEVEN])),
        "fraction_of_limit": statistics.median(of_limit[UNEVEN]),
        "fraction_of_limit_spread": _pair(Spread.of(of_limit[UNEVEN])),
        "fractions_of_limit": {name: statistics.median(values) for name, values in of_limit.items()},
        "compute_floor_s": floor_s,
        "wait_share": {name: _wait_share(blocks) for name, blocks in result["blocks"].items()},
        "control_share": _weighted(result),
        "control_share_by_worker": result["control"],
        "batches": {**result["shares"], "oracle": result["oracle"]},
        "same_accuracy": result["accuracy"],
    }


def summarize_equal(result: dict[str, Any]) -> dict[str, Any]:
    """The keys that come from the equal run."""
    wall = _walls(result)
    ratios = _ratios(wall[UNEVEN], wall["ddp"])
    return {
        "equal_workers_ratio": statistics.median(ratios),
        "equal_workers_spread": _pair(Spread.of(ratios)),
        "equal_workers_iteration_s": {name: statistics.median(seconds.values()) for name, seconds in wall.items()},
        "equal_workers_control_share": _weighted(result),
        "equal_workers_control_share_by_worker": result["control"],
        "equal_workers_batches": result["shares"][UNEVEN],
    }


def _walls(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Arm → round → seconds per iteration; rank 0's clock, started and stopped at a barrier."""
    walls = {}
    for name, ranks in result["blocks"].items():
        walls[name] = {number: block["wall_s"] for number, block in ranks[0].items()}
    return walls


def _ratios(above: dict[str, float], below: dict[str, float]) -> list[float]:
    """Of the rounds in which both took part: what changes on the machine changes for both."""
    return [above[number] / below[number] for number in above if number in below]


def _wait_share(ranks: list[dict[str, dict[str, Any]]]) -> float:
    """Time spent waiting ÷ time, of all workers: who arrives last waits for nobody."""
    waited_s = total_s = 0.0
    for number in ranks[0]:
        same_block = [blocks[number] for blocks in ranks]
        for same_iteration in zip(*(block["exposed_s"] for block in same_block), strict=True):
            waited_s += sum(exposed - min(same_iteration) for exposed in same_iteration)
        total_s += sum(block["wall_s"] * len(block["exposed_s"]) for block in same_block)
    return waited_s / total_s


def _pair(spread: Spread) -> list[float]:
    return [spread.low, spread.high]


def tables(result: dict[str, Any]) -> list[Table]:
    """The result for people."""
    unequal = Table(
        title=f"{result['workers']} workers with {', '.join(map(str, result['shares']))} of a core, "
        f"global batch {result['global_batch']}",
        box=SIMPLE_HEAD,
    )
    for heading in ("", "rounds", "ms per iteration", "speed-up", "of limit", "waiting", "accuracy"):
        unequal.add_column(heading, justify="right" if heading else "left")
    for name, seconds in result["iteration_s"].items():
        low, high = result["iteration_spread_s"][name]
        unequal.add_row(
            f"[bold]{name}[/bold]" if name == UNEVEN else name,
            str(result["rounds"][name]),
            f"{seconds * 1e3:.1f} [{low * 1e3:.1f} … {high * 1e3:.1f}]".replace("[", r"\["),
            f"{result['speedups_vs_ddp'][name]:.2f}",
            f"{result['fractions_of_limit'][name]:.3f}",
            f"{result['wait_share'][name]:.1%}",
            f"{result['same_accuracy'][name]:.3f}",
        )
    low, high = result["equal_workers_spread"]
    costs = Table(title="What it costs", box=SIMPLE_HEAD)
    costs.add_column("")
    costs.add_column("measured", justify="right")
    costs.add_row("equal workers, ours ÷ DDP", f"{result['equal_workers_ratio']:.3f} \\[{low:.3f} … {high:.3f}]")
    for kind, key in (("unequal", "control_share"), ("equal", "equal_workers_control_share")):
        costs.add_row(f"measuring and deciding, {kind} workers", f"{result[key]:.2%} of an iteration")
    return [unequal, costs]
