"""Small clusters whose times can be reckoned by hand, and what a simulation of them wrote down."""

from __future__ import annotations

from typing import Any

from uneven.cluster.pure.describe.cluster_events import Event
from uneven.cluster.pure.describe.spec import ClusterSpec, Node, SiteLink, Workload
from uneven.cluster.pure.simulate import Arithmetic, Outcome, Scenario, simulate
from uneven.policy.balance import balancers
from uneven.policy.core.cost import Affine
from uneven.policy.core.records import EventRecord, Record, SplitRecord, StepRecord
from uneven.policy.sync import SyncPolicy, policies

MEGABYTE = 1_000_000
MEGABIT_PER_S = 1e6


def node(name: str, step_s: float = 1.0, **rest: Any) -> Node:
    """A node that needs ``step_s`` for a step, whatever its batch."""
    return Node(name=name, cost=Affine(step_s, 0.0), **rest)


def cluster(
    *nodes: Node, events: tuple[Event, ...] = (), links: tuple[SiteLink, ...] = (), **workload: Any
) -> ClusterSpec:
    """These nodes; of the workload, what is named and nothing else costs time."""
    load = {"global_batch": 4 * len(nodes), "exchange_core_s": 0.0, "gradient_bytes": MEGABYTE, "framing": 1.0}
    load.update(workload)
    return ClusterSpec(name="small", nodes=nodes, events=events, links=links, workload=Workload(**load))


class Ran:
    """A simulation and its records."""

    def __init__(
        self,
        spec: ClusterSpec,
        policy: str | SyncPolicy = "bsp",
        *,
        iterations: int = 3,
        balance: str = "even",
        arithmetic: Arithmetic | None = None,
        **rest: Any,
    ) -> None:
        self.records: list[Record] = []
        scenario = Scenario(
            spec=spec,
            balancer=balancers.resolve(balance),
            policy=policies.resolve(policy),
            iterations=iterations,
            **{"pause_s": 0.0, **rest},
        )
        self.outcome: Outcome = simulate(scenario, self.records.append, arithmetic=arithmetic)

    @property
    def steps(self) -> list[StepRecord]:
        """All steps, in the order of their ends."""
        return [record for record in self.records if isinstance(record, StepRecord)]

    @property
    def splits(self) -> list[SplitRecord]:
        """All changes of the split."""
        return [record for record in self.records if isinstance(record, SplitRecord)]

    def events(self, kind: str) -> list[EventRecord]:
        """Events of one kind."""
        return [record for record in self.records if isinstance(record, EventRecord) and record.event == kind]

    def of(self, rank: int) -> list[StepRecord]:
        """One worker's steps."""
        return [step for step in self.steps if step.rank == rank]

    def ends_s(self, rank: int) -> list[float]:
        """When one worker's steps ended."""
        return [step.ended_at_s for step in self.of(rank)]
