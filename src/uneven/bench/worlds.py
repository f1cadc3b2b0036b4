"""``uneven bench worlds``: does the simulator say what happens on the emulated cluster?

Every description is run for real by ``uneven emulate`` and played by ``uneven simulate``, with even shares and with
the default balancer. The simulator is told the cost of the network that is trained in core-seconds, as the emulated run
used them (:mod:`uneven.bench.worlds_costs`); everything else it knows from the description. Then 10,000 workers are
simulated, for how fast that is.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from uneven import journal
from uneven.balance import balancers
from uneven.bench.workload import images, network
from uneven.bench.worlds_cases import CHANGE_AT, GLOBAL_BATCH, Case, calibration, cases
from uneven.bench.worlds_costs import as_in, shape_of
from uneven.bench.worlds_worker import WIDTH
from uneven.cluster.spec import ClusterSpec, Workload
from uneven.cluster.write import to_toml
from uneven.core.records import Record, StepRecord
from uneven.emulate.probe import why_not_isolated
from uneven.errors import LaunchError
from uneven.simulate import Scenario, simulate
from uneven.sync import BSP

BALANCERS = ("even", "lb-bsp")
SETTLED = CHANGE_AT + 45
"""Iteration from which on an iteration counts: the split has been found, after a change as well."""

TIE = 0.03
"""Two strategies whose times differ by less are called equally fast."""

_MANY = 10_000
_ITERATIONS_OF_MANY = 100
_LIMIT_S = 240.0
_CLEANS_WITHIN_S = 30.0

Progress = Callable[[str, str, float], None]


def run(quick: bool, data: str, progress: Progress) -> dict[str, Any]:
    """Both worlds, then the large simulation.

    Returns:
        What ``--json`` prints; ``docs/how-to/simulate.md`` explains every key.

    Raises:
        LaunchError: an emulated run failed.
    """
    iterations, repeats = (SETTLED + 16, 1) if quick else (SETTLED + 30, 3)
    isolated = not why_not_isolated()
    with tempfile.TemporaryDirectory(prefix="uneven-worlds-") as folder:
        place = Path(folder)
        workload = _calibrate(place, data, progress)
        played = {name: case for name, case in cases(workload).items() if isolated or not case.needs_root}
        found = _both_worlds(played, place, data, iterations, repeats, progress)
    compared = {name: {balance: _summary(pairs) for balance, pairs in found[name].items()} for name in played}
    return {
        **summarize(compared),
        "left_out": [name for name in cases(workload) if name not in played],
        "repeats": repeats,
        "workload": {
            "overhead_core_s": workload.overhead_core_s,
            "per_sample_core_s": workload.per_sample_core_s,
            "exchange_core_s": workload.exchange_core_s,
        },
        **_many(workload, progress),
    }


def _calibrate(place: Path, data: str, progress: Progress) -> Workload:
    progress("emulated", "calibration", 0.0)
    gradient_bytes = sum(4 * parameter.numel() for parameter in network(images(data), WIDTH).parameters())
    unknown = Workload(global_batch=GLOBAL_BATCH, gradient_bytes=gradient_bytes)
    spec, split = calibration(unknown)
    records = _emulate(spec, split, place / "calibration", data, SETTLED)
    return shape_of(records, spec.workload)


class Pair(NamedTuple):
    """Median iteration time of one description in both worlds."""

    simulated_s: float
    emulated_s: float


def _both_worlds(
    played: dict[str, Case], place: Path, data: str, iterations: int, repeats: int, progress: Progress
) -> dict[str, dict[str, list[Pair]]]:
    """Case → balancer → one pair for each repeat; the balancers take turns."""
    found: dict[str, dict[str, list[Pair]]] = {name: {balance: [] for balance in BALANCERS} for name in played}
    jobs = [(repeat, name, balance) for repeat in range(repeats) for name in played for balance in BALANCERS]
    for number, (repeat, name, balance) in enumerate(jobs):
        progress("emulated", f"{name}, {balance}", (number + 1) / (len(jobs) + 1))
        where = place / f"{played[name].spec.name}-{balance}-{repeat}"
        records = _emulate(played[name].spec, balance, where, data, iterations)
        simulated = _simulate(played[name].spec, balance, records, iterations)
        found[name][balance].append(Pair(iteration_s(simulated), iteration_s(records)))
    return found


def _simulate(spec: ClusterSpec, balance: str, emulated: list[Record], iterations: int) -> list[Record]:
    """The same run in virtual time, on processors as fast as they were in the emulated one."""
    records: list[Record] = []
    spec = as_in(spec, emulated, SETTLED)
    scenario = Scenario(spec=spec, balancer=balancers.resolve(balance), policy=BSP(), iterations=iterations)
    simulate(scenario, records.append)
    return records


def _emulate(spec: ClusterSpec, balance: str, where: Path, data: str, iterations: int) -> list[Record]:
    """One run, as a user would start it; its records."""
    where.mkdir()
    (where / "cluster.toml").write_text(to_toml(spec))
    command = [
        *(sys.executable, "-m", "uneven", "emulate", "--balance", balance, "--run-dir", str(where / "run"), "--module"),
        *(str(where / "cluster.toml"), "--", "uneven.bench.worlds_worker", str(iterations), str(GLOBAL_BATCH), data),
    ]
    with (where / "output.txt").open("w+") as output:
        emulator = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            code = emulator.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise LaunchError(f"emulating {spec.name} with {balance} took more than {_LIMIT_S:g} s") from None
        finally:
            _end(emulator)
        if code:
            said = (where / "output.txt").read_text()[-3000:]
            raise LaunchError(f"emulating {spec.name} with {balance} failed:\n{said}", code)
    return list(journal.read(where / "run").records())


def _end(emulator: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and leave it the time to clean up; killed, it would leave that to the next one."""
    if emulator.poll() is None:
        emulator.terminate()
        try:
            emulator.wait(_CLEANS_WITHIN_S)
        except subprocess.TimeoutExpired:
            emulator.kill()
            emulator.wait()


def iteration_s(records: list[Record]) -> float:
    """Median time of an iteration that counts, by the end of rank 0's steps."""
    ends_s = {step.iteration: step.ended_at_s for step in records if isinstance(step, StepRecord) and step.rank == 0}
    counted = [ends_s[iteration] for iteration in sorted(ends_s) if iteration >= SETTLED - 1]
    return statistics.median(later - earlier for earlier, later in pairwise(counted))


def _summary(pairs: list[Pair]) -> dict[str, Any]:
    """Medians over the repeats; the error is that of the middle pair, since both of a pair ran at the same speed."""
    emulated_s = [pair.emulated_s for pair in pairs]
    return {
        "simulated_s": statistics.median(pair.simulated_s for pair in pairs),
        "emulated_s": statistics.median(emulated_s),
        "emulated_range_s": [min(emulated_s), max(emulated_s)],
        "error": abs(statistics.median(pair.simulated_s / pair.emulated_s for pair in pairs) - 1.0),
    }


def summarize(compared: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """How well the worlds agree, over all cases and both balancers."""
    errors = [one["error"] for case in compared.values() for one in case.values()]
    agree = [agreed(case) for case in compared.values()]
    return {
        "cases": compared,
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "rank_agreement": sum(agree) / len(agree),
    }


def agreed(case: dict[str, dict[str, Any]]) -> bool:
    """Whether both worlds call the same balancer faster, or say almost the same of how much."""
    simulated, emulated = (_ratio(case, world) for world in ("simulated_s", "emulated_s"))
    same = verdict(case, "simulated_s") == verdict(case, "emulated_s")
    return same or abs(simulated - emulated) < TIE / 2


def _ratio(case: dict[str, dict[str, Any]], world: str) -> float:
    first, second = BALANCERS
    return float(case[first][world] / case[second][world])


def verdict(case: dict[str, dict[str, Any]], world: str) -> str:
    """Which balancer is faster there; "neither" within the tie."""
    first, second = BALANCERS
    ratio = _ratio(case, world)
    if abs(ratio - 1.0) < TIE:
        return "neither"
    return second if ratio > 1.0 else first


def _many(workload: Workload, progress: Progress) -> dict[str, float]:
    """Speed and memory of a simulation of 10,000 workers, in a process of its own so that its memory can be told."""
    progress("simulated", f"{_MANY:,} workers", 0.0)
    command = [sys.executable, "-m", "uneven.bench.worlds_many", str(_MANY), str(_ITERATIONS_OF_MANY)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode:
        raise LaunchError(f"simulating {_MANY} workers failed:\n{done.stderr[-3000:]}", done.returncode)
    progress("simulated", f"{_MANY:,} workers", 1.0)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def tables(result: dict[str, Any]) -> list[Table]:
    """The result for people."""
    table = Table(title="Simulated and emulated: median ms per iteration", box=SIMPLE_HEAD)
    for heading in ("", "balancer", "simulated", "emulated", "error", "faster: simulated", "emulated"):
        table.add_column(heading, justify="right" if heading in ("simulated", "emulated", "error") else "left")
    for name, case in result["cases"].items():
        verdicts = [verdict(case, world) for world in ("simulated_s", "emulated_s")]
        for balance, one in case.items():
            low, high = one["emulated_range_s"]
            around = f" \\[{low * 1e3:.1f} … {high * 1e3:.1f}]" if high > low else ""
            table.add_row(
                name if balance == BALANCERS[0] else "",
                balance,
                f"{one['simulated_s'] * 1e3:.1f}",
                f"{one['emulated_s'] * 1e3:.1f}{around}",
                f"{one['error']:.1%}",
                *(verdicts if balance == BALANCERS[0] else ("", "")),
            )
    summary = Table(title="How well they agree", box=SIMPLE_HEAD)
    summary.add_column("")
    summary.add_column("measured", justify="right")
    summary.add_row("error, median", f"{result['median_error']:.1%}")
    summary.add_row("error, worst", f"{result['worst_error']:.1%}")
    summary.add_row("cases in which both say which is faster", f"{result['rank_agreement']:.0%}")
    if result["left_out"]:
        summary.add_row("left out, for they need root", ", ".join(result["left_out"]))
    summary.add_row(
        f"{_ITERATIONS_OF_MANY} iterations of {_MANY:,} workers",
        f"{result['workers_10000_s']:.1f} s, {result['workers_10000_peak_bytes'] / 1e9:.2f} GB",
    )
    summary.add_row("events per second there", f"{result['events_per_s']:,.0f}")
    return [table, summary]
