"""The command ``uneven simulate``: simulate a described cluster in virtual time."""

import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

from uneven.cli import answer, complete, options
from uneven.cli.help import BALANCERS, POLICIES, first
from uneven.cli.options import argument, option, played, switch
from uneven.errors import ConfigError, access
from uneven.policy.core.printable import printable

if TYPE_CHECKING:
    from uneven.cli.learning import LearningGoal
    from uneven.cli.simulate_page import FinishedSimulation
    from uneven.cluster.pure.describe.spec import ClusterSpec
    from uneven.cluster.pure.simulate import RecordedCosts, Scenario, Sink
    from uneven.policy.core.records import Record

_LEARN = "Training a real model"

_JOURNAL_UP_TO = 1_000  # the number of nodes up to which a journal is written by default


@first(
    *("--balance", "--sync", "--iterations", "--seed", "--costs"),
    *("--train", "--accuracy", "--compare", "--run-dir", "--format"),
)
def command(
    cluster: Annotated[
        str | None,
        argument("[CLUSTER]", f"{options.DESCRIBED} Optional with --costs.", autocompletion=complete.clusters),
    ] = None,
    balance: Annotated[str, played("NAME", f"Balancer: {BALANCERS}.", autocompletion=complete.balancers)] = "lb-bsp",
    sync: Annotated[str, played("NAME", f"Sync policy: {POLICIES}.", autocompletion=complete.policies)] = "bsp",
    iterations: Annotated[int, played("N", "Number of steps of each worker.")] = 200,
    seed: Annotated[int, played("N", "Seed of the jitter.")] = 0,
    lookahead: Annotated[
        int, played("N", "Number of batches that loaders draw ahead; a new split takes effect after them.")
    ] = 0,
    pause: Annotated[
        float | None, played("SECONDS", "Pause of all workers when one joins or leaves. [default: as measured]")
    ] = None,
    costs: Annotated[
        Path | None, played("RUN", "Use the workers' costs of this recorded run.", autocompletion=complete.runs)
    ] = None,
    train: Annotated[
        str | None,
        option("TASK", "Train a real model in virtual time: digits, or fashion if UNEVEN_DATA has it.", panel=_LEARN),
    ] = None,
    goal: Annotated[
        float | None,
        option(
            "SHARE",
            "With --train: stop at this accuracy, for instance 0.9, and print the time.",
            "--accuracy",
            panel=_LEARN,
        ),
    ] = None,
    preconditioner: options.Preconditioner = None,
    tables: Annotated[
        int | None, played("K", "Servers of the description's [tables]. [default: from `uneven plan`]")
    ] = None,
    ahead: Annotated[
        int | None, played("N", "Batches whose rows trainers request ahead. [default: from `uneven plan`]")
    ] = None,
    calibrate: Annotated[
        Path | None,
        played("CSV", "Fit `achieved` of all links to measured steps, in a CSV file with a column `seconds`."),
    ] = None,
    compare: Annotated[bool, switch("Show the speed-up over even shares under bsp.", "--compare")] = False,
    run_dir: Annotated[Path | None, option("DIR", "Run directory. [default: runs/TIME-CLUSTER]")] = None,
    no_journal: Annotated[bool, switch("Show the table only, write no files.", "--no-journal")] = False,
    form: answer.Format = answer.Form.TEXT,
) -> None:
    """Simulate CLUSTER in virtual time, with the balancers, policies and journal of a real run.

    Each node computes for the time of its cost, or longer while its share of processor time is small. Transfers share
    links fairly. Events happen as described. The same command gives the same journal, byte for byte.
    docs/how-to/simulate.md lists the limits.

    With --train the gradients are real and applied in the order of virtual time, so staleness has its true effect. A
    task takes options: digits:hidden=0,learning_rate=0.2,momentum=0.9 (hidden 0 is softmax regression).

    \b
    Examples:
      uneven simulate demo4 --compare
      uneven simulate cluster.toml --balance even --sync ssp:staleness=3
      uneven simulate --costs runs/NAME --balance even     a recorded run, simulated with other settings
      uneven simulate lb_bsp_gpu16 --iterations 1000 --no-journal
      uneven simulate cluster.toml --calibrate points.csv
      uneven simulate lb_bsp_cpu32 --train digits --accuracy 0.9 --sync local:every=8
      uneven simulate clicks.toml --sync shadow:easgd --tables 2 --ahead 1     trainers and table servers
    """
    from uneven.cli import learning, simulate_page
    from uneven.cluster import files
    from uneven.cluster.pure.plan import doubts
    from uneven.cluster.pure.simulate.calibrate import calibrated
    from uneven.policy.sync.compatibility import compatible

    lesson = learning.lesson(train, goal, "--accuracy")
    scenario = _scenario(cluster, balance, sync, iterations, seed, lookahead, costs, preconditioner)
    found = None if calibrate is None else calibrated(scenario.spec, files.measured_steps(calibrate))
    if found is not None:
        scenario = replace(scenario, spec=found.spec)
    scenario = _with_tables(scenario, tables, ahead)
    if pause is not None:
        scenario = replace(scenario, pause_s=pause)
    reason = compatible(sync, balance)
    if reason:
        print(f"uneven: {reason}", file=sys.stderr)
    directory = _directory(scenario, run_dir, no_journal)
    played_out = _play(scenario, directory, lesson)
    for line in doubts(scenario.spec, max(one.communicate_share for one in played_out.outcome.workers)):
        print(f"uneven: {line}", file=sys.stderr)
    plain = _plain(scenario, lesson) if compare else None
    if form is answer.Form.JSON:
        shown = simulate_page.as_json(scenario, played_out, plain, directory)
        if found is not None:
            shown["calibrated"] = {"achieved": found.achieved, "points": found.points, "worst_error": found.worst}
        answer.write(shown)
        return
    if found is not None:
        print(f"Changed in every node: {found}, of {printable(str(calibrate))}.")
        print("It replaces network, achieved and flow_bit_per_s. All figures below are calibrated.")
    simulate_page.show(scenario, played_out, lesson.goal)
    if plain is not None:
        simulate_page.compare(played_out, plain)
    if directory is not None:
        where = printable(str(directory))
        print(f"run directory: {where} (see `uneven report {where}` and `uneven watch {where}`)")


def _scenario(
    cluster: str | None,
    balance: str,
    sync: str,
    iterations: int,
    seed: int,
    lookahead: int,
    costs: Path | None,
    preconditioner: Path | None,
) -> "Scenario":
    from uneven.cluster import files
    from uneven.cluster.pure.simulate import Scenario, described, with_costs
    from uneven.policy.balance import balancers
    from uneven.policy.sync import policies
    from uneven.runtime.installed import VERSION

    if cluster is None and costs is None:
        raise ConfigError(
            f"name a cluster: a TOML file, or one of {', '.join(files.shipped())}; or a recorded run with --costs RUN"
        )
    spec = files.load(cluster) if cluster is not None else None
    exchange_s: dict[int, float] = {}
    if costs is not None:
        learnt = recorded_costs(costs, spec)
        if learnt.preconditioned and preconditioner is not None:
            raise ConfigError(f"{costs} had a preconditioner, whose time its costs contain: leave --preconditioner out")
        if spec is None:
            spec, exchange_s = described(learnt), dict(enumerate(learnt.exchange_s))
        else:
            spec, exchange_s = with_costs(spec, learnt)
    assert spec is not None
    if preconditioner is not None:
        spec = replace(spec, preconditioner=files.preconditioner(preconditioner))
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
        versions={"uneven": VERSION},
    )


def _with_tables(scenario: "Scenario", servers: int | None, ahead: int | None) -> "Scenario":
    """Add servers of embedding tables if the description has tables; by default as many as a plan advises."""
    from uneven.cluster.pure.plan.table_plan import planned
    from uneven.cluster.pure.simulate import TableServers

    if not scenario.spec.tables.features:
        if servers is not None or ahead is not None:
            raise ConfigError(
                f"--tables and --ahead: {scenario.spec.name} has no [tables]; see docs/how-to/describe-a-cluster.md"
            )
        return scenario
    best = planned(scenario.spec).best
    how = TableServers(best.servers if servers is None else servers, best.ahead if ahead is None else ahead)
    return replace(scenario, tables=how)


def recorded_costs(run: Path, spec: "ClusterSpec | None") -> "RecordedCosts":
    """Return the costs of a run's workers; the cluster supplies values that the run cannot show."""
    from uneven import journal
    from uneven.cluster.pure.simulate import costs_from_journal

    fixed_s = {}
    for rank, node in enumerate(spec.nodes if spec is not None else ()):
        part = node.available(0.0)  # a worker with a part of its node took longer by this factor
        fixed_s[rank] = spec.cost(node).seconds(0) / part if spec is not None and part > 0 else 0.0
    return costs_from_journal(journal.read(run).records(), fixed_s)


def _directory(scenario: "Scenario", asked: Path | None, no_journal: bool) -> Path | None:
    from uneven.runtime import rundir

    if no_journal:
        return None
    size = len(scenario.spec.nodes)
    if asked is None and size > _JOURNAL_UP_TO:
        print(f"uneven: {size} nodes: no journal is written; --run-dir DIR writes one", file=sys.stderr)
        return None
    return asked or rundir.new_path(scenario.spec.name, datetime.now())


def _play(scenario: "Scenario", directory: Path | None, lesson: "LearningGoal") -> "FinishedSimulation":
    from uneven.cluster.pure.describe.write import to_toml
    from uneven.journal import ManyWriters
    from uneven.runtime import rundir

    if directory is None:
        return _timed(scenario, lesson, None)
    said = {"balance": scenario.balance, "sync": scenario.sync, "seed": scenario.seed}
    rundir.create(directory, {rundir.COMMAND_LINE: said})
    with access(f"write the cluster into {directory}"):
        (directory / "cluster.toml").write_text(to_toml(scenario.spec), encoding="utf-8")
    with ManyWriters(directory) as journal:
        return _timed(scenario, lesson, journal.write)


def _plain(scenario: "Scenario", lesson: "LearningGoal") -> "FinishedSimulation":
    from uneven.policy.balance import Even
    from uneven.policy.sync import policies

    return _timed(replace(scenario, balancer=Even(), policy=policies.resolve("bsp")), lesson, None)


def _timed(scenario: "Scenario", lesson: "LearningGoal", sink: "Sink | None") -> "FinishedSimulation":
    from uneven.cli.progress import bar
    from uneven.cli.simulate_page import FinishedSimulation
    from uneven.cluster.pure.describe.cluster_events import COMINGS_AND_GOINGS
    from uneven.cluster.pure.simulate import simulate
    from uneven.journal.pure.metrics import Join, goodput

    # Goodput is shown only if workers leave or join; otherwise records need not be joined.
    joined = Join() if any(event.do in COMINGS_AND_GOINGS for event in scenario.spec.events) else None

    def noted(record: "Record") -> None:
        if sink is not None:
            sink(record)
        if joined is not None:
            joined.add(record)

    with bar(scenario.iterations) as progress:
        started_s, learnt = perf_counter(), None
        if lesson.task is None:
            outcome = simulate(scenario, noted, progress=progress)
        else:
            from uneven.cluster.virtual import train

            learnt = train(scenario, lesson.task, noted, goal=lesson.goal, progress=progress)
            outcome = learnt.outcome
        took_s = perf_counter() - started_s
    used = None if joined is None else goodput(joined.take(final=True), joined.changes)
    return FinishedSimulation(outcome, learnt, took_s, used)
