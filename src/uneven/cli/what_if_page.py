"""The command ``uneven plan RUN --what-if``: a recorded run, simulated with one change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from uneven import journal
from uneven.cli import answer
from uneven.cli.simulate import recorded_costs
from uneven.cluster.pure.plan import played
from uneven.cluster.pure.plan.what_if import RecordedCase, parse
from uneven.cluster.pure.simulate import Scenario, described, recorded_shares, with_recorded_speeds
from uneven.errors import ConfigError
from uneven.journal import Iteration
from uneven.journal.report import html
from uneven.journal.report.console import Console
from uneven.journal.report.page import Page, PageTable
from uneven.journal.report.pure import draw
from uneven.journal.report.pure.draw import Figure, colour
from uneven.journal.report.pure.text import count, seconds
from uneven.policy.balance import balancers
from uneven.policy.core.records import LineRecord, Record, RunRecord
from uneven.policy.core.tables import located
from uneven.policy.sync import policies
from uneven.runtime.installed import need

AS_IT_WAS = "as it was"
_ITERATIONS_NOTE = (
    "Cut off if a single one takes far longer than the others. If workers do not step together: the time "
    "for the samples of a global batch."
)


@dataclass(frozen=True, slots=True)
class PlayedCase:
    """One simulated case."""

    words: str  # the change
    samples_per_s: float
    iteration_s: float
    durations_s: list[float]  # of its iterations


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A recorded run, and its simulations with changes."""

    name: str
    # measured_per_s, measured_s: samples per second and usual iteration of the recorded run. If workers take
    # independent steps, an iteration is a global batch of samples.
    measured_per_s: float
    measured_s: float
    durations_s: list[float]  # of its iterations
    played: tuple[PlayedCase, ...]  # first without a change

    @property
    def error(self) -> float:
        """The error of the simulation without a change: simulated ÷ measured throughput − 1."""
        return self.played[0].samples_per_s / self.measured_per_s - 1

    def gain(self, one: PlayedCase) -> float:
        """Return the gain in throughput, simulated against simulated, so that common errors cancel out."""
        return one.samples_per_s / self.played[0].samples_per_s


def plan(run: Path, changes: Sequence[str], seed: int, report: Path | None, form: answer.Form) -> None:
    """Simulate, print, and draw. Raises ConfigError for an invalid change, or a run with too few records."""
    if report is not None:
        need("report", "plotly")
    found = what_if(run, changes, seed)
    if report is not None:
        html.write_page(page(found), report)
    if form is answer.Form.JSON:
        answer.write(to_json(found))
        return
    show(found)
    if report is not None:
        print(f"report: {report}")


def what_if(run: Path, changes: Sequence[str], seed: int) -> WhatIf:
    """Simulate the recorded run without a change, and with each change separately."""
    made = [(text, parse(text)) for text in changes]
    records = list(journal.read(run).records())
    costs = recorded_costs(run, None)
    shares = recorded_shares(records)
    spec, exchange_s = with_recorded_speeds(described(costs), records, shares)
    spec = replace(spec, workload=_workload(spec.workload, records, changes))
    case = _recorded(spec, records, tuple(exchange_s.values()))
    iterations = list(journal.iterations(records))
    summary = journal.summarize(iterations)
    if not summary.iterations:
        raise ConfigError(f"{run}: no iteration of it has a duration: record a longer run")
    cases = [(AS_IT_WAS, case), *((text, change(case)) for text, change in made)]
    played = tuple(_play(words, one, costs.iterations, seed, one_processor=bool(shares)) for words, one in cases)
    return WhatIf(run.resolve().name, summary.mean_per_s, summary.iteration_s, _durations_s(iterations), played)


def _recorded(spec: Any, records: Sequence[Record], exchange_s: tuple[float, ...]) -> RecordedCase:
    settings = next((one.settings for one in records if isinstance(one, RunRecord) and one.rank == 0), {})
    balance, sync = str(settings.get("balance", "lb-bsp")), str(settings.get("sync", "bsp"))
    for registry, name in ((balancers, balance), (policies, sync)):
        try:
            registry.resolve(name)
        except ConfigError as error:
            raise ConfigError(f"the run used {name}, which cannot be simulated here: {error}") from error
    return RecordedCase(spec=spec, balance=balance, sync=sync, exchange_s=exchange_s)


def _workload(workload: Any, records: Sequence[Record], changes: Sequence[str]) -> Any:
    """Set the gradients' bytes as counted by the run."""
    lines = [one for one in records if isinstance(one, LineRecord) and one.line == "gradients" and one.rank == 0]
    exchanges = sum(one.exchanges for one in lines)
    if exchanges:
        return replace(workload, gradient_bytes=round(sum(one.sent_bytes for one in lines) / exchanges))
    if any("link" in text.lower() for text in changes):
        raise ConfigError("the run has not counted the bytes of its gradients, so no other link can be simulated")
    return workload


def _durations_s(iterations: Sequence[Iteration]) -> list[float]:
    return [one.whole_s for one in iterations if math.isfinite(one.whole_s)]


def _play(words: str, case: RecordedCase, iterations: int, seed: int, *, one_processor: bool) -> PlayedCase:
    scenario = Scenario(
        spec=case.spec,
        balancer=balancers.resolve(case.balance),
        policy=policies.resolve(case.sync),
        seed=seed,
        iterations=iterations,
        exchange_s=dict(enumerate(case.exchange_s)),
        one_processor=one_processor,
    )
    records = list[Record]()
    with located(words):
        figures = played(scenario, records.append)
    taken = journal.iterations(records)
    return PlayedCase(words, figures.samples_per_s, journal.summarize(taken).iteration_s, _durations_s(taken))


def show(found: WhatIf, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    table = _table(found)
    shown = Table(box=SIMPLE_HEAD)
    for place, name in enumerate(table.columns):
        shown.add_column(name, justify="right" if place else "left")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)
    for line in sentences(found):
        console.print(line)


def sentences(found: WhatIf) -> list[str]:
    said = [
        f"The simulated throughput is {abs(found.error):.1%} {'above' if found.error > 0 else 'below'} the recorded "
        f"one; gains compare simulations."
    ]
    for one in found.played[1:]:
        gain = found.gain(one)
        how = f"{gain:.2f} times as fast" if gain >= 1 else f"slower: {gain:.2f} of the throughput"
        said.append(f"{one.words}: {how}; expect {count(gain * found.measured_per_s)} samples/s.")
    return said


def _table(found: WhatIf) -> PageTable:
    rows = [("recorded", count(found.measured_per_s), seconds(found.measured_s), "")]
    for one in found.played:
        rows.append((one.words, count(one.samples_per_s), seconds(one.iteration_s), f"{found.gain(one):.2f} ×"))
    return PageTable(("run", "samples/s", "time per iteration", "gain"), rows)


def page(found: WhatIf) -> Page:
    made = Page(f"What if · {found.name}", " ".join(sentences(found)))
    made.table("Recorded, and simulated", _table(found))
    made.figure("Throughput", _bars(found), "Recorded, then simulated.")
    made.figure("Time per iteration", _lines(found), _ITERATIONS_NOTE)
    return made


def _bars(found: WhatIf) -> Figure:
    names = ["recorded", *(one.words for one in found.played)]
    values = [found.measured_per_s, *(one.samples_per_s for one in found.played)]
    tints = [colour(place, len(names)) for place in range(len(names))]
    bar = {
        "type": "bar",
        "orientation": "h",
        "x": [draw.rounded(one) for one in values],
        "y": [f"{one} " for one in names],
        "marker": {"color": tints},
        "hovertemplate": "%{x:.4g} samples/s<extra></extra>",
    }
    layout = draw.layout("", x_title="samples/s", height=110 + 34 * len(names)) | {"hovermode": "closest"}
    layout["yaxis"] |= {"autorange": "reversed", "type": "category"}
    return {"data": [bar], "layout": layout}


def _lines(found: WhatIf) -> Figure:
    series = [("recorded", found.durations_s), *((one.words, one.durations_s) for one in found.played)]
    scale, unit = draw.time_unit(found.measured_s)
    data, top = [], 0.0
    for place, (name, durations_s) in enumerate(series):
        y = [value * scale for value in durations_s]
        # The quantile, because one very long iteration would flatten all others.
        top = max(top, 1.3 * draw.quantile(y, 0.95))
        data.append(draw.line(list(map(float, range(1, len(y) + 1))), y, name, colour(place, len(series))))
    layout = draw.layout(f"{unit} per iteration", height=380)
    layout["yaxis"]["range"] = [0, top or 1]
    return {"data": data, "layout": layout}


def to_json(found: WhatIf) -> dict[str, Any]:
    return {
        "run": found.name,
        "measured_samples_per_s": found.measured_per_s,
        "measured_iteration_s": found.measured_s,
        "error": found.error,
        "what_if": [
            {
                "words": one.words,
                "samples_per_s": one.samples_per_s,
                "iteration_s": one.iteration_s,
                "gain": found.gain(one),
                "expected_per_s": found.gain(one) * found.measured_per_s,
            }
            for one in found.played
        ],
    }
