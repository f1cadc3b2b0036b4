"""The tables of ``uneven bench fleet-plan``, and its pictures of plans."""

from collections.abc import Mapping

from uneven.journal.report.page import Page
from uneven.journal.report.pure.figures import Span, gantt
from uneven_bench.fleet_plan.simulate import EnsembleWork, FleetOutcome

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
