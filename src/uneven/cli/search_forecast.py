"""``uneven plan CLUSTER --search RUN`` and ``uneven simulate CLUSTER --search RUN``: a recorded search on a cluster."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from uneven.errors import ConfigError
from uneven.report.console import Console
from uneven.report.text import count, percent, seconds
from uneven.search.earlier import EarlierSearch, reopened
from uneven.search.forecast import SearchForecast, SearchRecord, cheapest, counts, forecast, recorded
from uneven.search.placing import Placing

if TYPE_CHECKING:
    from uneven.cluster.spec import ClusterSpec


@dataclass(frozen=True, slots=True)
class _ForecastCase:
    """A recorded search and a cluster.

    Attributes:
        speeds: of the nodes, the fastest first.
    """

    earlier: EarlierSearch
    record: SearchRecord
    speeds: tuple[float, ...]
    trials: int

    def on(self, devices: int, placing: Placing = Placing.PLANNED) -> SearchForecast:
        """The search on so many nodes, the fastest ones."""
        core, speeds = self.earlier.new_core(self.trials), self.speeds[:devices]
        return forecast(speeds, self.record.play(core, speeds, placing))


def plan(cluster: str, run: Path | None, trials: int | None, as_json: bool) -> None:
    """Print how long the search takes on 1, 2, … nodes of a cluster, and with how many it is cheapest."""
    case = _case(cluster, run, trials)
    rows = [case.on(devices) for devices in counts(len(case.speeds))]
    best, quickest = cheapest(rows), min(rows, key=lambda one: one.end_s)
    console = Console(highlight=False)
    console.print(_table(rows, case, [str(row.devices) for row in rows], "devices"))
    cheap = f"{count(best.capacity_s)} device-seconds, used or not, in {seconds(best.end_s)}"
    quick = f"Quickest with {quickest.devices}: {seconds(quickest.end_s)}."
    console.print(f"Cheapest with {best.devices}: {cheap}. {quick}", soft_wrap=True)
    if as_json:
        found = {"cheapest": best.devices, "quickest": quickest.devices}
        print(json.dumps({**found, "rows": [_plain(row) for row in rows]}))


def simulate(cluster: str | None, run: Path | None, trials: int | None) -> None:
    """Print how long the search takes on all nodes of a cluster, under each way of placing trials."""
    case = _case(cluster, run, trials)
    rows = [case.on(len(case.speeds), placing) for placing in Placing]
    Console(highlight=False).print(_table(rows, case, [placing.value for placing in Placing], "placing"))


def _case(cluster: str | None, run: Path | None, trials: int | None) -> _ForecastCase:
    from uneven.cluster import files

    if cluster is None or run is None:
        raise ConfigError("--search RUN and --trials N go together with a CLUSTER: name it, and the recorded search")
    if trials is not None and trials < 1:
        raise ConfigError(f"--trials {trials}: give at least one")
    earlier = reopened(run)
    found = sorted(speeds_of(files.load(cluster)), reverse=True)
    return _ForecastCase(earlier, recorded(earlier.events), tuple(found), trials or len(earlier.core.trials))


def speeds_of(spec: ClusterSpec) -> list[float]:
    """How fast the nodes of a cluster are at the start; one core is 1, or the fastest node where they have costs.

    Raises:
        ConfigError: none of them gives anything.
    """
    work = spec.workload
    batch = max(1, work.global_batch // len(spec.nodes))
    core_s = work.overhead_core_s + work.per_sample_core_s * batch
    takes_s = [spec.cost(node).seconds(batch) for node in spec.nodes]
    one_s = min(takes_s) if any(node.cost is not None for node in spec.nodes) else core_s
    speeds = [one_s / each_s * node.available(0.0) for node, each_s in zip(spec.nodes, takes_s, strict=True)]
    if not any(speeds):
        raise ConfigError(f"{spec.name}: no node gives any processor time at the start")
    return [speed for speed in speeds if speed > 0]


def _table(rows: Sequence[SearchForecast], case: _ForecastCase, names: Sequence[str], what: str) -> Table:
    terms = case.earlier.core.terms
    title = f"{case.trials} trials of {case.earlier.directory} on {len(case.speeds)} nodes, in virtual time"
    table = Table(title=title, box=SIMPLE_HEAD)
    for place, column in enumerate((what, "takes", "device-seconds", "used", "training", terms.metric)):
        table.add_column(column, justify="left" if place == 0 else "right")
    for name, row in zip(names, rows, strict=True):
        best = f"{terms.sign * row.best:.5g}" if math.isfinite(row.best) else "–"
        table.add_row(name, seconds(row.end_s), count(row.capacity_s), percent(row.used), f"{row.units:g}", best)
    return table


def _plain(row: SearchForecast) -> dict[str, Any]:
    return {name: value if math.isfinite(value) else None for name, value in asdict(row).items()}
