"""How many examples a second, and what they cost: every case in each round, one after the other, servers included."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.box import SIMPLE_HEAD
from rich.table import Table

from uneven import launch
from uneven.embedding.host import PROGRAM, TABLES
from uneven.errors import LaunchError
from uneven.server.process import ShardKeeper
from uneven_bench.recommendation import worker

ROUNDS, QUICK_ROUNDS = 5, 1
_WINDOW_S, _QUICK_WINDOW_S = 6.0, 3.0
_UNEQUAL = (0.8, 0.4, 0.2, 0.2)
Progress = Callable[[str, str, float], None]


@dataclass(frozen=True, slots=True)
class TrainerCase:
    """What is run.

    Attributes:
        way: of the worker.
        shares: of a core, of each trainer; empty lets them use what they get.
    """

    way: str
    trainers: int
    batch: int = 128
    shares: tuple[float, ...] = ()


SCALING = {trainers: f"{trainers} at 0.2 core" for trainers in (1, 2, 4, 8)}
CASES = {
    **{name: TrainerCase("served", trainers, shares=(0.2,) * trainers) for trainers, name in SCALING.items()},
    "unequal": TrainerCase("served", 4, shares=_UNEQUAL),
    "two trainers": TrainerCase("served", 2),
    "one trainer": TrainerCase("served", 1),
    "one process, flat": TrainerCase("flat", 1),
    "one process, modules": TrainerCase("modules", 1),
    "DDP, sparse": TrainerCase("ddp", 2),
    **{f"two trainers, batch {batch}": TrainerCase("served", 2, batch) for batch in (512, 2048)},
}
QUICK = ("1 at 0.2 core", "4 at 0.2 core", "unequal", "two trainers", "one trainer", "one process, flat", "DDP, sparse")


@dataclass(frozen=True, slots=True)
class MeasuredTrainers:
    """One case in one round.

    Attributes:
        per_s: examples a second of each trainer.
        trainer_us: processor time of the trainers a sample.
        server_us: of the table server.
    """

    per_s: tuple[float, ...]
    trainer_us: float
    server_us: float


def run(quick: bool, told: Progress) -> dict[str, Any]:
    """Measure.

    Returns:
        See :func:`judged`.
    """
    names = QUICK if quick else tuple(CASES)
    rounds, window_s = (QUICK_ROUNDS, _QUICK_WINDOW_S) if quick else (ROUNDS, _WINDOW_S)
    found: dict[str, list[MeasuredTrainers]] = {name: [] for name in names}
    for number in range(rounds):
        for place, name in enumerate(names):
            done = (number * len(names) + place) / rounds / len(names)
            told("measuring", f"{name}, round {number + 1} of {rounds}", done)
            found[name].append(measure(CASES[name], window_s))
    told("measuring", "done", 1.0)
    return judged(found) | {"rounds": rounds, "window_s": window_s, "quick": quick}


def measure(case: TrainerCase, window_s: float) -> MeasuredTrainers:
    """Run one case.

    Raises:
        LaunchError: it did not end well.
    """
    with tempfile.TemporaryDirectory(prefix="uneven-recommendation-") as made, ExitStack() as stack:
        folder = Path(made)
        served = case.way == "served"
        server = ShardKeeper(folder / TABLES, 1, case.trainers, program=PROGRAM) if served else None
        stack.callback(server.close if server else lambda: None)
        script = [worker.__file__, case.way, str(folder), "--batch", str(case.batch), "--window-s", str(window_s)]
        # Each trainer has one thread; the table server is in nobody's share.
        start = launch.Launch(
            target=tuple(script), nproc=str(case.trainers), shares=case.shares, wait_ready=served and bool(case.shares)
        )
        environment = {"OMP_NUM_THREADS": "1"}
        running = stack.enter_context(
            launch.start(start, run_directory=folder if served else None, env=environment, output=folder / "printed")
        )
        before = _cpu_s(server, after=lambda: _warm(folder, case, running))
        if running.wait(240):
            raise LaunchError(f"{case} failed:\n{(folder / 'printed').read_text(errors='replace')[-2000:]}")
        after = _cpu_s(server)
        marks = [json.loads((folder / f"marks-{rank}.json").read_text()) for rank in range(case.trainers)]
    return _measured(marks, case.batch, after - before)


def _warm(folder: Path, case: TrainerCase, running: launch.LocalRun) -> None:
    """Until all trainers are, or have ended: the tables are made then."""
    while len(list(folder.glob("warm-*"))) < case.trainers:
        try:
            running.wait(0.05)
            return
        except LaunchError:
            continue


def _cpu_s(server: ShardKeeper | None, after: Callable[[], None] = lambda: None) -> float:
    if server is None:
        return 0.0
    after()
    times = [psutil.Process(pid).cpu_times() for pid in server.pids()]
    return sum(one.user + one.system for one in times)


def _measured(marks: list[dict[str, Any]], batch: int, server_s: float) -> MeasuredTrainers:
    """In the time in which all trained and all were warm."""
    begin_s, end_s = max(one["began_s"] for one in marks), min(one["marks"][-1][0] for one in marks)
    per_s, cpu_s, samples = [], 0.0, 0
    for one in marks:
        inside = [mark for mark in one["marks"] if begin_s <= mark[0] <= end_s]
        many = batch * (len(inside) - 1)
        per_s.append(many / (inside[-1][0] - inside[0][0]))
        cpu_s += inside[-1][1] - inside[0][1]
        samples += many
    warm = batch * sum(mark[0] >= begin_s for one in marks for mark in one["marks"])
    return MeasuredTrainers(tuple(per_s), 1e6 * cpu_s / samples, 1e6 * server_s / warm)


def judged(found: dict[str, list[MeasuredTrainers]]) -> dict[str, Any]:
    """Medians over the rounds.

    Returns:
        ``examples_per_s`` (case → median), ``scaling`` (trainers → EPS(n) ÷ n EPS(1)), ``share_evenness`` (EPS ÷ share,
        least ÷ greatest), ``vs_one_process`` (two trainers and a server on two cores ÷ the fastest single process on
        one), ``vs_ddp_sparse``, ``trainer_cpu_ratio`` (a trainer's processor time a sample ÷ that with the tables in
        its process), ``server_us_per_sample``.
    """

    def of(name: str, value: Callable[[MeasuredTrainers], float]) -> list[float]:
        return [value(one) for one in found[name]]

    def total(name: str) -> list[float]:
        return of(name, lambda one: sum(one.per_s))

    def ratio(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(total(one), total(other), strict=True))

    shares = [[rate / share for rate, share in zip(one.per_s, _UNEQUAL, strict=True)] for one in found["unequal"]]
    remote, local = (of(name, lambda one: one.trainer_us) for name in ("one trainer", "one process, flat"))
    return {
        "examples_per_s": {name: statistics.median(total(name)) for name in found},
        "scaling": {
            str(trainers): ratio(name, SCALING[1]) / trainers for trainers, name in SCALING.items() if name in found
        },
        "share_evenness": statistics.median(min(one) / max(one) for one in shares),
        "vs_one_process": ratio("two trainers", "one process, flat"),
        "vs_ddp_sparse": ratio("two trainers", "DDP, sparse"),
        "trainer_cpu_ratio": statistics.median(a / b for a, b in zip(remote, local, strict=True)),
        "server_us_per_sample": statistics.median(of("two trainers", lambda one: one.server_us)),
    }


def tables(result: dict[str, Any]) -> list[Table]:
    """The result for people."""
    rates = Table(title=f"{result['rounds']} rounds of {result['window_s']:g} s", box=SIMPLE_HEAD)
    for heading in ("", "examples/s"):
        rates.add_column(heading, justify="right" if rates.columns else "left")
    for name, rate in result["examples_per_s"].items():
        rates.add_row(name, f"{rate:,.0f}")
    ratios = Table(title="what follows", box=SIMPLE_HEAD)
    for heading in ("", "measured", "bar"):
        ratios.add_column(heading, justify="right" if ratios.columns else "left")
    for trainers, scale in result["scaling"].items():
        ratios.add_row(f"EPS({trainers}) ÷ {trainers} EPS(1)", f"{scale:.2f}", "≥ 0.94" if trainers == "8" else "")
    for key, words, bar in (
        ("share_evenness", "examples/s ÷ share, least ÷ greatest", "≥ 0.8"),
        ("vs_one_process", "two trainers and a server ÷ the best process on one core", "≥ 1.5"),
        ("vs_ddp_sparse", "the same ÷ DDP with sparse gradients", "≥ 8"),
        ("trainer_cpu_ratio", "a trainer's processor time ÷ with tables in its process", "≤ 1.15"),
        ("server_us_per_sample", "µs of the server a sample", "≤ 10"),
    ):
        ratios.add_row(words, f"{result[key]:.2f}", bar)
    return [rates, ratios]
