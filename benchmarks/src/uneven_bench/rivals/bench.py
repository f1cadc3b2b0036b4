"""``uneven bench rivals``: every rival and ours over described clusters, in virtual time.

The rules are those of a run; the figure is the oracle's time ÷ theirs for X samples, where the oracle knows the speeds
of every iteration in advance. The cost of decisions is left out; our reports are as rare as their budget, rivals see
every iteration free of charge. ``docs/ideas/rivals.md`` lists the gaps of each description.
"""

import statistics
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from uneven.policy.balance import balancers
from uneven_bench.balancers.rivals import RIVALS, Lbb
from uneven_bench.harness.data import job_times, machine_use
from uneven_bench.harness.show import Progress
from uneven_bench.rivals.cases import ITERATIONS, SETTLING, RivalCase, Table, cases
from uneven_bench.rivals.inside import accumulating, backup, flexrr
from uneven_bench.rivals.loops import RivalOutcome, foreseen, oracle, ours, profiles, rival
from uneven_bench.rivals.together import flicker, together

OURS = "lb-bsp"  # the arm named "ours": the default
LIMITS = ("oracle", "foreseen")
"""Limits instead of methods: a split that knows the next iteration, and one that knows it without the noise."""

CANDIDATES = ("lb-bsp", "numerical", "analytic")  # ours
LBB_AS_OURS = "lbb as ours"
"""The strongest rival with reports as rare and late as ours: its result within the same budget."""

HELD = (25, 5, 2)  # iterations that a flickering load stays
INSIDE = {"flexrr": flexrr, "backup": backup, "accumulate": accumulating}

GOOGLE_ROWS = (227, 79, 1467, 355, 700, 1593, 848, 1072)
"""Machines whose use varies most; those of the shipped description ``shared_cluster``."""


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """Play all, on recorded traces too if ``UNEVEN_DATA`` names their folder. Result: ``cases``: case → method →
    of_limit, iteration_s, waiting, lost, samples, best; ``best_rival`` and ``gain_over_best_rival`` and ``of_foreseen``
    (ours) by case; ``flicker``: recording → iterations that a load stays → arm → of_limit; ``ours``, ``seeds``,
    ``iterations``, ``settling``."""
    seeds = 1 if quick else 3
    recorded = recordings()
    played = [cases(recorded.get, seed) for seed in range(seeds)]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    steps = len(played[0]) * len(methods())
    for same in zip(*played, strict=True):
        name = same[0].name
        limits = [oracle(case) for case in same]
        known = [foreseen(case) for case in same]
        found[name] = {"oracle": summary(limits, limits), "foreseen": summary(known, limits)}
        for method, play in methods().items():
            progress("rivals", f"{name}: {method}", sum(len(rows) - 2 for rows in found.values()) / steps)
            found[name][method] = summary([play(case, seed) for seed, case in enumerate(same)], limits)
    leaders = {name: best_rival(rows) for name, rows in found.items()}
    gains = {name: rows[OURS]["of_limit"] / rows[leaders[name]]["of_limit"] for name, rows in found.items()}
    return {
        "cases": found,
        "ours": OURS,
        "best_rival": leaders,
        "gain_over_best_rival": gains,
        "of_foreseen": {name: rows[OURS]["of_limit"] / rows["foreseen"]["of_limit"] for name, rows in found.items()},
        "flicker": {name: flickering(use, seeds) for name, use in uses(recorded.get("use")).items()},
        "seeds": seeds,
        "iterations": ITERATIONS,
        "settling": SETTLING,
    }


def methods() -> dict[str, Callable[[RivalCase, int], RivalOutcome]]:
    """Return name → player of a case."""
    found: dict[str, Callable[[RivalCase, int], RivalOutcome]] = {
        "even": lambda case, _: ours(case, balancers.resolve("even")),
        "static": lambda case, _: ours(case, balancers.resolve("static")),
    }
    for name in RIVALS:
        found[name] = lambda case, seed, name=name: rival(case, name, seed)  # type: ignore[misc]
    found[LBB_AS_OURS] = lambda case, seed: ours(case, Lbb(profile=profiles(case, seed)))
    for name, play in INSIDE.items():
        found[name] = lambda case, _, play=play: play(case)  # type: ignore[misc]
    found["together"] = lambda case, _: together(case)
    for name in CANDIDATES:
        found[name] = lambda case, _, name=name: ours(case, balancers.resolve(name))  # type: ignore[misc]
    return found


def uses(google: Table | None) -> dict[str, Table]:
    """Return recordings of the use of machines, (records, machines)."""
    known = {"Google": google, "PlanetLab": machine_use("planetlab_cpu")}
    found = {name: use for name, use in known.items() if use is not None}
    return found or {"made up": np.clip(np.random.default_rng(0).beta(1.0, 4.0, (ITERATIONS, 32)), 0.0, 0.95)}


def flickering(use: Table, seeds: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for held in HELD:
        same = [flicker(use, held, seed) for seed in range(seeds)]
        limits = [oracle(case) for case in same]
        arms = {OURS: [ours(case, balancers.resolve(OURS)) for case in same], "together": [*map(together, same)]}
        found[str(held)] = {name: summary(each, limits)["of_limit"] for name, each in arms.items()}
    return found


def summary(outcomes: list[RivalOutcome], limits: list[RivalOutcome]) -> dict[str, Any]:
    """Return means over the seeds."""
    of_limit = [limit.batch_s / outcome.batch_s for limit, outcome in zip(limits, outcomes, strict=True)]
    rows = [asdict(outcome) for outcome in outcomes]
    means = {key: statistics.fmean(row[key] for row in rows) for key in ("iteration_s", "waiting", "lost", "samples")}
    settings = sorted({outcome.best for outcome in outcomes if outcome.best})
    return {"of_limit": statistics.fmean(of_limit), **means, "best": ", ".join(settings)}


def best_rival(rows: dict[str, dict[str, Any]]) -> str:
    """Return the rival that is nearest to the limit."""
    others = [name for name in rows if name not in (*CANDIDATES, "together", *LIMITS)]
    return max(others, key=lambda name: rows[name]["of_limit"])


def recordings() -> dict[str, Table]:
    """Return the recorded traces on this machine."""
    jobs, use = job_times(), machine_use("google2011_vm_cpu_mem")
    found = {} if jobs is None else {"jobs": jobs}
    return found if use is None else found | {"use": use[:, list(GOOGLE_ROWS)]}
