"""The command ``uneven search forecast RUN CLUSTER``: the duration of a recorded search on 1, 2, … nodes."""

import math
from pathlib import Path
from typing import Any

from uneven.cli import answer
from uneven.cluster import files
from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.errors import ConfigError
from uneven.journal.report.console import Console, columns
from uneven.journal.report.pure.text import count, percent, seconds
from uneven.search.pure.simulated_search import cheapest, counts, recorded
from uneven.search.warm_start import reopened


def show(run: Path, cluster: str, trials: int | None, form: answer.Form) -> None:
    """Print the duration of ``trials`` (by default as recorded) of a search on the fastest nodes, and the cheapest
    number of nodes."""
    earlier = reopened(run)
    record, speeds = recorded(earlier.events), sorted(speeds_of(files.load(cluster)), reverse=True)
    trials, terms = trials or len(earlier.core.trials), earlier.core.terms
    rows = [record.forecast(earlier.new_core(trials), speeds[:devices]) for devices in counts(len(speeds))]
    best_row, quickest = cheapest(rows), min(rows, key=lambda one: one.end_s)
    if form is answer.Form.JSON:
        shown: dict[str, Any] = {"run": run, "trials": trials, "metric": terms.metric}
        shown["rows"] = [{**answer.plain(row), "best": answer.plain(terms.sign * row.best)} for row in rows]
        answer.write({**shown, "cheapest": best_row.devices, "quickest": quickest.devices})
        return
    title = f"{trials} trials of {run} on {len(speeds)} nodes, in virtual time"
    headings = ("devices", "takes", "device-seconds", "used", "training", terms.metric)
    table = columns(headings, (), left=(), title=title)
    for row in rows:
        best = f"{terms.sign * row.best:.5g}" if math.isfinite(row.best) else "–"
        used, units = percent(row.used), f"{row.units:g}"
        table.add_row(str(row.devices), seconds(row.end_s), count(row.capacity_s), used, units, best)
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"Cheapest with {best_row.devices}: {count(best_row.capacity_s)} device-seconds, used or not, in "
        f"{seconds(best_row.end_s)}. Quickest with {quickest.devices}: {seconds(quickest.end_s)}.",
        soft_wrap=True,
    )


def speeds_of(spec: ClusterSpec) -> list[float]:
    """Return the speeds of a cluster's nodes at the start; 1 is one core, or the fastest node if nodes have costs.
    Raises ConfigError if no node has processor time."""
    work = spec.workload
    batch = max(1, work.global_batch // len(spec.nodes))
    core_s = work.overhead_core_s + work.per_sample_core_s * batch
    takes_s = [spec.cost(node).seconds(batch) for node in spec.nodes]
    one_s = min(takes_s) if any(node.cost is not None for node in spec.nodes) else core_s
    speeds = [one_s / each_s * node.available(0.0) for node, each_s in zip(spec.nodes, takes_s, strict=True)]
    if not any(speeds):
        raise ConfigError(f"{spec.name}: no node gives any processor time at the start")
    return [speed for speed in speeds if speed > 0]
