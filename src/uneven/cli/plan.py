"""The command ``uneven plan``: recommend a balancer and a policy for a cluster."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

from uneven.cli import answer, complete, options
from uneven.cli.help import BALANCERS, POLICIES
from uneven.cli.options import argument, option, played
from uneven.errors import ConfigError, TrainingError, access

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from uneven.cli import learning, plan_page
    from uneven.cluster.pure.describe.spec import ClusterSpec
    from uneven.cluster.pure.plan import Allowance, Choice, CombinationResult, LeftOut, Row
    from uneven.cluster.pure.simulate import Scenario

_REASONS = 3  # number of reasons shown; a wrong unit in a cluster gives one for each combination


def command(
    cluster: Annotated[
        str,
        argument(
            "CLUSTER|RUN",
            "A TOML file, the name of a cluster that comes with uneven (demo4), or a recorded run's directory.",
            autocompletion=complete.clusters_and_runs,
        ),
    ],
    iterations: Annotated[
        int | None,
        played("N", "Number of global batches in each simulation. [default: 200, fewer with more than eight nodes]"),
    ] = None,
    balance: Annotated[
        str | None,
        played("NAME,…", f"Balancers: {BALANCERS}. [default: all of uneven's]", autocompletion=complete.balancers),
    ] = None,
    sync: Annotated[
        str | None,
        played("NAME,…", f"Policies: {POLICIES}. [default: all of uneven's]", autocompletion=complete.policies),
    ] = None,
    train: Annotated[
        str | None,
        played("TASK", "Rank by the time to an accuracy of real training: digits, or fashion if UNEVEN_DATA has it."),
    ] = None,
    accuracy: Annotated[float | None, played("SHARE", "With --train: the accuracy to reach. [default: 0.9]")] = None,
    seed: Annotated[int, played("N", "Seed of the jitter and of the sample order.")] = 0,
    preconditioner: options.Preconditioner = None,
    budget: Annotated[
        float | None,
        played("MONEY", "Money to spend, in the description's currency: rank by the samples that it pays."),
    ] = None,
    deadline: Annotated[
        str | None, played("TIME", "Time to spend, such as 8h, 90m or 2d: rank by the samples within it.")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        option(
            "CHANGE",
            'Replay a recorded run with one change. Examples: "rank 3 as fast as rank 0", "without rank 3", '
            '"one more like rank 0", "on a 10 Gbit/s link", "with shadow:ma". Repeatable.',
            "--what-if",
        ),
    ] = None,
    report: Annotated[Path | None, option("FILE", "With --what-if: also write an HTML page.", "--report")] = None,
    form: answer.Format = answer.Form.TEXT,
) -> None:
    """Simulate every combination of balancer and policy on CLUSTER, rank them, and explain the ranking.

    The simulation runs in virtual time and takes seconds. The limit is the throughput of all nodes if they always
    computed and communication were free. Samples/s does not show how much the model learns from a sample: policies
    without waits are fast, but their gradients are stale. With --train, the ranking is by the time to an accuracy
    instead. The table has the best balancer of each policy; --balance shows all that it names.

    \b
    Examples:
      uneven plan demo4
      uneven plan cluster.toml --train digits --accuracy 0.9
      uneven plan runs/NAME                              a recorded run, with other settings
      uneven plan demo4 --balance even,lb-bsp --sync bsp,ssp:staleness=3,local:every=4
      uneven plan cluster.toml --preconditioner kfac.toml
      uneven plan cluster.toml --budget 50 --deadline 8h
      uneven plan runs/NAME --what-if "without the straggler" --what-if "with shadow:ma" --report what-if.html
    """
    if what_if:
        from uneven.cli import what_if_page as asking

        asking.plan(Path(cluster), what_if, seed, report, form)
        return
    from uneven.cli import learning, plan_page
    from uneven.cluster.pure.plan import combinations, priced, ranked
    from uneven.cluster.pure.simulate.virtual_world import MOST_ITERATIONS
    from uneven.policy.core.tables import shown

    for key, value, least, most in (("--iterations", iterations, 1, MOST_ITERATIONS), ("--seed", seed, 0, 2**63)):
        if value is not None and not least <= value <= most:
            raise ConfigError(f"{key} {shown(value)}: it must be at least {least} and at most {most:,}")
    goal = 0.9 if train is not None and accuracy is None else accuracy
    lesson = learning.lesson(train, goal, "--accuracy")
    case = _case(cluster, iterations, seed, preconditioner)
    allowance = _allowance(case.spec, budget, deadline)
    choices, left = combinations(case.spec, split(balance), split(sync))
    started_s = perf_counter()
    results, failed = _play(case, choices, lesson)
    if not results:
        raise ConfigError(f"no combination could be simulated: {_reasons(failed or left)}")
    left += failed
    plan = ranked(results, allowance)
    changes = _changed(case, plan.best_carried) if priced(case.spec) and lesson.task is None else ()
    page = plan_page.PlanPage(
        spec=case.spec,
        plan=plan,
        left=tuple(left),
        iterations=case.batches(),
        goal=lesson.goal,
        took_s=perf_counter() - started_s,
        every=balance is not None,
        allowance=allowance,
        changes=changes,
    )
    if form is answer.Form.JSON:
        answer.write(plan_page.as_json(page, train))
    else:
        plan_page.show(page)


_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _allowance(spec: "ClusterSpec", budget: float | None, deadline: str | None) -> "Allowance":
    """Return the limits. Raises ConfigError: a limit is not positive, or the cluster of a budget has no prices."""
    from uneven.cluster.pure.plan import Allowance, priced

    if budget is not None and not 0 < budget < math.inf:
        raise ConfigError(f"--budget {budget}: give an amount of money above 0")
    if budget is not None and not priced(spec):
        raise ConfigError(f"--budget {budget}: {spec.name} has no prices: give its nodes price_per_hour")
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([smhd])", deadline or "1s")
    if found is None or not float(found[1]):
        raise ConfigError(f"--deadline {deadline}: give a time above 0 with its unit, such as 8h, 90m or 2d")
    seconds = math.inf if deadline is None else float(found[1]) * _UNITS_S[found[2]]
    return Allowance(spec, math.inf if budget is None else budget, seconds)


_KINDS = 4  # kinds of machines that a plan adds and removes, at most [default]


def _changed(case: "_Case", best: "Row | None") -> "tuple[plan_page.MachineChange, ...]":
    """Return the best combination with one machine more and fewer of each kind."""
    from uneven.cli.plan_page import MachineChange
    from uneven.cluster.pure.plan import played, price
    from uneven.cluster.pure.plan.what_if import kinds, one_more, without

    if best is None or case.exchange_s:  # a recorded run has `--what-if`
        return ()
    changes = []
    for rank in kinds(case.spec)[:_KINDS]:
        for words, change in (("one more", one_more), ("one fewer", without)):
            if change is without and len(case.spec.nodes) == 1:
                continue
            changed = replace(case, spec=change(case.spec, rank))
            try:
                found = price(changed.spec, played(changed.scenario(best.result.choice)))
            except (ConfigError, TrainingError):  # such as static shares of another number of workers
                continue
            changes.append(MachineChange(f"{words} like {case.spec.nodes[rank].name}", found))
    return tuple(changes)


def _reasons(left: "Sequence[LeftOut]") -> str:
    """Return the first reasons why no combination could be simulated, each once with its first combination."""
    whose: dict[str, str] = {}
    for one in left:
        whose.setdefault(one.why, " under ".join(word for word in (one.balance, one.sync) if word))
    told = [f"{names}: {why}" for why, names in whose.items()]
    more = len(told) - _REASONS
    return "; ".join(told[:_REASONS]) + (f"; and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class _Case:
    """The common settings of all combinations."""

    spec: "ClusterSpec"
    exchange_s: "Mapping[int, float]"
    iterations: int | None  # None for as many as :func:`enough_iterations` says
    seed: int
    preconditioned: bool = False

    def batches(self, every: int = 1) -> int:
        """Return the global batches of a simulation whose policy exchanges every ``every`` steps."""
        from uneven.cluster.pure.plan import enough_iterations

        return self.iterations or enough_iterations(len(self.spec.nodes), every)

    def scenario(self, choice: "Choice") -> "Scenario":
        from uneven.cluster.pure.simulate import Scenario
        from uneven.policy.balance import balancers
        from uneven.policy.sync import policies

        # Balancers and policies learn, so each combination gets new ones.
        policy = policies.resolve(choice.sync)
        every = 1 if policy.facts is None else policy.facts.every
        return Scenario(
            spec=self.spec,
            balancer=balancers.resolve(choice.balance),
            policy=policy,
            iterations=self.batches(every),
            seed=self.seed,
            exchange_s=self.exchange_s,
        )


def _case(cluster: str, iterations: int | None, seed: int, preconditioner: Path | None) -> _Case:
    from uneven.cluster import files
    from uneven.journal.reader import rank_paths

    run = Path(cluster)
    with access(f"look for {run}"):
        recorded = run.is_dir() and rank_paths(run)
    case = _recorded(run, iterations, seed) if recorded else _Case(files.load(cluster), {}, iterations, seed)
    if preconditioner is None:
        return case
    if case.preconditioned:
        raise ConfigError(f"{run} had a preconditioner, whose time its costs contain: leave --preconditioner out")
    return replace(case, spec=replace(case.spec, preconditioner=files.preconditioner(preconditioner)))


def _recorded(run: Path, iterations: int | None, seed: int) -> _Case:
    """Return a run with the description next to its journal, or with one made from it."""
    from uneven.cli.simulate import recorded_costs
    from uneven.cluster import files
    from uneven.cluster.pure.simulate import described, with_costs

    described_by = run / "cluster.toml"
    if described_by.is_file():
        spec = files.load(described_by)
        costs = recorded_costs(run, spec)
        return _Case(*with_costs(spec, costs), iterations, seed, costs.preconditioned)
    costs = recorded_costs(run, None)
    return _Case(described(costs), dict(enumerate(costs.exchange_s)), iterations, seed, costs.preconditioned)


def split(text: str | None) -> tuple[str, ...]:
    """Split at commas, but keep options with their name: "bsp,bmuf:every=4,nesterov=true" → "bsp", "bmuf:every=4,…"."""
    found: list[str] = []
    for piece in (piece.strip() for piece in (text or "").split(",")):
        before, equals, _ = piece.partition("=")
        if found and equals and ":" not in before:
            found[-1] += f",{piece}"
        elif piece:
            found.append(piece)
    return tuple(found)


def _play(
    case: _Case, choices: "Sequence[Choice]", lesson: "learning.LearningGoal"
) -> "tuple[list[CombinationResult], list[LeftOut]]":
    from uneven.cli.progress import bar
    from uneven.cluster.pure.plan import LeftOut

    results: list[CombinationResult] = []
    failed: list[LeftOut] = []
    with bar(len(choices), named=True) as moved:
        for place, choice in enumerate(choices):
            moved(place, f"{choice.balance} under {choice.sync}")
            try:
                results.append(_one(case, choice, lesson, lambda done, place=place: moved(place + done)))  # type: ignore[misc]
            # A combination that fails must not end the ranking of the others.
            except (ConfigError, TrainingError) as error:
                failed.append(LeftOut(choice.balance, choice.sync, str(error)))
    return results, failed


def _one(
    case: _Case, choice: "Choice", lesson: "learning.LearningGoal", moved: "Callable[[float], None]"
) -> "CombinationResult":
    from uneven.cluster.pure.plan import CombinationResult, TrainingOutcome, played
    from uneven.policy.sync import carried, unheeded

    scenario, turns = case.scenario(choice), 1 if lesson.task is None else 2
    figures = played(scenario, progress=lambda done: moved(min(1.0, done / scenario.iterations) / turns))
    taught = None
    if lesson.task is not None:
        from uneven.cluster.virtual import train

        # A new scenario, because the balancer and the policy of the first one have learnt.
        learnt = train(
            case.scenario(choice),
            lesson.task,
            goal=lesson.goal,
            progress=lambda done: moved(0.5 + min(1.0, done / scenario.iterations) / 2),
        )
        taught = TrainingOutcome(
            reached_s=None if learnt.reached is None else learnt.reached.at_s,
            reached_samples=None if learnt.reached is None else learnt.reached.samples,
            best=max((point.accuracy for point in learnt.points), default=0.0),
            diverged=learnt.diverged,
        )
    return CombinationResult(
        choice=choice,
        facts=scenario.policy.facts,
        figures=figures,
        refused=carried(choice.sync) or unheeded(choice.sync, choice.balance),
        lesson=taught,
    )
