"""The simulator: a cluster description in virtual time."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.cluster.pure.describe.spec_checks import TIME, bounded
from uneven.cluster.pure.simulate.arithmetic import Arithmetic
from uneven.cluster.pure.simulate.compute import Jitter, Processor
from uneven.cluster.pure.simulate.event_queue import LAST_S, EventQueue
from uneven.cluster.pure.simulate.faults import Faults
from uneven.cluster.pure.simulate.links import Network
from uneven.cluster.pure.simulate.members import MemberHistory
from uneven.cluster.pure.simulate.preconditioning import preconditioner_of
from uneven.cluster.pure.simulate.routes import Topology
from uneven.cluster.pure.simulate.shares import Shares, Terms
from uneven.cluster.pure.simulate.stage import Stage
from uneven.cluster.pure.simulate.steps import Steps
from uneven.cluster.pure.simulate.table_servers import TableServers, VirtualTables
from uneven.cluster.pure.simulate.tally import Outcome, Tally
from uneven.cluster.pure.simulate.virtual_exchanges import VirtualExchanges
from uneven.cluster.pure.simulate.virtual_worker import Machine, Worker
from uneven.errors import ConfigError, TrainingError
from uneven.journal.pure.messages import END, PLAN, plan_message
from uneven.policy.balance.balancer import Balancer
from uneven.policy.control.step_plans import StepPlans
from uneven.policy.core.membership import Generation, record_of
from uneven.policy.core.pace import PACE
from uneven.policy.core.records import EventRecord, LineRecord, Record, RunRecord, StepRecord
from uneven.policy.core.registry import describe
from uneven.policy.core.tables import shown
from uneven.policy.sync import Pace, SyncPolicy


class LineBook:
    """Bytes and transfers on each link between sites since the last record; a transfer counts when it starts."""

    def __init__(self, topology: Topology, network: Network) -> None:
        self._network = network
        self._lines = topology.lines
        self._speaker = {site: topology.sites.index(site) for site in topology.sites}
        self._told = dict.fromkeys(topology.lines, (0, 0))

    def records(self, iteration: int, at_s: float) -> Iterator[LineRecord]:
        """Yield a record for each link with transfers since the last call, as of the first node of its first site."""
        for ends, link in self._lines.items():
            now = int(self._network.carried[link]), round(float(self._network.carried_bytes[link]))
            before = self._told[ends]
            if now != before:
                self._told[ends] = now
                yield LineRecord(
                    rank=self._speaker[ends[0]],
                    iteration=iteration,
                    at_s=at_s,
                    line=f"{ends[0]} to {ends[1]}",
                    exchanges=now[0] - before[0],
                    sent_bytes=now[1] - before[1],
                    waited_s=0.0,
                )


Sink = Callable[[Record], None]

MOST_ITERATIONS, MOST_AHEAD = 10**9, 10**6  # more is a typing error, and would take months
PAUSE_S = 0.025  # median over the eight membership changes of a real elastic run, see docs/measurements/worlds.md
_FORETOLD_UP_TO = 1000  # more workers write no forecasts, which take time and are too many to read


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The input of a simulation."""

    spec: ClusterSpec
    balancer: Balancer
    policy: SyncPolicy
    iterations: int = 200  # the clock at which every worker is finished
    # If given, workers take their parts from one common order until this many are taken, as asynchronous workers do. A
    # fast one then takes more steps, and ``iterations`` only bounds them.
    samples: int | None = None
    seed: int = 0  # of the jitter, and of the phase of each node's quota
    lookahead: int = 0  # iterations that the loaders draw ahead, see :class:`~uneven.policy.control.Decider`
    budget: float = 0.005  # as in a run, although measuring and deciding take no time here
    # rank → seconds of its own side of an exchange with the whole node; by default the workload's
    exchange_s: Mapping[int, float] = field(default_factory=dict)
    # whether an exchange in the background delays the computing, as under a limit to a share of a core
    one_processor: bool = False
    tables: TableServers | None = None  # for embedding tables on servers
    pause_s: float = PAUSE_S  # of all workers before the first step of other members, if gradients are averaged
    balance: str = ""  # names in the journal, this and the next; by default they describe themselves
    sync: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)  # for the journal

    def __post_init__(self) -> None:
        for key, least, most in (("iterations", 1, MOST_ITERATIONS), ("seed", 0, 2**63), ("lookahead", 0, MOST_AHEAD)):
            if not least <= getattr(self, key) <= most:
                raise ConfigError(
                    f"{key} = {shown(getattr(self, key))}: it must be at least {least} and at most {most:,}"
                )
        bounded("simulation: pause_s", self.pause_s, TIME)


def simulate(
    scenario: Scenario,
    sink: Sink | None = None,
    *,
    arithmetic: Arithmetic | None = None,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """Run a scenario to its end.

    Args:
        sink: receives every record, in the order of virtual time; equal scenarios give equal records.
        arithmetic: computes real gradients; None to simulate times only.
        progress: called with the number of iterations that any worker has ended, when it grows.

    Raises:
        ConfigError: description, balancer and policy do not fit together.
        TrainingError: workers wait for each other forever, or virtual time has reached its end.
    """
    return _World(scenario, sink or (lambda record: None), arithmetic or Arithmetic(), progress).play()


class _World:
    def __init__(
        self, scenario: Scenario, sink: Sink, arithmetic: Arithmetic, progress: Callable[[int], None] | None
    ) -> None:
        spec = scenario.spec
        self._scenario = scenario
        self._sink = sink
        self._progress = progress
        self._known: set[int] = set()
        self._tally = Tally(tuple(node.name for node in spec.nodes))
        queue = EventQueue()
        topology = Topology(spec)
        network = Network(queue, topology.capacities)
        self._lines = LineBook(topology, network)
        first = set(spec.initial_members)
        history = MemberHistory(rank for rank, node in enumerate(spec.nodes) if node.name in first)
        self._stage = stage = Stage(
            queue=queue,
            network=network,
            topology=topology,
            workload=spec.workload,
            history=history,
            arithmetic=arithmetic,
            go_on=lambda worker: self._steps.go_on(worker),
            machines=[_machine(scenario, rank) for rank in range(len(spec.nodes))],
        )
        self._sites = dict(enumerate(topology.sites))
        terms = Terms(
            balancer=scenario.balancer,
            global_batch=spec.workload.global_batch,
            lookahead=scenario.lookahead,
            budget=scenario.budget,
            most=lambda rank: spec.nodes[rank].memory_samples,
        )
        told = self._sink if len(spec.nodes) <= _FORETOLD_UP_TO else None
        shares = Shares(terms, history.newest, on_split=self._sink, on_complaint=self._complain, on_forecast=told)
        self._preconditioner = preconditioner = preconditioner_of(stage, spec)
        self._tables = tables = None if scenario.tables is None else VirtualTables(spec, scenario.tables)
        exchanges = VirtualExchanges(stage, preconditioner)
        self._steps = Steps(
            stage,
            exchanges,
            shares,
            iterations=scenario.iterations,
            samples=scenario.samples,
            pause_s=scenario.pause_s,
            started=lambda iteration: self._faults.started(iteration),
            record=self._record,
            over=self._over,
            preconditioner=preconditioner,
            tables=tables,
        )
        self._faults = Faults(
            spec, stage, exchanges, shares, self._hire, self._steps.begin, self._tell, self._members_changed
        )

    def play(self) -> Outcome:
        stage = self._stage
        for rank in stage.history.newest.members:
            self._introduce(rank)
        for rank in stage.history.newest.members:
            stage.queue.at(0.0, self._steps.begin, self._hire(rank, 0))
            stage.arithmetic.enters(rank, None)
        stage.queue.run()
        if stage.queue.stopped:
            for worker in stage.workers.values():
                if not worker.gone:
                    why = "the training has reached its target"
                    self._tell(worker.rank, max(self._stage.newest, 0), END, why)
            return self._outcome()
        if stage.queue.late and any(not worker.gone for worker in stage.workers.values()):
            raise TrainingError(
                f"after {LAST_S:g} s of virtual time {max(stage.newest, 0):,} of {self._scenario.iterations:,} "
                "iterations have finished: check the units of costs, bandwidths and events"
            )
        stuck = [worker.rank for worker in stage.workers.values() if not worker.gone and worker.clock <= stage.newest]
        if stuck:
            raise TrainingError(self._why_stuck(stuck))
        return self._outcome()

    def _outcome(self) -> Outcome:
        stage = self._stage
        clocks = {rank: worker.clock for rank, worker in stage.workers.items()}
        own = () if self._preconditioner is None else self._preconditioner.outcome()
        outcome = replace(self._tally.outcome(stage.queue.happened, clocks), own=own)
        if self._tables is None:
            return outcome
        present_s = sum(worker.present_s for worker in outcome.workers)
        return replace(outcome, tables=self._tables.outcome(present_s, outcome.ended_at_s))

    def _hire(self, rank: int, clock: int) -> Worker:
        stage = self._stage
        plans = StepPlans(self._scenario.policy, rank, (), self._sites)  # the first step sets the members
        worker = stage.workers[rank] = Worker(rank, stage.machines[rank], plans, clock)
        stage.groups.enter(rank)
        stage.clocks.enter(rank, clock)
        if clock:
            self._introduce(rank)
        return worker

    def _introduce(self, rank: int) -> None:
        if rank in self._known:
            return
        self._known.add(rank)
        scenario, spec = self._scenario, self._scenario.spec
        settings = {
            "cluster": spec.name,
            "node": spec.nodes[rank].name,
            "balance": scenario.balance or describe(scenario.balancer),
            "sync": scenario.sync or describe(scenario.policy),
            "seed": scenario.seed,
            "iterations": scenario.iterations,
            "lookahead": scenario.lookahead,
        }
        if scenario.policy.facts is not None:
            settings[PACE] = scenario.policy.facts.pace.value
        self._sink(
            RunRecord(
                run=spec.name,
                rank=rank,
                world_size=len(spec.nodes),
                host=spec.nodes[rank].name,
                pid=0,
                started_at_s=self._stage.queue.now_s,
                world="simulated",
                settings=settings,
                versions=dict(scenario.versions),
            )
        )
        if rank == self._stage.history.newest.members[0]:
            self._tell(rank, 0, PLAN, plan_message(scenario.iterations))

    def _record(self, step: StepRecord) -> None:
        self._sink(step)
        before = self._tally.finished
        self._tally.add(step)
        if self._tally.finished > before:
            for line in self._lines.records(step.iteration, step.ended_at_s):
                self._sink(line)
            if self._progress is not None:
                self._progress(self._tally.finished)
        if self._stage.arithmetic.enough:
            self._stage.queue.stop()

    def _over(self, worker: Worker) -> None:
        self._faults.over(worker)
        if worker.stop_at is None:
            self._tell(worker.rank, max(self._stage.newest, 0), END, "the run has ended")

    def _complain(self, rank: int, iteration: int, text: str) -> None:
        self._tell(rank, iteration, "bad-report", text)

    def _tell(self, rank: int, iteration: int, event: str, message: str) -> None:
        at_s = self._stage.queue.now_s
        self._sink(EventRecord(rank=rank, iteration=iteration, at_s=at_s, event=event, message=message))

    def _members_changed(self, new: Generation) -> None:
        iteration, at_s = max(self._stage.newest, 0), self._stage.queue.now_s
        self._sink(record_of(new, new.members[0], iteration, at_s, self._scenario.pause_s))

    def _why_stuck(self, stuck: list[int]) -> str:
        workers, policy = self._stage.workers, describe(self._scenario.policy)
        rank = min(stuck, key=lambda rank: (workers[rank].clock, rank))
        return (
            f"simulated time stops: rank {rank} never ends step {workers[rank].clock} ({len(stuck)} of "
            f"{len(workers)} workers are blocked). Under {policy} it waits for a step that others never finish, or "
            "for an exchange that some members never begin: check the policy's plans"
        )


def _machine(scenario: Scenario, rank: int) -> Machine:
    spec, node = scenario.spec, scenario.spec.nodes[rank]
    # One thread runs an exchange, so a second core does not speed it up.
    own_s = spec.workload.exchange_core_s / min(1.0, node.cores)
    return Machine(
        processor=Processor(node, scenario.seed, rank),
        cost=spec.cost(node),
        jitter=Jitter(node.jitter, scenario.seed, rank),
        exchange_work_s=scenario.exchange_s.get(rank, own_s),
        report_work_s=spec.workload.report_core_s / min(1.0, node.cores),
        one_processor=scenario.one_processor,
    )


def streamed(scenario: Scenario) -> Scenario:
    """Return the scenario with an equal number of samples under every policy, as comparisons need."""
    facts = scenario.policy.facts
    if facts is None or facts.pace not in (Pace.OWN, Pace.BOUNDED) or scenario.samples is not None:
        return scenario
    # Asynchronous workers share one order with the samples of BSP in the same iterations; the iterations only bound
    # them.
    total = scenario.iterations * scenario.spec.workload.global_batch
    return replace(scenario, samples=total, iterations=scenario.iterations * len(scenario.spec.nodes))
