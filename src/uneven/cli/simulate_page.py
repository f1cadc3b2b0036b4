"""The output of ``uneven simulate``: how each node spends its time, and the result."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table

from uneven.cli import answer, learning
from uneven.cluster.pure.plan import preconditioning
from uneven.journal.report.console import Console, columns
from uneven.journal.report.pure.text import count, percent, seconds, span

if TYPE_CHECKING:
    from uneven.cluster.pure.simulate import Outcome, Scenario, TableOutcome
    from uneven.cluster.virtual import Goal, Learnt

_ROWS = 40


class FinishedSimulation(NamedTuple):
    """The result of a simulation."""

    outcome: "Outcome"
    learnt: "Learnt | None"
    took_s: float  # wall time
    goodput: float | None = None  # used part of the available capacity, 0 … 1; None without changes of membership


def show(scenario: "Scenario", played: FinishedSimulation, goal: "Goal | None") -> None:
    Console().print(_table(scenario, played.outcome))
    shown = _lines(scenario, played)
    if played.learnt is not None:
        shown += learning.lines(played.learnt, goal, scenario.spec.workload.global_batch)
    _print(shown)


def as_json(
    scenario: "Scenario", played: FinishedSimulation, plain: FinishedSimulation | None, directory: Path | None
) -> dict[str, Any]:
    """Return the result; ``even_bsp`` is that of even shares under bsp, if it was asked for."""
    shown: dict[str, Any] = {
        "cluster": scenario.spec.name,
        "balance": scenario.balance,
        "sync": scenario.sync,
        "run_dir": directory,
        **_figures(played),
    }
    if plain is not None:
        shown |= {"even_bsp": _figures(plain)}
    return shown


def _figures(played: FinishedSimulation) -> dict[str, Any]:
    shown = {**answer.plain(played.outcome), "goodput": played.goodput, "took_s": played.took_s}
    if played.learnt is not None:
        names = ("points", "reached", "diverged")
        shown |= {name: getattr(played.learnt, name) for name in names}
    return shown


def compare(played: FinishedSimulation, plain: FinishedSimulation) -> None:
    outcome, base = played.outcome, plain.outcome
    shown = [
        f"even shares under bsp: {seconds(base.iteration_s)} per iteration, {count(base.samples_per_s)} samples/s; "
        f"speed-up {outcome.samples_per_s / base.samples_per_s:.2f} ×"
    ]
    own, other = (one.learnt.reached if one.learnt is not None else None for one in (played, plain))
    if own is not None and other is not None:
        shown.append(
            f"even shares under bsp reach that accuracy after {seconds(other.at_s)}: "
            f"speed-up {other.at_s / own.at_s:.2f} × to the goal"
        )
    _print(shown)


def _print(lines: list[str]) -> None:
    console = Console()
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _table(scenario: "Scenario", outcome: "Outcome") -> Table:
    headings = ("node", "steps", "samples", "compute", "wait", "communicate", "until")
    table = columns(headings, (), title=f"{scenario.spec.name}, simulated", title_justify="left")
    for worker in outcome.workers[:_ROWS]:
        table.add_row(
            worker.node,
            count(worker.steps),
            count(worker.samples),
            percent(worker.compute_share),
            percent(worker.wait_share),
            percent(worker.communicate_share),
            span(worker.ended_at_s),
        )
    if len(outcome.workers) > _ROWS:
        table.add_row(f"… and {len(outcome.workers) - _ROWS} more", *[""] * 6)
    return table


def _tables(found: "TableOutcome") -> str:
    servers = f"{found.servers} table server{'s' if found.servers > 1 else ''}"
    batches = f"{found.ahead} batch{'' if found.ahead == 1 else 'es'} ahead"
    return (
        f"{servers}, {batches}: trainers waited for rows {percent(found.rows_wait_share)} of their time; servers' "
        f"processors were busy {percent(found.processor_share)}, their links {percent(found.link_share)}, "
        f"trainers' links {percent(found.trainer_link_share)}; the limit is {found.limit}"
    )


def _lines(scenario: "Scenario", played: FinishedSimulation) -> list[str]:
    outcome = played.outcome
    what = f"{scenario.balance} under {scenario.sync}"
    return [
        f"{what}: {seconds(outcome.iteration_s)} per iteration (90 % within {seconds(outcome.p90_s)}), "
        f"{count(outcome.samples_per_s)} samples/s, waiting {percent(outcome.wait_share)}",
        f"{span(outcome.ended_at_s)} of training simulated in {seconds(played.took_s)} "
        f"({count(outcome.happened / played.took_s)} events/s)",
        *_cut_short(scenario, played),
        *([] if not outcome.own else [preconditioning(scenario.spec, outcome.own)]),
        *([] if outcome.tables is None else [_tables(outcome.tables)]),
        *([] if played.goodput is None else [f"{percent(played.goodput)} of the capacity of present workers was used"]),
    ]


def _cut_short(scenario: "Scenario", played: FinishedSimulation) -> list[str]:
    """Return a note if the last worker has left before the end; the other lines cover the iterations until then."""
    if played.outcome.iterations >= scenario.iterations or (played.learnt is not None and played.learnt.reached):
        return []
    over = f"{count(played.outcome.iterations)} of {count(scenario.iterations)} iterations"
    return [f"Ended after {over}: no worker was left"]
