"""``uneven bench search``: overhead, decisions, a real search and unequal devices, ours and others' in turns."""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from uneven import search
from uneven.fleet.stream.order import Stream
from uneven.fleet.stream.preprocess import Source
from uneven_bench.fleet.cases import CASES
from uneven_bench.search import decisions, rivals, trainings

Progress = Callable[[str, str, float], None]

MAX_T = 9
SCHEDULER = f"asha:max_t={MAX_T},reduction_factor=3"
PLACINGS = ("first-come", "planned")


def run(quick: bool, data: str, progress: Progress, only: str | None = None) -> dict[str, Any]:
    """Measure.

    Returns:
        ``overhead_ms`` (of a trivial trial, a warm search), ``memory_per_trial_bytes`` (by which the most memory of
        the searching process grows with each trial), ``overhead_ray_ms``, ``overhead_optuna_ms``,
        ``overhead_vs_ray``, ``core_10000_s``, ``stopping_asha_agrees``, ``quality``, ``real`` (case → method →
        figures), ``targets`` (of each round: the lowest of the methods' best accuracies), ``time_to_target_vs_ray``,
        ``end_vs_ray``, ``preprocess_saving`` (processor time apart over shared) and ``trials_at_once``,
        ``sharing_wall`` (the same of the whole time), ``unequal_s`` and ``unequal_gain``. Rivals that are not
        installed are left out.
    """
    rounds = 1 if quick else 3
    found: dict[str, Any] = {"rounds": rounds}
    with tempfile.TemporaryDirectory(prefix="uneven-search-") as folder:
        where = Path(folder)
        if only in (None, "overhead"):
            found |= _overhead(where, rounds, quick, progress)
        if only in (None, "decisions"):
            found["core_10000_s"] = decisions.core_s()
            found["stopping_asha_agrees"] = decisions.agreement(50 if quick else 200)
            found["quality"] = decisions.quality(5 if quick else 20, lambda name: progress("decisions", name, 0.0))
        if only in (None, "real"):
            found |= _real(where, rounds, quick, data, progress)
        if only in (None, "unequal"):
            found |= _unequal(where, rounds, quick, progress)
    return found


def _overhead(where: Path, rounds: int, quick: bool, progress: Progress) -> dict[str, Any]:
    ours, ray, optuna = 500, 6 if quick else 20, 500
    space = {"x": search.uniform(0, 1)}

    def our_s(trials: int, name: str) -> float:
        began_s = time.perf_counter()
        search.run(
            trainings.trivial, space, metric="score", trials=trials, devices=rivals.SLOTS, progress=False,
            directory=where / name,
        )  # fmt: skip
        return time.perf_counter() - began_s

    found: dict[str, list[float]] = {"ours": [], "ray": [], "optuna": []}
    few, many = (500, 2_500) if quick else (2_000, 12_000)
    our_s(few, "few")
    before_bytes = _most_bytes()
    our_s(many, "many")
    per_trial_bytes = (_most_bytes() - before_bytes) / (many - few)
    for number in range(rounds):
        progress("overhead", "ours", 0.0)
        found["ours"].append(our_s(ours, f"trivial {number}") / ours * 1e3)
        if rivals.installed("optuna"):
            found["optuna"].append(rivals.optuna_trivial(optuna) / optuna * 1e3)
        if rivals.installed("ray"):
            progress("overhead", "ray", 0.0)
            with rivals.ray():
                rivals.ray_trivial(2)
                found["ray"].append(rivals.ray_trivial(ray) / ray * 1e3)
    result: dict[str, Any] = {
        "overhead_ms": statistics.median(found["ours"]), "overhead_rounds_ms": found,
        "memory_per_trial_bytes": per_trial_bytes,
    }  # fmt: skip
    for name in ("ray", "optuna"):
        if found[name]:
            result[f"overhead_{name}_ms"] = statistics.median(found[name])
            pairs = zip(found[name], found["ours"], strict=True)
            result[f"overhead_vs_{name}"] = statistics.median(theirs / mine for theirs, mine in pairs)
    return result


def _most_bytes() -> int:
    """The most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _train(params: dict[str, Any], number: int, seed: int, reader: Any, report: Callable[[float], None]) -> None:
    torch.manual_seed(seed)
    model, optimizer = trainings.made(params, params["side"])
    for epoch in range(MAX_T):
        trainings.learn(model, optimizer, reader.train(number, epoch, trainings.BATCH))
        report(trainings.accuracy(model, reader.validation(number, 256)))


def _real(where: Path, rounds: int, quick: bool, data: str, progress: Progress) -> dict[str, Any]:
    """In each round a case's target is the lowest of the methods' best accuracies: all of them have reached it."""
    samples, trials = (400, 6) if quick else (1000, 9)
    train, validate = trainings.sets(data, samples)
    side = train[0][0].shape[-1]
    space: dict[str, Any] = {"lr": search.log(1e-4, 1e-1), "width": search.choice(4, 8, 12), "side": side}
    cases: dict[str, dict[str, list[dict[str, float]]]] = {case: {} for case in CASES}
    targets: dict[str, list[float]] = {case: [] for case in CASES}
    for number in range(rounds):
        for case, transform in CASES.items():
            played: dict[str, rivals.PlayedSearch] = {}
            for method in ("shared", "apart"):
                progress("real", f"{case}, {method}", 0.0)
                directory = where / f"{case} {method} {number}"
                began_s = time.time()
                result = search.run(
                    trainings.pictures, space, metric="accuracy", trials=trials, scheduler=SCHEDULER, seed=number,
                    data=train, validate=validate, transform=transform, share=method == "shared",
                    devices=rivals.SLOTS, directory=directory, progress=False,
                )  # fmt: skip
                played[method] = _played(result, began_s)
            if rivals.installed("ray"):
                progress("real", f"{case}, ray", 0.0)
                settings = [dict(row.params) for row in sorted(result.rows, key=lambda row: row.number)]
                source = Source(train, validate, transform, None)
                stream = Stream(len(train), len(validate), 128, number)
                with rivals.ray():
                    rivals.ray_trivial(2)
                    played["ray"] = rivals.ray_pictures(settings, source, stream, MAX_T, _train)
            targets[case].append(min(one.best for one in played.values()))
            for method, one in played.items():
                cases[case].setdefault(method, []).append(one.figures(targets[case][-1]))
    return {
        "real": cases, "targets": targets, "trials_at_once": rivals.SLOTS, "trials": trials,
        "preprocess_saving": _ratios(cases, "apart", "prepared_s"),
        "time_to_target_vs_ray": _ratios(cases, "ray", "target_s"), "end_vs_ray": _ratios(cases, "ray", "end_s"),
        "sharing_wall": _ratios(cases, "apart", "end_s"),
    }  # fmt: skip


def _ratios(cases: dict[str, dict[str, list[dict[str, float]]]], method: str, key: str) -> dict[str, float]:
    """Case → how many times ours, shared: the median over the rounds."""
    return {
        case: statistics.median(
            theirs[key] / ours[key] for theirs, ours in zip(rows[method], rows["shared"], strict=True)
        )
        for case, rows in cases.items() if method in rows
    }  # fmt: skip


def _played(result: search.SearchResult, began_s: float) -> rivals.PlayedSearch:
    events = result.events()
    reports = [(event["at_s"] - began_s, event["metric"]) for event in events if event["event"] == "report"]
    (prepared_s,) = (event["cpu_s"] for event in events if event["event"] == "data")
    return rivals.PlayedSearch(reports, events[-1]["at_s"] - began_s, prepared_s)


def _unequal(where: Path, rounds: int, quick: bool, progress: Progress) -> dict[str, Any]:
    trials = 8
    space = {"x": search.uniform(0, 1), "cost": search.uniform(0.5, 2.0)}
    took: dict[str, list[float]] = {placing: [] for placing in PLACINGS}
    for number in range(rounds):
        for placing in PLACINGS:
            progress("unequal", placing, 0.0)
            result = search.run(
                trainings.throttled, space, metric="score", trials=trials, max_t=9, devices=len(trainings.SHARES),
                directory=where / f"{placing} {number}", placing=placing, progress=False, seed=number,
            )  # fmt: skip
            events = result.events()
            took[placing].append(events[-1]["at_s"] - events[0]["at_s"])
    gains = [first / planned for first, planned in zip(took["first-come"], took["planned"], strict=True)]
    return {"unequal_s": took, "unequal_gain": statistics.median(gains)}


def tables(found: dict[str, Any]) -> list[Table]:
    """What was measured, for a terminal."""
    said = Table("", "figure", title="A search", box=SIMPLE_HEAD)
    for key in ("overhead_ms", "overhead_ray_ms", "overhead_optuna_ms", "overhead_vs_ray", "core_10000_s",
                "unequal_gain"):  # fmt: skip
        if key in found:
            said.add_row(key.replace("_", " "), f"{found[key]:,.2f}")
    if found.get("stopping_asha_agrees"):
        agrees = found["stopping_asha_agrees"]
        said.add_row("streams that ASHA decides as Ray does", f"{agrees['agree']} of {agrees['of']}")
    made = [said]
    if "quality" in found:
        best = Table("scheduler", "whose", "accuracy, %", "range", "epochs", title="On the table", box=SIMPLE_HEAD)
        for name, rows in found["quality"].items():
            for who, row in rows.items():
                span = f"{row['lowest']:.2f} … {row['highest']:.2f}"
                best.add_row(name, who, f"{row['accuracy']:.2f}", span, f"{row['epochs']:.0f}")
        made.append(best)
    if "real" in found:
        real = Table("case", "method", "to target, s", "in all, s", "preparing, s", "epochs", title="A real search",
                     box=SIMPLE_HEAD)  # fmt: skip
        for case, methods in found["real"].items():
            for method, rows in methods.items():
                if rows:
                    figures = [statistics.median(row[key] for row in rows) for key in
                               ("target_s", "end_s", "prepared_s", "epochs")]  # fmt: skip
                    real.add_row(case, method, *(f"{figure:.1f}" for figure in figures))
        made.append(real)
    return made
