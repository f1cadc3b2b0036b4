"""The tables of ``uneven bench fleet-plan``, and its pictures of plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from uneven.journal.report.page import Page
from uneven.journal.report.pure.figures import Span, gantt
from uneven_bench.fleet_plan.cases import DEVICES, PAPER, PAPER_ROUNDS
from uneven_bench.fleet_plan.simulate import EnsembleWork, FleetOutcome
from uneven_bench.harness.show import table_of

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
"""Method → its name in the tables."""


def tables(result: dict[str, Any]) -> list[Table]:
    kinds = result["kinds"]
    speeds = [_speeds(name, rows, result) for name, rows in kinds.items()]
    return [
        *speeds,
        _shares(kinds["paper"]),
        _small(result),
        _errors(result["profile_error"]),
        _planning(result["planning"]),
    ]


def plan_page(work: EnsembleWork, outcomes: Mapping[str, FleetOutcome]) -> str:
    """Return one offline HTML file with the devices of each member over time; method → outcome, on one axis."""
    page = Page(
        f"{len(work.epochs)} members on {work.devices} devices",
        "A bar is a member on a device; the dark part of its height is the share of the time in which the device "
        "computes, the pale one waits for the shared stream. Simulated.",
    )
    end_s = max(outcome.wall_s for outcome in outcomes.values())
    for name, outcome in outcomes.items():
        spans = [Span(bar.member, bar.devices, bar.start_s, bar.end_s, bar.computed) for bar in outcome.bars]
        unused = outcome.wait_share + outcome.idle_share
        note = f"{outcome.wall_s:,.0f} s; devices wait or idle {unused:.0%} of the time."
        page.figure(NAMES[name], gantt(spans, work.devices, end_s), note)
    return page.html()


def _speeds(kind: str, rows: dict[str, Any], result: dict[str, Any]) -> Table:
    title = f"{kind}: {result['about'][kind]};\nspeed-up over Baseline, median of {result['draws']} ensemble(s) of 100"
    table = table_of(title, ("devices", *rows))
    walls = (f"{row['baseline']['wall_s'] / 1000:.1f}" for row in rows.values())
    table.add_row("Baseline, 1000 s", *walls, style="dim")
    for name in NAMES:
        if name != "baseline":
            table.add_row(NAMES[name], *(f"{row[name]['speedup_vs_baseline']:.2f}" for row in rows.values()))
    table.add_row("bound", *(f"{_bound(row):.2f}" for row in rows.values()), style="dim")
    table.add_row(
        "FLEET-G over Homogeneous", *(f"{row['fleet-g']['speedup_vs_homogeneous']:.2f}" for row in rows.values())
    )
    if kind == "paper":
        for name, printed in PAPER.items():
            told = dict(zip(DEVICES, printed, strict=True))
            table.add_row(f"the paper's {_short(name)}", *(f"{told[int(d)]:.2f}" for d in rows), style="dim")
    else:
        saved = (f"{row['fleet-g']['preprocess_saving']:.1f}" for row in rows.values())
        table.add_row("FLEET-G prepares fewer samples, by", *saved)
    return table


def _bound(row: dict[str, Any]) -> float:
    """Return the upper bound of a speed-up over Baseline."""
    return float(1 + row["baseline"]["gap_to_bound"])


def _short(name: str) -> str:
    return {"homogeneous": "Homogeneous", "fleet-l": "FLEET-L", "fleet-g": "FLEET-G"}[name]


def _shares(rows: dict[str, Any]) -> Table:
    table = table_of("paper: where FLEET-G's device-seconds go", ("devices", *rows))
    own = [row["fleet-g"] for row in rows.values()]
    told = dict(zip(DEVICES, PAPER_ROUNDS, strict=True))
    table.add_row("rounds", *(f"{one['rounds']:.0f}" for one in own))
    table.add_row("the paper's rounds", *(f"{told[int(devices)]}" for devices in rows), style="dim")
    for words, key in (
        ("waiting or idle", "wait_share"),
        ("of these idle", "idle_share"),
        ("checkpoints", "checkpoint_share"),
    ):
        table.add_row(words, *(f"{one[key]:.1%}" for one in own))
    table.add_row("planning", *(f"{one['scheduling_share']:.5%}" for one in own))
    other = (("homogeneous", "Homogeneous"), ("fleet-l", "FLEET-L"), ("refill", "refilled"), ("densest", "densest"))
    for name, words in other:
        table.add_row(
            f"waiting or idle, {words}", *(f"{row[name]['wait_share']:.1%}" for row in rows.values()), style="dim"
        )
    return table


def _small(result: dict[str, Any]) -> Table:
    small = result["small"]
    title = (
        f"{small['ensembles']} ensembles of {small['members']} members on {small['devices']} devices:\n"
        f"longer than the best rounds, whose members run to their end"
    )
    table = table_of(title, ("", "median", "worst"))
    for name, gap in result["plan_gap_to_optimal"].items():
        table.add_row(NAMES[name], f"{gap['median']:.1%}", f"{gap['worst']:.1%}")
    gap = result["greedy_gap"]
    table.add_row("FLEET's flotillas, each to its end", f"{gap['median']:.1%}", f"{gap['worst']:.1%}")
    return table


def _errors(errors: dict[str, Any]) -> Table:
    columns = ("devices", *next(iter(errors.values())))
    table = table_of("paper: how much longer FLEET-G takes when its profile is off", columns)
    for error, rows in errors.items():
        table.add_row(f"off by {float(error):.0%}, profiled once", *(f"{row['once']:+.1%}" for row in rows.values()))
        learnt = (f"{row['learning']:+.1%}" for row in rows.values())
        table.add_row("  the same, running members believed (ours)", *learnt)
    return table


def _planning(planning: dict[str, Any]) -> Table:
    members, devices = f"{planning['members']:,}", f"{planning['devices']:,}"
    title = f"Planning {members} members on {devices} devices; the bar is {planning['bar_s']:g} s"
    table = table_of(title, ("", "s"))
    rows = (
        ("rates beyond the profile", "rates_s"),
        ("flotilla", "flotilla_s"),
        ("densest flotilla (ours)", "densest_s"),
        ("devices", "assign_s"),
        ("all", "total_s"),
    )
    for words, key in rows:
        table.add_row(words, f"{planning[key]:.3f}")
    return table
