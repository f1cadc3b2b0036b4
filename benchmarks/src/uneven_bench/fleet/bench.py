"""``uneven bench fleet``: the same members trained on shared data, and without sharing.

Every method trains every member for the same number of epochs on the same samples, with this machine's cores as slots.
"""

import random
import statistics
import tempfile
import time
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import uneven.fleet as fleet
from uneven.errors import TrainingError
from uneven.fleet.engine.fleet_options import Options
from uneven.fleet.pure.planning.flotillas import Paradigm, Planner
from uneven.fleet.pure.planning.rates import Rates
from uneven_bench.fleet.baseline import baseline, figures, ray_tune
from uneven_bench.fleet.cases import CASES, WIDTHS, ensemble
from uneven_bench.fleet.tensor_socket import tensorsocket
from uneven_bench.fleet_plan.optimal import best_rounds_s
from uneven_bench.fleet_plan.simulate import EnsembleWork, play
from uneven_bench.harness.figures import in_turns
from uneven_bench.harness.show import Progress

SLOTS = 2
METHODS = {
    "baseline": "one pipeline per member; a free slot takes the next member",
    "homogeneous": "shared, a random subset of as many members as slots, then the next",
    "sequential": "one member after the other, all slots to it",
    "fleet-g": "shared, FLEET, all slots planned anew",
    "fleet-l": "shared, FLEET, free slots refilled",
    "together": "shared, all members take turns on the slots; ours, and what a user gets",
    "ray-tune": "trials of Ray Tune, one pipeline each; only where Ray is installed",
    "tensorsocket": "all members at once, fed by one TensorSocket producer; only where it is installed",
}


RIVALS = {"ray-tune": ("ray", ray_tune), "tensorsocket": ("tensorsocket", tensorsocket)}
"""Method → the package that it needs, and its training; all other methods are always there."""


def run(quick: bool, data: str, progress: Progress) -> dict[str, Any]:
    """Measure all cases. Result: ``rates_per_s`` (member → samples/s on 1, 2 slots), ``profile_s``, ``slots``,
    ``repeats``, ``samples``, ``epochs`` and ``cases``: case → ``methods`` (method → medians of ``wall_s``,
    ``preprocess_cpu_s``, ``wait_share``, ``rounds``, ``checkpoint_share``, ``scheduling_share``, ``sharing``, the mean
    number of readers of a prepared sample, and ``accuracy``, the mean over members and repeats; ``accuracy_by_member``;
    ``wall_range_s``, and ``accuracy_range`` over the repeats, each with a seed common to all methods),
    ``speedup_vs_baseline``, ``speedup_vs_homogeneous``, ``speedup_vs_ray_tune``, ``speedup_vs_tensorsocket`` (method →
    median of the ratios within a repeat; the last two are empty without the rival) and ``preprocess_saving`` (method →
    baseline's processor time ÷ the method's). ``plan_gap_to_optimal``: the excess time of FLEET-G's plan over the best
    rounds, both from the measured rates. Raises TrainingError: a member failed."""
    repeats, samples, epochs = (1, 600, 2) if quick else (3, 4000, 3)
    progress("profiling", "", 0.0)
    began_s = time.perf_counter()
    rates = profile(data)
    profile_s = time.perf_counter() - began_s
    progress("profiling", "done", 1.0)
    found = measure(data, progress, rates=rates, repeats=repeats, samples=samples, epochs=epochs)
    return {"profile_s": profile_s, **found}


def profile(data: str) -> dict[str, list[float]]:
    """Return member → samples/s on 1 and 2 slots, as a training measures them by default."""
    with tempfile.TemporaryDirectory(prefix="uneven-fleet-") as folder:
        tried = ensemble(data, "preprocessing-light", tuple(WIDTHS), samples=128, epochs=1)
        options = Options(together=False)
        return fleet.train(tried, devices=SLOTS, directory=folder, options=options, progress=False).state.rates


def measure(
    data: str,
    progress: Progress,
    *,
    rates: dict[str, list[float]],
    repeats: int,
    samples: int,
    epochs: int,
    cases: tuple[str, ...] = tuple(CASES),
    methods: tuple[str, ...] | None = None,
) -> dict[str, Any]:
    """Measure all but the profile. "baseline", "homogeneous" and "fleet-g" must be among the methods; shared methods
    have as many preprocessors as the baseline has loader processes."""
    methods = methods or methods_here()
    found: dict[str, dict[str, list[dict[str, Any]]]] = {case: {name: [] for name in methods} for case in cases}
    for repeat, case, name in in_turns(progress, "training", range(repeats), cases, methods):
        order = list(WIDTHS)
        random.Random(repeat).shuffle(order)
        # Seeds are the repeats' numbers, the same for all methods.
        asked = ensemble(data, case, tuple(order), samples=samples, epochs=epochs, seed=repeat)
        found[case][name].append(_train(name, asked, {one: rates[one] for one in order}))
    return {
        "rates_per_s": rates,
        "slots": SLOTS,
        "repeats": repeats,
        "samples": samples,
        "epochs": epochs,
        "plan_gap_to_optimal": plan_gap(rates, samples, epochs),
        "cases": {case: _compare(each) for case, each in found.items()},
    }


def methods_here() -> tuple[str, ...]:
    """Return all methods without rivals that are not installed."""
    return tuple(name for name in METHODS if name not in RIVALS or find_spec(RIVALS[name][0]) is not None)


def plan_gap(rates: dict[str, list[float]], samples: int, epochs: int) -> float:
    """Return the excess time of FLEET-G's rounds over the best ones, as a share, without waiting for data."""
    known = Rates({name: row[:SLOTS] for name, row in rates.items()})
    work = EnsembleWork(known, dict.fromkeys(rates, epochs), samples, (tuple(range(SLOTS)),))
    planned = play(work, Planner(known, SLOTS, closeness=Options().closeness))
    return planned.wall_s / best_rounds_s(work) - 1.0


def _train(method: str, asked: fleet.Ensemble, rates: dict[str, list[float]]) -> dict[str, Any]:
    if method == "baseline":
        return baseline(asked, SLOTS)
    if method in RIVALS:
        return RIVALS[method][1](asked, SLOTS)
    options = Options(rates=rates, preprocessors=SLOTS, together=False)
    if method == "fleet-l":
        options = replace(options, paradigm=Paradigm.LOCAL)
    elif method == "together":  # it measures the rates in the training
        options = Options(preprocessors=SLOTS, together=True)
    elif method == "homogeneous":  # as if all were equally fast, in random order
        options = replace(options, rates={name: [1.0] for name in rates}, alpha=0.0)
    elif method == "sequential":  # so far apart that no two fit together
        apart = {name: [10.0**i * share for share in (1.0, 1.5)] for i, name in enumerate(rates)}
        options = replace(options, rates=apart, closeness=fleet.Closeness(delta_per_s=0.0))
    with tempfile.TemporaryDirectory(prefix="uneven-fleet-") as folder:
        began_s = time.perf_counter()
        result = fleet.train(asked, devices=SLOTS, directory=folder, options=options, progress=False)
        wall_s = time.perf_counter() - began_s
    bad = [row for row in result.table if row.status != "trained"]
    if bad:
        raise TrainingError(f"{method}: member {bad[0].name!r} failed: {bad[0].why}")
    epochs = [epoch for member in result.state.members.values() for epoch in member.epochs]
    busy_s = sum(epoch.train_s + epoch.validate_s for epoch in epochs)
    return figures(
        wall_s,
        {name: one.epochs[-1].metric for name, one in result.state.members.items()},
        preprocess_cpu_s=result.state.preprocess_cpu_s,
        wait_share=sum(epoch.waited_s for epoch in epochs) / busy_s,
        rounds=len(result.state.plan),
        checkpoint_share=sum(epoch.checkpoint_s for epoch in epochs) / (busy_s + 1e-9),
        scheduling_share=result.state.scheduling_s / wall_s,
        sharing=len(epochs) / result.state.passes,
    )


_FIGURES = ("wall_s", "preprocess_cpu_s", "wait_share", "rounds", "checkpoint_share", "scheduling_share", "sharing")


def _compare(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    methods: dict[str, Any] = {}
    for name, each in found.items():
        figures: dict[str, Any] = {key: statistics.median(one[key] for one in each) for key in _FIGURES}
        walls = [one["wall_s"] for one in each]
        figures["wall_range_s"] = [min(walls), max(walls)]
        means = [statistics.fmean(one["accuracy"].values()) for one in each]
        figures["accuracy"], figures["accuracy_range"] = statistics.fmean(means), [min(means), max(means)]
        figures["accuracy_by_member"] = {
            member: statistics.fmean(one["accuracy"][member] for one in each) for member in each[0]["accuracy"]
        }
        methods[name] = figures

    def times(over: str, figure: str) -> dict[str, float]:
        slow = [one[figure] for one in found.get(over, ())]
        if not slow:
            return {}
        return {
            name: statistics.median(a / one[figure] for a, one in zip(slow, each, strict=True))
            for name, each in found.items()
        }

    return {
        "methods": methods,
        **{
            f"speedup_vs_{name.replace('-', '_')}": times(name, "wall_s")
            for name in ("baseline", "homogeneous", *RIVALS)
        },
        "preprocess_saving": times("baseline", "preprocess_cpu_s"),
    }
