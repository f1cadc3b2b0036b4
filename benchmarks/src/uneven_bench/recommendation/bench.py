"""How many examples a second, and what they cost: every case in each round, one after the other, servers included."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
from rich.box import SIMPLE_HEAD
from rich.table import Table

from uneven import launch
from uneven.embedding.host import PROGRAM, TABLES
from uneven.errors import LaunchError, UnknownNameError
from uneven.server.process import ShardKeeper
from uneven_bench.recommendation import worker
from uneven_bench.recommendation.faults import checkpoint, killed
from uneven_bench.recommendation.quality import quality

ROUNDS, QUICK_ROUNDS = 5, 1
_WINDOW_S, _QUICK_WINDOW_S = 6.0, 3.0
_UNEQUAL = (0.8, 0.4, 0.2, 0.2)
_STEEP = (0.6, 0.4, 0.2, 0.1)
_SEEDS, _SAMPLES, _QUICK_SAMPLES = 3, 160_000, 24_000
BATCHES = (128, 512, 2048)
PARTS = ("speed", "quality", "killed", "checkpoint")
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
    "one trainer, tables in it": TrainerCase("held", 1),
    **{f"two trainers, batch {batch}": TrainerCase("served", 2, batch) for batch in BATCHES[1:]},
    **{f"TorchRec, batch {batch}": TrainerCase("torchrec", 2, batch) for batch in BATCHES},
    **{f"TorchRec's pipeline, batch {batch}": TrainerCase("torchrec-pipeline", 2, batch) for batch in BATCHES},
    "steep": TrainerCase("served", 4, shares=_STEEP),
    "TorchRec, unequal": TrainerCase("torchrec", 4, shares=_UNEQUAL),
    "TorchRec, steep": TrainerCase("torchrec", 4, shares=_STEEP),
}
QUICK = (
    "1 at 0.2 core", "4 at 0.2 core", "unequal", "two trainers", "one trainer", "one trainer, tables in it",
    "one process, flat", "DDP, sparse", "TorchRec, batch 128",
)  # fmt: skip


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


def run(quick: bool, told: Progress, case: str | None = None) -> dict[str, Any]:
    """Measure.

    Args:
        case: one of :data:`PARTS` alone.

    Returns:
        See :func:`judged`, :func:`uneven_bench.recommendation.quality.quality`, and
        :mod:`uneven_bench.recommendation.faults`.

    Raises:
        UnknownNameError: no such case.
    """
    if case is not None and case not in PARTS:
        raise UnknownNameError("case", case, PARTS)
    rounds = 1 if quick else _SEEDS
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "speed": lambda: _speed(quick, told),
        "quality": lambda: quality(rounds, _QUICK_SAMPLES if quick else _SAMPLES, told),
        "killed": lambda: killed(rounds, _QUICK_SAMPLES if quick else _SAMPLES, partial(told, "killed")),
        "checkpoint": lambda: checkpoint(*((0.1, 3.0) if quick else (2.0, 20.0)), partial(told, "checkpoint")),
    }
    found: dict[str, Any] = {"quick": quick}
    for name in PARTS if case is None else (case,):
        found |= parts[name]()
    return found


def _speed(quick: bool, told: Progress) -> dict[str, Any]:
    names = [name for name in (QUICK if quick else CASES) if _is_here(CASES[name].way)]
    rounds, window_s = (QUICK_ROUNDS, _QUICK_WINDOW_S) if quick else (ROUNDS, _WINDOW_S)
    found: dict[str, list[MeasuredTrainers]] = {name: [] for name in names}
    for number in range(rounds):
        for place, name in enumerate(names):
            done = (number * len(names) + place) / rounds / len(names)
            told("measuring", f"{name}, round {number + 1} of {rounds}", done)
            found[name].append(measure(CASES[name], window_s))
    told("measuring", "done", 1.0)
    return judged(found) | {"rounds": rounds, "window_s": window_s}


def _is_here(way: str) -> bool:
    return not way.startswith("torchrec") or find_spec("torchrec") is not None


def measure(case: TrainerCase, window_s: float) -> MeasuredTrainers:
    """Run one case.

    Raises:
        LaunchError: it did not end well.
    """
    with tempfile.TemporaryDirectory(prefix="uneven-recommendation-") as made, ExitStack() as stack:
        folder = Path(made)
        served = case.way == "served"
        told_when = served or case.way == "held" or case.way.startswith("torchrec")  # its training begins
        server = ShardKeeper(folder / TABLES, 1, case.trainers, program=PROGRAM) if served else None
        stack.callback(server.close if server else lambda: None)
        script = [worker.__file__, case.way, str(folder), "--batch", str(case.batch), "--window-s", str(window_s)]
        # Each trainer has one thread; the table server is in nobody's share.
        wait_ready = told_when and bool(case.shares)
        start = launch.Launch(
            target=tuple(script), nproc=str(case.trainers), shares=case.shares, wait_ready=wait_ready
        )
        environment = {"OMP_NUM_THREADS": "1"}
        running = stack.enter_context(
            launch.start(start, run_directory=folder if told_when else None, env=environment, output=folder / "printed")
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
        one), ``vs_ddp_sparse``, ``trainer_cpu_ratio`` (a trainer's processor time a sample ÷ that of the same session
        with the tables in its process), ``trainer_cpu_ratio_bare`` (÷ that of a bare loop with them),
        ``server_us_per_sample``, ``vs_torchrec`` (batch → two trainers and a server ÷ TorchRec with its pipeline or
        without, whichever is faster), ``vs_torchrec_unequal`` (shares → the same at equal total processor time:
        examples a second and core, the server's part of one included). Without TorchRec these two are empty.
    """

    def of(name: str, value: Callable[[MeasuredTrainers], float]) -> list[float]:
        return [value(one) for one in found[name]]

    def total(name: str) -> list[float]:
        return of(name, lambda one: sum(one.per_s))

    def ratio(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(total(one), total(other), strict=True))

    shares = [[rate / share for rate, share in zip(one.per_s, _UNEQUAL, strict=True)] for one in found["unequal"]]
    ways = ("one trainer", "one trainer, tables in it", "one process, flat")
    remote, local, bare = (of(name, lambda one: one.trainer_us) for name in ways)

    def equal_time(mine: str, other: str, asked: tuple[float, ...]) -> float:
        ours = [sum(one.per_s) / (sum(asked) + 1e-6 * one.server_us * sum(one.per_s)) for one in found[mine]]
        theirs = [rate / sum(asked) for rate in total(other)]
        return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))

    def fastest(batch: int) -> float:
        mine = "two trainers" if batch == BATCHES[0] else f"two trainers, batch {batch}"
        there = [one for one in (f"TorchRec, batch {batch}", f"TorchRec's pipeline, batch {batch}") if one in found]
        return min(ratio(mine, one) for one in there)

    unequal = {"unequal": _UNEQUAL, "steep": _STEEP}
    return {
        "examples_per_s": {name: statistics.median(total(name)) for name in found},
        "scaling": {
            str(trainers): ratio(name, SCALING[1]) / trainers for trainers, name in SCALING.items() if name in found
        },
        "share_evenness": statistics.median(min(one) / max(one) for one in shares),
        "vs_one_process": ratio("two trainers", "one process, flat"),
        "vs_ddp_sparse": ratio("two trainers", "DDP, sparse"),
        "trainer_cpu_ratio": statistics.median(a / b for a, b in zip(remote, local, strict=True)),
        "trainer_cpu_ratio_bare": statistics.median(a / b for a, b in zip(remote, bare, strict=True)),
        "vs_torchrec": {str(batch): fastest(batch) for batch in BATCHES if f"TorchRec, batch {batch}" in found},
        "vs_torchrec_unequal": {
            "/".join(f"{one:g}" for one in asked): equal_time(name, f"TorchRec, {name}", asked)
            for name, asked in unequal.items()
            if f"TorchRec, {name}" in found
        },
        "server_us_per_sample": statistics.median(of("two trainers", lambda one: one.server_us)),
    }


def tables(result: dict[str, Any]) -> list[Table]:
    """The result for people."""
    more = [_faults(result)] if {"killed", "checkpoint"} & result.keys() else []
    if "examples_per_s" not in result:
        return [*([_quality(result)] if "quality" in result else []), *more]
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
        ("trainer_cpu_ratio_bare", "the same ÷ a bare loop's with tables in its process", ""),
        ("server_us_per_sample", "µs of the server a sample", "≤ 10"),
    ):
        ratios.add_row(words, f"{result[key]:.2f}", bar)
    for batch, bar in zip(BATCHES, ("≥ 2.5", "≥ 1.5", "≥ 1.1"), strict=True):
        if (measured := result["vs_torchrec"].get(str(batch))) is not None:
            ratios.add_row(f"two trainers and a server ÷ TorchRec, batch {batch}", f"{measured:.2f}", bar)
    for (shares, measured), bar in zip(result["vs_torchrec_unequal"].items(), ("≥ 3.5", "≥ 5"), strict=False):
        ratios.add_row(f"÷ TorchRec on {shares} at equal processor time", f"{measured:.2f}", bar)
    return [rates, ratios, *([_quality(result)] if "quality" in result else []), *more]


def _faults(result: dict[str, Any]) -> Table:
    shown = Table(title="shards that are killed, shards that save", box=SIMPLE_HEAD)
    for heading in ("", "measured", "bar"):
        shown.add_column(heading, justify="right" if shown.columns else "left")
    if one := result.get("killed"):
        shown.add_row(f"log loss after {one['kills']} kills", f"{one['logloss_vs_undisturbed']:+.2%}", "≤ +1 %")
        outside = one["eps_outside"]
        spread = f" ({min(outside):.2f} to {max(outside):.2f})" if len(outside) > 1 else ""
        shown.add_row("examples/s outside of them ÷ undisturbed", f"{statistics.median(outside):.2f}{spread}", "≥ 0.9")
        shown.add_row("a batch in which a shard is away, s", f"{one['away_s']:.2f}", "")
        shown.add_row(f"updates lost, of {one['updates']}", ", ".join(map(str, one["lost"])), "")
    if one := result.get("checkpoint"):
        shown.add_row("GB of tables in a shard", f"{one['gigabytes']:.2f}", "")
        shown.add_row("more memory while it saves, MB", f"{one['more_bytes'] / 2**20:.0f}", "no second copy")
        shown.add_row("a save, s", f"{one['took_s']:.1f}", "")
        shown.add_row("examples/s meanwhile ÷ else", f"{one['eps_while']:.2f}", "")
        shown.add_row("a save a minute costs", f"{one['stall']:.1%}", "≤ 2 %")
    return shown


def _quality(result: dict[str, Any]) -> Table:
    shown = Table(title="one pass in virtual time", box=SIMPLE_HEAD)
    for heading in ("", "log loss", "AUC"):
        shown.add_column(heading, justify="right" if shown.columns else "left")
    for name, each in result["quality"].items():
        loss, auc = (statistics.fmean(each[key]) for key in ("log_loss", "auc"))
        shown.add_row(name, f"{loss:.4f}", f"{auc:.4f}")
    for other, bar in (("synchronous", "≤ +1 %"), ("sequential", "≤ +3 %")):
        shown.add_row(f"asynchronous, worse than {other} by", f"{result[f'logloss_vs_{other}']:+.2%}", bar)
    for name, twin in result["foreground_twins"].items():
        shown.add_row(f"S-EASGD ÷ FR-{name}, examples a unit of time", f"{twin['eps_ratio']:.2f}", "")
    return shown
