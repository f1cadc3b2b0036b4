"""``uneven bench flicker``: load that changes faster than forecasts can follow, in virtual time."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
from rich.table import Table as Shown

from uneven.policy.balance import balancers
from uneven_bench.flicker.play import flicker, together
from uneven_bench.harness.data import machine_use
from uneven_bench.harness.show import Progress, table_of
from uneven_bench.rivals.bench import recordings
from uneven_bench.rivals.cases import ITERATIONS, Table, cases
from uneven_bench.rivals.loops import RivalOutcome, oracle, ours

HELD = (25, 5, 2)


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """Play all cases. Result: ``flicker``: recording → iterations that a load stays → arm → share of the limit, which
    knows each iteration's load before; ``rivals``: the cases of ``uneven bench rivals`` the same way. Means over
    ``seeds``."""
    seeds = 2 if quick else 5
    found: dict[str, Any] = {"seeds": seeds, "flicker": {}, "rivals": {}}
    recorded = recordings()
    uses = _uses(recorded.get("use"))
    for number, (name, use) in enumerate(uses.items()):
        progress("playing", name, number / (len(uses) + 1))
        found["flicker"][name] = {
            str(held): _means([_parts(flicker(use, held, seed)) for seed in range(seeds)]) for held in HELD
        }
    progress("playing", "the cases of rivals", len(uses) / (len(uses) + 1))
    played = [cases(recorded.get, seed) for seed in range(seeds)]
    for same in zip(*played, strict=True):
        found["rivals"][same[0].name] = _means([_parts(case) for case in same])
    progress("playing", "done", 1.0)
    return found


def _uses(google: Table | None) -> dict[str, Table]:
    """Return recordings of the use of machines, (records, machines)."""
    found = {"Google": google} if google is not None else {}
    if (planetlab := machine_use("planetlab_cpu")) is not None:
        found["PlanetLab"] = planetlab
    if not found:
        rng = np.random.default_rng(0)
        found["made up"] = np.clip(rng.beta(1.0, 4.0, (ITERATIONS, 32)), 0.0, 0.95)
    return found


def _parts(case: Any) -> dict[str, float]:
    arms: dict[str, RivalOutcome] = {"lb-bsp": ours(case, balancers.resolve("lb-bsp")), "together": together(case)}
    limit_s = oracle(case).iteration_s
    return {name: limit_s / one.iteration_s for name, one in arms.items()}


def _means(each: list[dict[str, float]]) -> dict[str, float]:
    return {arm: statistics.fmean(one[arm] for one in each) for arm in each[0]}


def tables(result: dict[str, Any]) -> list[Shown]:
    played = [
        (name, f"{held} iterations", arms) for name, rows in result["flicker"].items() for held, arms in rows.items()
    ]
    played += [(name, "", arms) for name, arms in result["rivals"].items()]
    rows = [(name, held, *(f"{arms[arm]:.3f}" for arm in ("lb-bsp", "together"))) for name, held, arms in played]
    title = f"Part of the limit, mean of {result['seeds']} seeds; virtual time"
    return [table_of(title, ("load", "changes every", "lb-bsp", "together"), rows)]
