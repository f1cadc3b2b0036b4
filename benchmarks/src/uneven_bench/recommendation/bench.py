"""Examples a second, and their cost: every case in each round, one after the other, servers included."""

import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from uneven.embedding.table_host import PROGRAM, TABLES
from uneven.errors import ConfigError, LaunchError
from uneven.runtime import launch
from uneven.runtime.jobs import Command
from uneven.runtime.messages.process import ShardKeeper
from uneven_bench.harness.figures import Spread, in_turns
from uneven_bench.harness.show import Progress, chosen
from uneven_bench.harness.tables import tables as harness_tables
from uneven_bench.recommendation import worker
from uneven_bench.recommendation.disk import out_of_memory_rows
from uneven_bench.recommendation.faults import checkpoint, killed
from uneven_bench.recommendation.narrow import narrow
from uneven_bench.recommendation.page import scaling_page
from uneven_bench.recommendation.quality import quality
from uneven_bench.recommendation.serving import serve
from uneven_bench.recommendation.tuning import GRID, QUICK_GRID

ROUNDS, QUICK_ROUNDS = 5, 1
_WINDOW_S, _QUICK_WINDOW_S = 6.0, 2.0
_TIMES = {"nothing-shared": (3, 3.0), "torchrec": (3, 3.0)}  # rounds and window of a case by itself: within ten minutes
_UNEQUAL = (0.8, 0.4, 0.2, 0.2)
_STEEP = (0.6, 0.4, 0.2, 0.1)
_ONE_SLOW = (0.2, 0.2, 0.2, 0.05)
DISK, DISK_QUICK = (20_000_000, 154_000_000, 40.0, 8.0, 5), (1_000_000, 7_700_000, 8.0, 3.0, 3)
_SEEDS, _KILLED, _SAMPLES, _QUICK_SAMPLES = 5, 3, 160_000, 8_000
_NARROW, _QUICK_NARROW = (3, 24_000), (1, _QUICK_SAMPLES)
BATCHES = (128, 512, 2048)


@dataclass(frozen=True, slots=True)
class TrainerCase:
    """A case of trainers."""

    way: str  # of the worker
    trainers: int
    batch: int = 128
    shares: tuple[float, ...] = ()  # of a core, of each trainer; empty for no limit


def _at(name: str, batch: int) -> str:
    return name if batch == BATCHES[0] else f"{name}, batch {batch}"


SCALING = {trainers: f"{trainers} at 0.2 core" for trainers in (1, 2, 4, 8)}
CASES = {
    **{name: TrainerCase("served", trainers, shares=(0.2,) * trainers) for trainers, name in SCALING.items()},
    "unequal": TrainerCase("served", 4, shares=_UNEQUAL),
    "4, one slow": TrainerCase("served", 4, shares=_ONE_SLOW),
    "two trainers": TrainerCase("served", 2),
    "one trainer": TrainerCase("served", 1),
    "one process, flat": TrainerCase("flat", 1),
    "two processes, flat": TrainerCase("flat", 2),
    "one process, modules": TrainerCase("modules", 1),
    "DDP, sparse": TrainerCase("ddp", 2),
    "one trainer, tables in it": TrainerCase("held", 1),
    **{_at("two trainers", batch): TrainerCase("served", 2, batch) for batch in BATCHES[1:]},
    **{_at("two processes, flat", batch): TrainerCase("flat", 2, batch) for batch in BATCHES[1:]},
    **{f"TorchRec, batch {batch}": TrainerCase("torchrec", 2, batch) for batch in BATCHES},
    **{f"TorchRec's pipeline, batch {batch}": TrainerCase("torchrec-pipeline", 2, batch) for batch in BATCHES},
    "steep": TrainerCase("served", 4, shares=_STEEP),
    "TorchRec, unequal": TrainerCase("torchrec", 4, shares=_UNEQUAL),
    "TorchRec, steep": TrainerCase("torchrec", 4, shares=_STEEP),
}
SPEED = {
    "scaling": (*SCALING.values(), "unequal"),
    "slow": (SCALING[4], "4, one slow"),
    "processes": (
        "two trainers", "one trainer", "one trainer, tables in it", "one process, flat", "one process, modules",
        "two processes, flat", "DDP, sparse",
    ),
    "nothing-shared": (
        "one trainer", "one trainer, tables in it",
        *(_at(name, batch) for batch in BATCHES for name in ("two trainers", "two processes, flat")),
    ),
    "torchrec": (
        "two trainers", "unequal", "steep",
        *(name for name in CASES if name.startswith(("TorchRec", "two trainers, ", "two processes, "))),
    ),
}  # fmt: skip
"""The measurements of one case; in each round one after the other."""
PARTS = (*SPEED, "quality", "killed", "checkpoint", "serve", "disk", "narrow")
QUICK = ("two trainers", "one process, flat", "DDP, sparse")
QUICK_PARTS = ("processes", "quality", "killed")


@dataclass(frozen=True, slots=True)
class MeasuredTrainers:
    """One case in one round."""

    per_s: tuple[float, ...]  # examples a second of each trainer
    trainer_us: float  # processor time of the trainers a sample
    server_us: float  # of the table server


BARS = {
    "8": "≥ 0.94 (scaling)",
    "share_evenness": "≥ 0.8",
    "beside_slow": "≥ 0.98",
    "vs_one_process": "≥ 1.5",
    "of_shared_nothing": "≥ 0.8",
    "vs_ddp_sparse": "≥ 8",
    "trainer_cpu_ratio": "≤ 1.15",
    "server_us_per_sample": "≤ 10",
    "logloss_vs_undisturbed": "≤ +1 %",
    "logloss_vs_synchronous": "≤ +0.5 %",
    "auc_vs_synchronous": "≥ −0.001",
    "logloss_vs_sequential": "≤ +3 %",
    "stall": "≤ 2 %",
}
tables = partial(harness_tables, bars=BARS)


def run(quick: bool, progress: Progress, case: str | None = None, report: Path | None = None) -> dict[str, Any]:
    """Measure the cases, or ``case``, one of :data:`PARTS`. ``report``: HTML file for pictures of the scaling. See
    :func:`judged`, :func:`uneven_bench.recommendation.tuning.judged`, :mod:`uneven_bench.recommendation.faults`,
    :func:`uneven_bench.recommendation.serving.serve`, :func:`uneven_bench.recommendation.disk.out_of_memory_rows` and
    :func:`uneven_bench.recommendation.narrow.narrow` for the result. Raises UnknownNameError: no such case.
    ConfigError: a report without the speed that it shows."""
    wanted = chosen(case, PARTS, QUICK_PARTS if quick else ())
    if report is not None and case not in (None, "scaling"):
        raise ConfigError(f"--report shows how examples a second grow, and --case {case} does not measure that")
    samples = _QUICK_SAMPLES if quick else _SAMPLES
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "quality": lambda: quality(1 if quick else _SEEDS, samples, QUICK_GRID if quick else GRID, progress),
        "killed": lambda: killed(1 if quick else _KILLED, samples, partial(progress, "killed")),
        "checkpoint": lambda: checkpoint(*((0.1, 2.0) if quick else (2.0, 20.0)), partial(progress, "checkpoint")),
        "serve": lambda: serve(*((1, 1.5) if quick else (5, 6.0)), partial(progress, "serve")),
        "disk": lambda: out_of_memory_rows(*(DISK_QUICK if quick else DISK), partial(progress, "disk")),
        "narrow": lambda: narrow(*(_QUICK_NARROW if quick else _NARROW), partial(progress, "narrow")),
    }
    found: dict[str, Any] = {"quick": quick}
    if names := {name: None for one in wanted if one in SPEED for name in SPEED[one]}:
        found |= _speed([name for name in names if case or not quick or name in QUICK], quick, case, progress)
    for name in (one for one in wanted if one in parts):
        found |= parts[name]()
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(scaling_page(found))
    return found


def _speed(names: Sequence[str], quick: bool, case: str | None, told: Progress) -> dict[str, Any]:
    if find_spec("torchrec") is None:
        names = [name for name in names if not CASES[name].way.startswith("torchrec")]
    rounds, window_s = (QUICK_ROUNDS, _QUICK_WINDOW_S) if quick else _TIMES.get(case or "", (ROUNDS, _WINDOW_S))
    found: dict[str, list[MeasuredTrainers]] = {name: [] for name in names}
    for _, name in in_turns(told, "measuring", range(rounds), names):
        found[name].append(measure(CASES[name], window_s))
    return judged(found) | {"rounds": rounds, "window_s": window_s}


def measure(case: TrainerCase, window_s: float) -> MeasuredTrainers:
    """Run one case. Raises LaunchError: it did not end well."""
    with tempfile.TemporaryDirectory(prefix="uneven-recommendation-") as made, ExitStack() as stack:
        folder = Path(made)
        served = case.way == "served"
        told_when = served or case.way == "held" or case.way.startswith("torchrec")  # announces its start of training
        server = ShardKeeper(folder / TABLES, 1, case.trainers, program=PROGRAM) if served else None
        stack.callback(server.close if server else lambda: None)
        script = [worker.__file__, case.way, str(folder), "--batch", str(case.batch), "--window-s", str(window_s)]
        # Each trainer has one thread; the table server has no share.
        wait_ready = told_when and bool(case.shares)
        start = launch.Launch(target=tuple(script), nproc=str(case.trainers), shares=case.shares, wait_ready=wait_ready)
        environment = {"OMP_NUM_THREADS": "1"}
        running = stack.enter_context(
            launch.start(start, run_directory=folder if told_when else None, env=environment, output=folder / "printed")
        )
        if server is not None:
            _warm(folder, case, running)
        before = _cpu_s(server)
        ending = running.wait(240)
        if ending is None or ending.code:
            raise LaunchError(f"{case} failed:\n{(folder / 'printed').read_text(errors='replace')[-2000:]}")
        after = _cpu_s(server)
        marks = [json.loads((folder / f"marks-{rank}.json").read_text()) for rank in range(case.trainers)]
    return _measured(marks, case.batch, after - before)


def _warm(folder: Path, case: TrainerCase, running: Command) -> None:
    """Wait until all trainers have started or ended: the tables exist then."""
    while len(list(folder.glob("warm-*"))) < case.trainers:
        if running.wait(0.05) is not None:
            return


def _cpu_s(server: ShardKeeper | None) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in (server.pids() if server is not None else ())]
    return sum(one.user + one.system for one in times)


def _measured(marks: list[dict[str, Any]], batch: int, server_s: float) -> MeasuredTrainers:
    """Return the figures of the time in which all trained and all were warm."""
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
    """Return medians over the rounds. Result: ``examples_per_s`` (case → median), ``trainers_per_s`` (case of unequal
    trainers → share and median of each), ``scaling`` (trainers → EPS(n) ÷ n EPS(1)), ``share_evenness`` (EPS ÷ share,
    least ÷ greatest), ``beside_slow`` (EPS of three trainers at 0.2 core whose fourth has 0.05 ÷ that of three whose
    fourth has 0.2), ``vs_one_process`` (two trainers and a server on two cores ÷ the fastest single process on one),
    ``of_two_cores`` (the same ÷ two such independent processes: the machine's capacity), ``of_shared_nothing`` (batch
    → the same), ``vs_ddp_sparse``,
    ``trainer_cpu_ratio`` (a trainer's processor time a sample ÷ that of the same session with the tables in its
    process), ``trainer_cpu_ratio_bare`` (÷ that of a bare loop with them), ``server_us_per_sample``, ``vs_torchrec``
    (batch → two trainers and a server ÷ the faster of TorchRec with and without its pipeline), ``vs_torchrec_unequal``
    (shares → the same at equal total processor time: examples a second and core, the server's part of one included).
    Without TorchRec these two are empty; None means not measured."""

    def of(name: str, value: Callable[[MeasuredTrainers], float]) -> list[float]:
        return [value(one) for one in found[name]]

    def total(name: str) -> list[float]:
        return of(name, lambda one: sum(one.per_s))

    def ratio(one: str, other: str) -> float:
        return Spread.ratio(total(one), total(other)).median

    def evenness() -> float:
        shares = [[rate / share for rate, share in zip(one.per_s, _UNEQUAL, strict=True)] for one in found["unequal"]]
        return statistics.median(min(one) / max(one) for one in shares)

    def beside_slow() -> float:
        return Spread.ratio(*(of(name, lambda one: sum(one.per_s[:3])) for name in (slow, SCALING[4]))).median

    def cpu_ratio(other: str) -> float:
        return Spread.ratio(*(of(name, lambda one: one.trainer_us) for name in ("one trainer", other))).median

    def where(what: Callable[[], float], *names: str) -> float | None:
        return what() if set(names) <= found.keys() else None

    def against(other: str) -> float | None:
        return where(lambda: ratio("two trainers", other), "two trainers", other)

    held, flat, slow = "one trainer, tables in it", "one process, flat", "4, one slow"

    def equal_time(mine: str, other: str, asked: tuple[float, ...]) -> float:
        ours = [sum(one.per_s) / (sum(asked) + 1e-6 * one.server_us * sum(one.per_s)) for one in found[mine]]
        return Spread.ratio(ours, [rate / sum(asked) for rate in total(other)]).median

    def fastest(batch: int) -> float:
        there = [one for one in (f"TorchRec, batch {batch}", f"TorchRec's pipeline, batch {batch}") if one in found]
        return min(ratio(_at("two trainers", batch), one) for one in there)

    unequal = {"unequal": _UNEQUAL, "steep": _STEEP}

    def of_each(name: str) -> list[dict[str, float]]:
        rates = zip(*(one.per_s for one in found[name]), strict=True)
        return [{"share": a, "per_s": statistics.median(b)} for a, b in zip(unequal[name], rates, strict=True)]

    return {
        "examples_per_s": {name: statistics.median(total(name)) for name in found},
        "trainers_per_s": {name: of_each(name) for name in unequal if name in found},
        "scaling": {
            str(trainers): ratio(name, SCALING[1]) / trainers
            for trainers, name in SCALING.items()
            if {name, SCALING[1]} <= found.keys()
        },
        "share_evenness": where(evenness, "unequal"),
        "beside_slow": where(beside_slow, slow, SCALING[4]),
        "vs_one_process": against(flat),
        "of_two_cores": against("two processes, flat"),
        "of_shared_nothing": {
            str(batch): ratio(_at("two trainers", batch), _at("two processes, flat", batch))
            for batch in BATCHES
            if {_at("two trainers", batch), _at("two processes, flat", batch)} <= found.keys()
        },
        "vs_ddp_sparse": against("DDP, sparse"),
        "trainer_cpu_ratio": where(lambda: cpu_ratio(held), "one trainer", held),
        "trainer_cpu_ratio_bare": where(lambda: cpu_ratio(flat), "one trainer", flat),
        "server_us_per_sample": where(
            lambda: statistics.median(of("two trainers", lambda one: one.server_us)), "two trainers"
        ),
        "vs_torchrec": {str(batch): fastest(batch) for batch in BATCHES if f"TorchRec, batch {batch}" in found},
        "vs_torchrec_unequal": {
            "/".join(f"{one:g}" for one in asked): equal_time(name, f"TorchRec, {name}", asked)
            for name, asked in unequal.items()
            if f"TorchRec, {name}" in found
        },
    }
