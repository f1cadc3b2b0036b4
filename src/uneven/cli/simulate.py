"""``uneven simulate``: play a described cluster in virtual time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from uneven.cli.learning import Lesson
    from uneven.cluster.spec import ClusterSpec
    from uneven.simulate import Outcome, RecordedCosts, Scenario, Sink
    from uneven.virtual import Learnt

_PLAN = "What is played"
_LEARN = "What is learnt"
_OUTPUT = "What comes out"

_JOURNAL_UP_TO = 1_000
"""Nodes up to which a journal is written without being asked for."""

_ROWS = 40


def command(
    cluster: Annotated[
        str | None,
        typer.Argument(
            metavar="[CLUSTER]",
            help="A TOML file, or the name of one that comes with uneven: demo4. May be left out with --costs.",
            show_default=False,
        ),
    ] = None,
    balance: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel=_PLAN, help="Balancer, for instance even or lb-bsp.")
    ] = "lb-bsp",
    sync: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel=_PLAN, help="Synchronisation, for instance bsp or ssp.")
    ] = "bsp",
    iterations: Annotated[int, typer.Option(rich_help_panel=_PLAN, help="Steps of each worker.")] = 200,
    seed: Annotated[int, typer.Option(rich_help_panel=_PLAN, help="Decides the jitter.")] = 0,
    lookahead: Annotated[
        int, typer.Option(rich_help_panel=_PLAN, help="Batches that the loaders draw ahead; a split is late by them.")
    ] = 0,
    costs: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            rich_help_panel=_PLAN,
            help="Take the workers' costs from this recorded run.",
            show_default=False,
        ),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            rich_help_panel=_LEARN,
            help="Train for real, in virtual time: digits, or fashion where UNEVEN_DATA has it.",
            show_default=False,
        ),
    ] = None,
    until_accuracy: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            rich_help_panel=_LEARN,
            help="With --train: end at this accuracy, for instance 0.9, and say when that was.",
            show_default=False,
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", rich_help_panel=_OUTPUT, help="Play even shares under bsp too: the speed-up.")
    ] = False,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", rich_help_panel=_OUTPUT, help="Journal. [default: runs/TIME-CLUSTER]"),
    ] = None,
    no_journal: Annotated[
        bool, typer.Option("--no-journal", rich_help_panel=_OUTPUT, help="Write nothing, only show the table.")
    ] = False,
) -> None:
    """Play CLUSTER in virtual time: same balancers, same policies, same journal as a real run, and no machine.

    Every node computes for as long as its cost says, slower while its share of processor time is small; transfers
    share links fairly; events happen. The same command gives the same journal, byte for byte. What it cannot know
    stands in docs/how-to/simulate.md.

    With --train the gradients are real and applied in the order of virtual time, so staleness has its true effect.
    A task takes options: digits:hidden=0,learning_rate=0.2,momentum=0.9 (hidden 0 is softmax regression).

    \b
    Examples:
      uneven simulate demo4 --compare
      uneven simulate cluster.toml --balance even --sync ssp:staleness=3
      uneven simulate --costs runs/NAME --balance even     a recorded run, played again another way
      uneven simulate lb_bsp_gpu16 --iterations 1000 --no-journal
      uneven simulate lb_bsp_cpu32 --train digits --until-accuracy 0.9 --sync local:every=8
    """
    from rich.console import Console

    from uneven.cli import learning
    from uneven.sync.fits import compatible

    lesson = learning.lesson(train, until_accuracy, "--until-accuracy")
    scenario = _scenario(cluster, balance, sync, iterations, seed, lookahead, costs)
    reason = compatible(sync, balance)
    if reason:
        print(f"uneven: {reason}", file=sys.stderr)
    directory = _directory(scenario, run_dir, no_journal)
    outcome, learnt, took_s = _play(scenario, directory, lesson)
    console = Console()
    console.print(_table(scenario, outcome))
    told = _lines(scenario, outcome, took_s)
    if learnt is not None:
        told += learning.lines(learnt, lesson.goal, scenario.spec.workload.global_batch)
    if compare:
        told += _comparison(scenario, outcome, lesson, learnt)
    for line in told:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if directory is not None:
        print(f"run directory: {directory} (see `uneven report {directory}` and `uneven watch {directory}`)")


def _scenario(
    cluster: str | None, balance: str, sync: str, iterations: int, seed: int, lookahead: int, costs: Path | None
) -> Scenario:
    import uneven
    from uneven.balance import balancers
    from uneven.cluster import files
    from uneven.errors import ConfigError
    from uneven.simulate import Scenario, described, with_costs
    from uneven.sync import policies

    if cluster is None and costs is None:
        raise ConfigError(
            f"name a cluster: a TOML file, or one of {', '.join(files.shipped())}; or a recorded run with --costs RUN"
        )
    spec = files.load(cluster) if cluster is not None else None
    exchange_s: dict[int, float] = {}
    if costs is not None:
        learnt = recorded_costs(costs, spec)
        if spec is None:
            spec, exchange_s = described(learnt), dict(enumerate(learnt.exchange_s))
        else:
            spec, exchange_s = with_costs(spec, learnt)
    assert spec is not None
    return Scenario(
        spec=spec,
        balancer=balancers.resolve(balance),
        policy=policies.resolve(sync),
        iterations=iterations,
        seed=seed,
        lookahead=lookahead,
        exchange_s=exchange_s,
        balance=balance,
        sync=sync,
        versions={"uneven": uneven.__version__},
    )


def recorded_costs(run: Path, spec: ClusterSpec | None) -> RecordedCosts:
    """What a run directory says about its workers' costs; the cluster helps where the run cannot tell."""
    from uneven import journal
    from uneven.simulate import costs_from_journal

    fixed_s = {}
    for rank, node in enumerate(spec.nodes if spec is not None else ()):
        part = node.available(0.0)  # the run took so much longer as it was not all there
        fixed_s[rank] = spec.cost(node).seconds(0) / part if spec is not None and part > 0 else 0.0
    return costs_from_journal(journal.read(run).records(), fixed_s)


def _directory(scenario: Scenario, asked: Path | None, no_journal: bool) -> Path | None:
    from uneven import rundir

    if no_journal:
        return None
    size = len(scenario.spec.nodes)
    if asked is None and size > _JOURNAL_UP_TO:
        print(f"uneven: {size} nodes: no journal is written unless --run-dir names a place for it", file=sys.stderr)
        return None
    return asked or rundir.new_path(scenario.spec.name, datetime.now())


def _play(
    scenario: Scenario, directory: Path | None, lesson: Lesson
) -> tuple[Outcome, Learnt | None, float]:
    """Play it; what it came to, what was learnt, and how long that took, seconds."""
    from uneven import rundir
    from uneven.cluster.write import to_toml
    from uneven.journal import ManyWriters

    if directory is None:
        return _timed(scenario, lesson, None)
    said = {"balance": scenario.balance, "sync": scenario.sync, "seed": scenario.seed}
    rundir.create(directory, {rundir.COMMAND_LINE: said})
    (directory / "cluster.toml").write_text(to_toml(scenario.spec), encoding="utf-8")
    with ManyWriters(directory) as journal:
        return _timed(scenario, lesson, journal.write)


def _timed(scenario: Scenario, lesson: Lesson, sink: Sink | None) -> tuple[Outcome, Learnt | None, float]:
    from uneven.simulate import simulate

    with _bar(scenario.iterations) as progress:
        started_s = perf_counter()
        if lesson.task is None:
            return simulate(scenario, sink, progress=progress), None, perf_counter() - started_s
        from uneven.virtual import train

        learnt = train(scenario, lesson.task, sink, goal=lesson.goal, progress=progress)
        return learnt.outcome, learnt, perf_counter() - started_s


@contextmanager
def _bar(iterations: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on the terminal; it is moved about twenty times a second at most."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("simulated"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar, shown_s = bars.add_task("", total=iterations), 0.0

        def progress(done: int) -> None:
            nonlocal shown_s
            if perf_counter() - shown_s > 0.05:
                shown_s = perf_counter()
                bars.update(bar, completed=min(done, iterations))

        yield progress


def _table(scenario: Scenario, outcome: Outcome) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from uneven.report.text import count, percent, span

    table = Table(box=SIMPLE_HEAD, title=f"{scenario.spec.name}, simulated", title_justify="left")
    table.add_column("node")
    for name in ("steps", "samples", "compute", "wait", "communicate", "until"):
        table.add_column(name, justify="right")
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


def _lines(scenario: Scenario, outcome: Outcome, took_s: float) -> list[str]:
    from uneven.report.text import count, percent, seconds, span

    what = f"{scenario.balance} under {scenario.sync}"
    return [
        f"{what}: {seconds(outcome.iteration_s)} per iteration (90 % within {seconds(outcome.p90_s)}), "
        f"{count(outcome.samples_per_s)} samples/s, waiting {percent(outcome.wait_share)}",
        f"{span(outcome.ended_at_s)} of training simulated in {seconds(took_s)} "
        f"({count(outcome.happened / took_s)} events/s)",
    ]


def _comparison(scenario: Scenario, outcome: Outcome, lesson: Lesson, learnt: Learnt | None) -> list[str]:
    from uneven.balance import Even
    from uneven.report.text import count, seconds
    from uneven.sync import BSP

    plain, taught, _ = _timed(replace(scenario, balancer=Even(), policy=BSP()), lesson, None)
    told = [
        f"even shares under bsp: {seconds(plain.iteration_s)} per iteration, {count(plain.samples_per_s)} samples/s; "
        f"speed-up {outcome.samples_per_s / plain.samples_per_s:.2f} ×"
    ]
    if learnt is not None and taught is not None and learnt.reached is not None and taught.reached is not None:
        told.append(
            f"even shares under bsp reach that accuracy after {seconds(taught.reached.at_s)}: "
            f"speed-up {taught.reached.at_s / learnt.reached.at_s:.2f} × to the goal"
        )
    return told
