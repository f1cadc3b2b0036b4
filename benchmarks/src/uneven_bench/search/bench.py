"""``uneven bench search``: overhead, decisions, a real search and unequal devices, ours and others' in turns."""

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from uneven import search
from uneven.fleet.pure.sections import Stream
from uneven.fleet.stream.preprocess import Source
from uneven.search.pure.core import SearchCore
from uneven.search.pure.placing import Placer, placing_named
from uneven.search.pure.schedulers import schedulers
from uneven.search.pure.searchers import searchers
from uneven.search.pure.simulated_search import simulate
from uneven.search.pure.space import Space
from uneven.search.pure.trial_records import SearchTerms
from uneven_bench.fleet.cases import CASES as PREPARATIONS
from uneven_bench.harness.figures import Spread, in_turns
from uneven_bench.harness.ray_rival import ray_cluster
from uneven_bench.harness.show import Progress, chosen
from uneven_bench.search import decisions, rivals, trainings

MAX_T = 9
SCHEDULER = f"asha:max_t={MAX_T},reduction_factor=3"
PLACINGS = ("first-come", "planned")
CASES = ("overhead", "decisions", "real", "unequal")


def run(quick: bool, data: str, progress: Progress, case: str | None = None) -> dict[str, Any]:
    """Measure all cases. Result: ``overhead_ms`` (of a trivial trial, a warm search), ``memory_per_trial_bytes``
    (growth of the searching process with each trial, its result held), ``overhead_ray_ms``, ``overhead_optuna_ms``,
    ``overhead_syne_tune_ms``, ``overhead_vs_ray``, ``core_10000_s``, ``stopping_asha_agrees``, ``quality``, ``real``
    (case → method → figures of each round), ``real_medians``, ``targets`` (of each round: the lowest of the methods'
    best accuracies), ``time_to_target_vs_ray``, ``end_vs_ray``, ``preprocess_saving`` (processor time apart over
    shared) and ``trials_at_once``, ``sharing_wall`` (the same of the whole time), ``unequal_s``, ``unequal_gain`` and
    ``unequal_gain_virtual`` (the median of 20 in virtual time). Rivals that are not installed are left out. Raises
    UnknownNameError: no such case."""
    wanted = chosen(case, CASES)
    rounds = 1 if quick else 3
    found: dict[str, Any] = {"rounds": rounds}
    if "decisions" in wanted:
        decisions.table()  # without the data it raises now, before the minutes of other cases
    with tempfile.TemporaryDirectory(prefix="uneven-search-") as folder:
        where = Path(folder)
        if "overhead" in wanted:
            found |= _overhead(where, rounds, quick, progress)
        if "decisions" in wanted:
            found["core_10000_s"] = decisions.core_s()
            found["stopping_asha_agrees"] = decisions.agreement(50 if quick else 200)
            found["quality"] = decisions.quality(3 if quick else 20, lambda name: progress("decisions", name, 0.0))
        if "real" in wanted:
            found |= _real(where, rounds, quick, data, progress)
        if "unequal" in wanted:
            found |= _unequal(where, quick, progress)
    return found


def _overhead(where: Path, rounds: int, quick: bool, progress: Progress) -> dict[str, Any]:
    ours, ray, optuna = 500, 6 if quick else 20, 500
    space = {"x": search.uniform(0, 1)}

    def trivial(trials: int, name: str) -> search.SearchResult:
        how: dict[str, Any] = {"metric": "score", "devices": rivals.SLOTS, "progress": False}
        return search.run(trainings.trivial, space, trials=trials, directory=where / name, **how)

    def our_s(trials: int, name: str) -> float:
        began_s = time.perf_counter()
        trivial(trials, name)
        return time.perf_counter() - began_s

    found: dict[str, list[float]] = {"ours": [], "ray": [], "optuna": [], "syne_tune": []}
    few, many = (500, 1_500) if quick else (2_000, 12_000)
    held = [trivial(few, "few")]
    before_bytes = psutil.Process().memory_info().rss
    held.append(trivial(many, "many"))
    per_trial_bytes = (psutil.Process().memory_info().rss - before_bytes) / len(held[-1].rows)
    held.clear()
    for number in range(rounds):
        progress("overhead", "ours", 0.0)
        found["ours"].append(our_s(ours, f"trivial {number}") / ours * 1e3)
        if rivals.installed("optuna"):
            found["optuna"].append(rivals.optuna_trivial(optuna) / optuna * 1e3)
        if rivals.installed("syne_tune"):
            progress("overhead", "syne tune", 0.0)
            found["syne_tune"].append(rivals.syne_trivial(ray) / ray * 1e3)
        if rivals.installed("ray"):
            progress("overhead", "ray", 0.0)
            with ray_cluster(rivals.SLOTS):
                rivals.ray_trivial(2)
                found["ray"].append(rivals.ray_trivial(ray) / ray * 1e3)
    result: dict[str, Any] = {
        "overhead_ms": statistics.median(found["ours"]),
        "overhead_rounds_ms": found,
        "memory_per_trial_bytes": per_trial_bytes,
    }
    for name in ("ray", "optuna", "syne_tune"):
        if found[name]:
            result[f"overhead_{name}_ms"] = statistics.median(found[name])
            result[f"overhead_vs_{name}"] = Spread.ratio(found[name], found["ours"]).median
    return result


@dataclass(frozen=True, slots=True)
class RealSearch:
    """A search of real trainings, the same for every method."""

    train: Any
    validate: Any
    space: dict[str, Any]
    trials: int
    directory: Path  # for output files

    def ours(self, case: str, seed: int, *, share: bool) -> search.SearchResult:
        """Run the search under uneven."""
        return search.run(
            trainings.pictures, self.space, metric="accuracy", trials=self.trials, scheduler=SCHEDULER, seed=seed,
            data=self.train, validate=self.validate, transform=PREPARATIONS[case], share=share, devices=rivals.SLOTS,
            directory=self.directory / f"{case} {share} {seed}", progress=False,
        )  # fmt: skip

    def rays(self, case: str, seed: int, settings: list[dict[str, Any]]) -> rivals.PlayedSearch:
        """Run the search in Ray Tune, on a running cluster."""
        source = Source(self.train, self.validate, PREPARATIONS[case], None)
        stream = Stream(len(self.train), len(self.validate), 128, seed)
        return rivals.ray_pictures(settings, source, stream, MAX_T)


def _real(where: Path, rounds: int, quick: bool, data: str, progress: Progress) -> dict[str, Any]:
    """Run the real searches. In each round a case's target is the lowest of the methods' best accuracies, so all have
    reached it."""
    samples, trials = (300, 4) if quick else (1000, 9)
    train, validate = trainings.sets(data, samples)
    side = train[0][0].shape[-1]
    space: dict[str, Any] = {"lr": search.loguniform(1e-4, 1e-1), "width": search.choice(4, 8, 12), "side": side}
    one = RealSearch(train, validate, space, trials, where)
    cases: dict[str, dict[str, list[dict[str, float]]]] = {case: {} for case in PREPARATIONS}
    targets: dict[str, list[float]] = {case: [] for case in PREPARATIONS}
    for number in range(rounds):
        for case, played in _round(one, number, progress).items():
            targets[case].append(min(each.best for each in played.values()))
            for method, each in played.items():
                cases[case].setdefault(method, []).append(each.figures(targets[case][-1]))
    return {
        "real": cases,
        "real_medians": {
            case: {
                method: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
                for method, rows in methods.items()
            }
            for case, methods in cases.items()
        },
        "targets": targets,
        "trials_at_once": rivals.SLOTS,
        "trials": trials,
        "data": data,
        "preprocess_saving": _ratios(cases, "apart", "prepared_s"),
        "time_to_target_vs_ray": _ratios(cases, "ray", "target_s"),
        "end_vs_ray": _ratios(cases, "ray", "end_s"),
        "sharing_wall": _ratios(cases, "apart", "end_s"),
    }


def _round(one: RealSearch, seed: int, progress: Progress) -> dict[str, dict[str, rivals.PlayedSearch]]:
    """Return case → method → result; Ray's cluster starts once, after ours."""
    played: dict[str, dict[str, rivals.PlayedSearch]] = {case: {} for case in PREPARATIONS}
    settings: dict[str, list[dict[str, Any]]] = {}
    for case in PREPARATIONS:
        for method in ("shared", "apart"):
            progress("real", f"{case}, {method}", 0.0)
            began_s = time.time()
            result = one.ours(case, seed, share=method == "shared")
            played[case][method] = _played(result, began_s)
            settings[case] = [dict(row.params) for row in sorted(result.rows, key=lambda row: row.number)]
    if rivals.installed("ray"):
        with ray_cluster(rivals.SLOTS):
            rivals.ray_trivial(2)
            for case in PREPARATIONS:
                progress("real", f"{case}, ray", 0.0)
                played[case]["ray"] = one.rays(case, seed, settings[case])
    return played


def _ratios(cases: dict[str, dict[str, list[dict[str, float]]]], method: str, key: str) -> dict[str, float]:
    """Return case → ratio to ours, shared: the median over the rounds."""
    return {
        case: Spread.ratio(*([row[key] for row in rows[one]] for one in (method, "shared"))).median
        for case, rows in cases.items()
        if method in rows
    }


def _played(result: search.SearchResult, began_s: float) -> rivals.PlayedSearch:
    events = result.events()
    reports = [(event["at_s"] - began_s, event["metric"]) for event in events if event["event"] == "report"]
    (prepared_s,) = (event["cpu_s"] for event in events if event["event"] == "data")
    return rivals.PlayedSearch(reports, events[-1]["at_s"] - began_s, prepared_s)


def _unequal(where: Path, quick: bool, progress: Progress) -> dict[str, Any]:
    """Measure searches on unequal slots under two placings."""
    trials = 8
    space = {"x": search.uniform(0, 1), "cost": search.uniform(0.5, 2.0)}
    took: dict[str, list[float]] = {placing: [] for placing in PLACINGS}
    for number, placing in in_turns(progress, "unequal", range(1 if quick else 5), PLACINGS):
        result = search.run(
            trainings.throttled, space, metric="score", trials=trials, max_t=9, devices=len(trainings.SHARES),
            directory=where / f"unequal {placing} {number}", placing=placing, progress=False, seed=number,
        )  # fmt: skip
        events = result.events()
        took[placing].append(events[-1]["at_s"] - events[0]["at_s"])
    virtual = statistics.median(_virtual_gain(Space(space), trials, seed) for seed in range(20))
    gain = Spread.ratio(*took.values()).median
    return {"unequal_s": took, "unequal_gain": gain, "unequal_gain_virtual": virtual}


def _virtual_gain(space: Space, trials: int, seed: int) -> float:
    """Play the same searches in virtual time, without the cost of starting processes and keeping states."""
    ends_s = {}
    for placing in PLACINGS:
        terms = SearchTerms(metric="score", trials=trials, max_t=9, seed=seed)
        core = SearchCore(terms, space, schedulers.resolve("fifo"), searchers.resolve("random"))
        how: dict[str, Any] = {"speeds": trainings.SHARES, "costs": lambda trial: float(trial.params["cost"] or 1)}
        ends_s[placing] = simulate(core, lambda _, t: t, placer=Placer(placing_named(placing)), **how).end_s
    return ends_s["first-come"] / ends_s["planned"]
