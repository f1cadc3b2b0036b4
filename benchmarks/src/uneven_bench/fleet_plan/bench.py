"""``uneven bench fleet-plan``: FLEET's planning and its rivals on simulated ensembles, and the time of planning.

Every method trains ensembles of 100 members like the paper's in virtual time on 20 … 160 devices; small ones are
compared with the best rounds. All figures but the seconds of planning are equal on every machine.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median_low
from typing import Any

from uneven.fleet.pure.planning.allocate import Closeness, Flotilla
from uneven.fleet.pure.planning.assign import assign_devices
from uneven.fleet.pure.planning.flotillas import FlotillaPlanner, Paradigm, Planner
from uneven.fleet.pure.planning.rates import Rates
from uneven.journal.report.page import Page
from uneven.journal.report.pure.figures import Span, gantt
from uneven_bench.fleet_plan.cases import (
    CHECKPOINT_S,
    DEVICES,
    KINDS,
    PAPER,
    PAPER_ROUNDS,
    PER_NODE,
    PROFILED,
    curve,
    ensemble,
    mistaken,
    profiled_rates,
)
from uneven_bench.fleet_plan.cases import single_rates as rates_alone
from uneven_bench.fleet_plan.densest import DensestPlanner
from uneven_bench.fleet_plan.learning import LearningPlanner
from uneven_bench.fleet_plan.optimal import best_rounds_s, least_wall_s
from uneven_bench.fleet_plan.rivals import Homogeneous, OneAfterAnother, OnePerDevice
from uneven_bench.fleet_plan.simulate import EnsembleWork, FleetOutcome, play
from uneven_bench.harness.figures import in_turns
from uneven_bench.harness.show import Progress

SMALL_MEMBERS, SMALL_DEVICES = 6, 6
LARGE = 1000
BAR_S = 1.0
DRAWN = 12, 8, 3  # members, devices and seed of the ensemble in the pictures
SHOWN = ("baseline", "homogeneous", "fleet-l", "fleet-g", "refill", "densest")
ERRORS = 0.0, 0.1, 0.3
"""The error of a wrong profile: each member's rates are off by one factor, log-normal with this deviation."""
RELATIVE = 0.2  # δ of ours, a share of the reference

METHODS: dict[str, Callable[[Rates, int, int], FlotillaPlanner]] = {
    "baseline": lambda rates, devices, seed: OnePerDevice(seed),
    "homogeneous": lambda rates, devices, seed: Homogeneous(seed),
    "sequential": lambda rates, devices, seed: OneAfterAnother(rates, devices),
    "fleet-l": lambda rates, devices, seed: Planner(rates, devices, Paradigm.LOCAL),
    "fleet-l-near": lambda rates, devices, seed: Planner(rates, devices, Paradigm.LOCAL, at_running_pace=True),
    "fleet-g": lambda rates, devices, seed: Planner(rates, devices),
    "fleet-g-printed": lambda rates, devices, seed: Planner(
        rates, devices, closeness=Closeness(least_gain=None, falling=True)
    ),
    "refill": lambda rates, devices, seed: Planner(
        rates, devices, Paradigm.REFILL, closeness=Closeness(delta_share=RELATIVE)
    ),
    "densest": lambda rates, devices, seed: DensestPlanner(rates, devices, Paradigm.REFILL),
}
"""Name → planner from the believed rates, the number of devices and a seed."""
NAMES = {
    "baseline": "one pipeline per member (Baseline)",
    "homogeneous": "one device each, shared (Homogeneous)",
    "sequential": "one after another, all devices",
    "fleet-l": "FLEET-L",
    "fleet-l-near": "FLEET-L, newcomers near the pace",
    "fleet-g": "FLEET-G",
    "fleet-g-printed": "FLEET-G as printed, falling rates too",
    "refill": "FLEET-G refilled, relative δ (ours)",
    "densest": "densest flotillas, refilled (ours)",
}
"""Method → its name in the pictures."""


def run(quick: bool, progress: Progress, report: Path | None = None) -> dict[str, Any]:
    """Play every method on every ensemble. ``report``: HTML file for pictures of plans for a small ensemble. Returns
    ``kinds``: kind → devices → method → ``wall_s``, ``rounds``, ``wait_share`` (waiting and idle devices),
    ``idle_share``, ``checkpoint_share``, ``scheduling_share``, ``prepared`` (epochs of samples), ``gap_to_bound``,
    ``speedup_vs_baseline``, ``speedup_vs_homogeneous`` and ``preprocess_saving``, medians over ``draws``;
    ``plan_gap_to_optimal``: method → excess time over the best rounds on small ensembles, ``median`` and ``worst``;
    ``greedy_gap``: the same of FLEET's flotillas when each runs to its end, the case that those rounds are best for;
    ``planning``: seconds for 1,000 members on 1,000 devices; ``about``: kind → description; ``paper``: devices →
    method → the paper's speed-up over Baseline, and ``rounds`` of FLEET-G."""
    devices, draws, small = ((20, 80), 1, 4) if quick else (DEVICES, 7, 40)
    kinds: dict[str, dict[str, dict[str, dict[str, float]]]] = {name: {} for name in KINDS}
    for name, count in in_turns(progress, "100 members", KINDS, devices):
        found = [_draw(name, count, seed) for seed in range(draws)]
        kinds[name][str(count)] = {
            method: {key: median_low([one[method][key] for one in found]) for key in found[0][method]}
            for method in METHODS
        }
    gaps, greedy = _small_gaps(small, progress)
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(_pictures())
    return {
        "kinds": kinds,
        "about": {name: kind.about for name, kind in KINDS.items()},
        "draws": draws,
        "checkpoint_s": CHECKPOINT_S,
        "plan_gap_to_optimal": {name: {"median": median_low(row), "worst": max(row)} for name, row in gaps.items()},
        "greedy_gap": {"median": median_low(greedy), "worst": max(greedy)},
        "small": {"members": SMALL_MEMBERS, "devices": SMALL_DEVICES, "ensembles": small},
        "profile_error": _profile_errors((80,) if quick else (20, 80, 160), draws, progress),
        "planning": plan_large(LARGE, LARGE),
        "paper": _paper(devices),
    }


def _paper(devices: Sequence[int]) -> dict[str, dict[str, float]]:
    printed = PAPER | {"rounds": PAPER_ROUNDS}
    return {str(count): {key: row[DEVICES.index(count)] for key, row in printed.items()} for count in devices}


class Timed:
    """A planner with a clock, which also counts the assignment of devices. ``took_s``: processor seconds so far."""

    def __init__(self, plans: FlotillaPlanner) -> None:
        self.plans = plans
        self.shared = plans.shared
        self.took_s = 0.0

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        start = time.process_time()
        found = self.plans.next_flotilla(waiting, free_devices, running)
        self.took_s += time.process_time() - start
        return found

    def assign(self, flotilla: Flotilla, nodes: Sequence[Sequence[int]]) -> dict[str, tuple[int, ...]]:
        start = time.process_time()
        found = assign_devices(flotilla, nodes)
        self.took_s += time.process_time() - start
        return found

    def round_ends(self, busy_devices: int) -> bool:
        return self.plans.round_ends(busy_devices)


def _draw(kind: str, devices: int, seed: int) -> dict[str, dict[str, float]]:
    """Return the figures of one ensemble under every method."""
    work, rates = ensemble(KINDS[kind], devices, seed)
    bound_s = least_wall_s(work)
    rows = {name: _row(work, Timed(make(rates, devices, seed)), bound_s) for name, make in METHODS.items()}
    base, homogeneous = rows["baseline"], rows["homogeneous"]
    for row in rows.values():
        row["speedup_vs_baseline"] = base["wall_s"] / row["wall_s"]
        row["speedup_vs_homogeneous"] = homogeneous["wall_s"] / row["wall_s"]
        row["preprocess_saving"] = base["prepared"] / row["prepared"]
    return rows


def _row(work: EnsembleWork, plans: Timed, bound_s: float) -> dict[str, float]:
    found: FleetOutcome = play(work, plans, plans.assign)
    return {
        "wall_s": found.wall_s,
        "rounds": found.rounds,
        "wait_share": found.wait_share + found.idle_share,
        "idle_share": found.idle_share,
        "checkpoint_share": found.checkpoint_share,
        "scheduling_share": plans.took_s / found.wall_s,
        "prepared": found.prepared,
        "gap_to_bound": found.wall_s / bound_s - 1,
    }


def _pictures() -> str:
    """Return one offline HTML file with the devices of each member over time under some methods, on one axis."""
    members, devices, seed = DRAWN
    work, rates = ensemble(KINDS["paper"], devices, seed, members)
    outcomes = {name: play(work, METHODS[name](rates, devices, seed)) for name in SHOWN}
    page = Page(
        f"{members} members on {devices} devices",
        "A bar is a member on a device; the dark part of its height is the share of the time in which the device "
        "computes, the pale one waits for the shared stream. Simulated.",
    )
    end_s = max(outcome.wall_s for outcome in outcomes.values())
    for name, outcome in outcomes.items():
        spans = [Span(bar.member, bar.devices, bar.start_s, bar.end_s, bar.computed) for bar in outcome.bars]
        unused = outcome.wait_share + outcome.idle_share
        note = f"{outcome.wall_s:,.0f} s; devices wait or idle {unused:.0%} of the time."
        page.figure(NAMES[name], gantt(spans, devices, end_s), note)
    return page.html()


def _small_gaps(ensembles: int, progress: Progress) -> tuple[dict[str, list[float]], list[float]]:
    """Return each method's excess time over the best rounds; and that of FLEET's flotillas when each runs to its end.
    Checkpoints are free, as in the paper's objective, and all rates are known."""
    gaps: dict[str, list[float]] = {name: [] for name in METHODS}
    greedy = []
    for seed in range(ensembles):
        progress("small ensembles", f"{seed + 1} of {ensembles}", seed / ensembles)
        drawn, rates = ensemble(KINDS["paper"], SMALL_DEVICES, seed, SMALL_MEMBERS)
        work = EnsembleWork(drawn.rates, drawn.epochs, drawn.samples, drawn.nodes)
        best_s = best_rounds_s(work)
        for name, make in METHODS.items():
            gaps[name].append(play(work, make(rates, SMALL_DEVICES, seed)).wall_s / best_s - 1)
        greedy.append(play(work, Planner(rates, SMALL_DEVICES, alpha=0.0)).wall_s / best_s - 1)
    progress("small ensembles", "done", 1.0)
    return gaps, greedy


def _profile_errors(devices: Sequence[int], draws: int, progress: Progress) -> dict[str, dict[str, dict[str, float]]]:
    """Return the cost of a wrong profile for FLEET-G, and the rest of it with a learning planner."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for done, error in enumerate(ERRORS):
        progress("wrong profiles", f"{error:.0%}", done / len(ERRORS))
        found[f"{error:g}"] = {}
        for count in devices:
            rows = [_profile_error(error, count, seed) for seed in range(draws)]
            found[f"{error:g}"][str(count)] = {key: median_low([row[key] for row in rows]) for key in rows[0]}
    progress("wrong profiles", "done", 1.0)
    return found


def _profile_error(error: float, devices: int, seed: int) -> dict[str, float]:
    work, rates = ensemble(KINDS["paper"], devices, seed)
    wrong = mistaken(rates, error, seed)
    learner = LearningPlanner(Planner(wrong, devices), profiled=PROFILED)
    true_s = play(work, Planner(work.rates, devices)).wall_s
    return {
        "once": play(work, Planner(wrong, devices)).wall_s / true_s - 1,
        "learning": play(work, learner, told=learner.observe).wall_s / true_s - 1,
    }


def plan_large(members: int, devices: int) -> dict[str, float]:
    """Return processor seconds of planning: from measured rates to devices for a first flotilla, by both rules."""
    alone = rates_alone(members)
    true = {f"m{place}": curve(rate, 16) for place, rate in enumerate(alone)}
    reach = min(16, math.ceil(max(alone) / min(alone)))
    start = time.process_time()
    planner = Planner(profiled_rates({name: row[:reach] for name, row in true.items()}, devices), devices)
    extrapolated = time.process_time()
    flotilla = planner.next_flotilla(planner.rates.members, devices, Flotilla())
    planned = time.process_time()
    densest = DensestPlanner(planner.rates, devices).next_flotilla(planner.rates.members, devices, Flotilla())
    chosen = time.process_time()
    assign_devices(flotilla, [range(first, first + PER_NODE) for first in range(0, devices, PER_NODE)])
    assigned = time.process_time()
    return {
        "members": members,
        "devices": devices,
        "rates_s": extrapolated - start,
        "flotilla_s": planned - extrapolated,
        "densest_s": chosen - planned,
        "assign_s": assigned - chosen,
        "total_s": assigned - start,
        "bar_s": BAR_S,
        "in_flotilla": len(flotilla.members),
        "in_densest": len(densest.members),
    }
