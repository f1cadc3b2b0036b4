"""The figures of one simulated combination, as input of the reasons."""

import copy
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from uneven.cluster.pure.plan.combine import Choice
from uneven.cluster.pure.simulate import (
    Arithmetic,
    Outcome,
    OwnOutcome,
    Scenario,
    Sink,
    WorkerOutcome,
    simulate,
    streamed,
)
from uneven.cluster.pure.simulate.tally import ratio
from uneven.errors import ConfigError
from uneven.policy.core.actions import Exchange, Moment
from uneven.policy.core.records import LineRecord, Record, StepRecord
from uneven.policy.sync import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of all workers together."""

    workers: tuple[WorkerOutcome, ...]
    samples_per_s: float  # samples that counted, over the whole time
    limit_per_s: float  # if every worker always computed at its speed here, with free communication
    iteration_s: float  # median
    wait_share: float  # this and the next: parts of all workers' time, 0 … 1
    communicate_share: float
    steps_apart: float  # a worker's steps between two exchanges in the background; 0 without any
    ended_at_s: float
    own: tuple[OwnOutcome, ...] = ()  # each worker's work for a preconditioner, if any
    sent_bytes: Mapping[str, int] = field(default_factory=dict)  # line between sites, "us to eu" → bytes by it

    @property
    def slowest(self) -> WorkerOutcome:
        return min(self.workers, key=lambda worker: (worker.speed_per_s, worker.rank))

    @property
    def fastest(self) -> WorkerOutcome:
        return max(self.workers, key=lambda worker: (worker.speed_per_s, -worker.rank))

    @property
    def unequal(self) -> float:
        """The fastest worker's speed relative to the slowest's."""
        return self.fastest.speed_per_s / self.slowest.speed_per_s if self.slowest.speed_per_s > 0 else math.inf

    @property
    def dropped_share(self) -> float:
        return sum(one.dropped for one in self.workers) / max(1, sum(one.steps for one in self.workers))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """The result of a training."""

    reached_s: float | None  # time at which the goal was reached; None if it was not …
    reached_samples: int | None  # … and the samples
    best: float  # accuracy
    diverged: bool = False  # whether it ended with NaN or infinite parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinationResult:
    """One combination with its figures."""

    choice: Choice
    facts: Facts | None
    figures: Figures
    refused: str | None = None  # why a real run does not support the policy; None if it does
    lesson: TrainingOutcome | None = None

    @property
    def unshown(self) -> str | None:
        """The sentence that no published run learned with exchanges so far apart. None if one did, or if none is
        known."""
        if self.facts is None or self.facts.shown is None:
            return None
        apart = max(self.facts.every, self.figures.steps_apart)
        if apart <= self.facts.shown:
            return None
        return (
            f"exchanges are {apart:,.0f} steps apart, and no published run that uneven knows learned with more than "
            f"{self.facts.shown:,}"
        )


LEAST_ROUNDS = 3  # finished rounds of exchanges for a rate
_LONGER = 8  # factor of a longer simulation, if no exchange has ended
_MOST_STEPS = 20_000  # of all workers in a longer simulation [default]


def played(scenario: Scenario, sink: Sink | None = None, *, progress: Callable[[int], None] | None = None) -> Figures:
    """Simulate a scenario and return the figures.

    Rates cover whole rounds of exchanges. Without a sink, these are at least three: the simulation may be longer than
    the scenario's iterations, up to 20,000 steps of all workers.

    Args:
        sink, progress: as in :func:`~uneven.cluster.pure.simulate.simulate`.

    Raises:
        ConfigError: as ``simulate``; also if too few exchanges ended, so that the figures lack their cost.
        TrainingError: as ``simulate``.
    """
    if sink is not None:
        return _played(scenario, _Counter(sink), progress)
    facts, learnt = scenario.policy.facts, (scenario.balancer, scenario.policy)
    if scenario.samples is None and facts is not None and facts.every > 1:
        scenario = replace(scenario, iterations=max(scenario.iterations, LEAST_ROUNDS * facts.every))
    while True:
        # A balancer and a policy learn, so each simulation gets new ones.
        balancer, policy = copy.deepcopy(learnt)
        counter = _Counter(None)
        longer = scenario.iterations * _LONGER
        last = scenario.samples is not None or longer * len(scenario.spec.nodes) > _MOST_STEPS
        try:
            figures = _played(replace(scenario, balancer=balancer, policy=policy), counter, progress)
        except NoExchangePlayed:
            if last:
                raise
        else:
            if not 0 < counter.rounds < LEAST_ROUNDS:
                return figures
            if last:
                few = f"only {counter.rounds} exchanges ended, and a rate needs {LEAST_ROUNDS}"
                raise NoExchangePlayed(f"{few}: simulate more iterations")
        scenario = replace(scenario, iterations=longer)


class NoExchangePlayed(ConfigError):
    """No exchange of all workers ended, or too few."""


def _played(scenario: Scenario, counter: "_Counter", progress: Callable[[int], None] | None) -> Figures:
    facts = scenario.policy.facts
    every = 1 if facts is None else facts.every
    scenario = streamed(scenario)
    if scenario.samples is None:
        # Whole rounds only: steps after the last exchange would look too fast.
        scenario = replace(scenario, iterations=scenario.iterations // every * every or scenario.iterations)
    outcome = simulate(scenario, counter.record, arithmetic=counter, progress=progress)
    if len(outcome.workers) > 1 and not counter.exchanged:
        slow = min(outcome.workers, key=lambda one: one.steps)
        if slow.steps < every:
            told = f"an exchange comes every {every} steps, and {slow.node} took {slow.steps}: simulate more iterations"
            raise NoExchangePlayed(told)
        told = f"no exchange of all workers ended in {outcome.ended_at_s:.3g} s of virtual time"
        raise NoExchangePlayed(f"{told}: simulate more iterations, or check that all bandwidths are in bit/s")
    return counter.figures(outcome, waits=facts is None or facts.pace.waits)


class _Counter(Arithmetic):
    """Counts exchanges during a simulation, and checks whether they have connected all workers."""

    def __init__(self, sink: Sink | None) -> None:
        self._sink = sink
        self._aside = 0
        self._sent_bytes: Counter[str] = Counter()
        self._by_rank: Counter[int] = Counter()  # exchanges in the background
        self._here: set[int] = set()
        self._met: list[set[object]] = []  # workers, and groups by their members, that exchanges have connected
        self.exchanged = False

    def record(self, record: Record) -> None:
        if self._sink is not None:
            self._sink(record)
        if isinstance(record, LineRecord):
            self._sent_bytes[record.line] += record.sent_bytes
        if not self.exchanged and isinstance(record, StepRecord):
            # Checked when a step ends: an exchange that ends later has cost no worker anything yet.
            self.exchanged = any(self._here <= met for met in self._met)

    def enters(self, rank: int, source: int | None) -> None:
        self._here.add(rank)

    def leaves(self, rank: int) -> None:
        self._here.discard(rank)

    def merges(self, exchange: Exchange, ranks: tuple[int, ...]) -> None:
        if exchange.moment is Moment.BACKGROUND:
            self._aside += len(ranks)
            self._by_rank.update(ranks)
        self._connect(exchange, *ranks)

    def writes(self, rank: int, exchange: Exchange) -> object:
        return rank

    def hears(self, exchange: Exchange, content: object, ranks: Sequence[int]) -> None:
        self._connect(exchange, content)

    def catches_up(self, rank: int, exchange: Exchange, source: int | None) -> None:
        self._connect(exchange, rank)  # it came too late, but it has waited for the outcome

    @property
    def rounds(self) -> int:
        """The least number of finished exchanges in the background of a worker that has one; 0 if none has."""
        return min(self._by_rank.values(), default=0)

    def _connect(self, exchange: Exchange, *ranks: object) -> None:
        if self.exchanged:
            return
        joined: set[object] = {exchange.members, *ranks}
        for party in exchange.parties:  # its first member represents it
            joined.update(() if joined.isdisjoint(party) else party)
        for met in [met for met in self._met if not met.isdisjoint(joined)]:
            joined |= met
            self._met.remove(met)
        self._met.append(joined)

    def figures(self, outcome: Outcome, *, waits: bool) -> Figures:
        # If workers do not wait for each other, all of an exchange is communication.
        workers = outcome.workers if waits else tuple(_without_waiting(one) for one in outcome.workers)
        time_s = math.fsum(one.step_s * one.steps for one in workers)
        talk_s = math.fsum(one.communicate_share * one.step_s * one.steps for one in workers)
        end_s = outcome.ended_at_s
        return Figures(
            workers=workers,
            samples_per_s=ratio(sum(one.samples for one in workers), end_s),
            limit_per_s=ratio(math.fsum(one.speed_per_s * one.present_s for one in workers), end_s),
            iteration_s=outcome.iteration_s,
            wait_share=outcome.wait_share if waits else 0.0,
            communicate_share=ratio(talk_s, time_s),
            steps_apart=ratio(sum(one.steps for one in workers), self._aside),
            ended_at_s=end_s,
            own=outcome.own,
            sent_bytes=self._sent_bytes,
        )


def _without_waiting(worker: WorkerOutcome) -> WorkerOutcome:
    return replace(worker, wait_share=0.0, communicate_share=worker.communicate_share + worker.wait_share)
