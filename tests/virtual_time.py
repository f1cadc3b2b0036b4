"""Plays policies in the simulator: who waits how long. Transfers cost nothing; a step costs what it is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from uneven.cluster.pure.describe.spec import ClusterSpec, Do, Event, Node, Workload
from uneven.cluster.pure.simulate import Arithmetic, Scenario, simulate
from uneven.policy.balance.balancer import Even
from uneven.policy.core.cost import Affine
from uneven.policy.core.records import StepRecord
from uneven.policy.sync import SyncPolicy


@dataclass
class Played:
    """What came of it, by rank."""

    starts_s: dict[int, list[float]]
    clocks: dict[int, int]
    steps: list[StepRecord]
    waited_s: dict[int, float] = field(default_factory=dict)
    ends_s: dict[int, float] = field(default_factory=dict)
    widest_gap: int = 0

    def __post_init__(self) -> None:
        clocks = dict.fromkeys({step.rank for step in self.steps}, 0)
        for step in self.steps:
            self.waited_s[step.rank] = self.waited_s.get(step.rank, 0.0) + step.exchange_s
            self.ends_s[step.rank] = step.ended_at_s
            clocks[step.rank] = step.iteration + 1
            self.widest_gap = max(self.widest_gap, max(clocks.values()) - min(clocks.values()))


class Starts(Arithmetic):
    """Notes when each worker began to compute."""

    def __init__(self) -> None:
        self.of: dict[int, list[float]] = {}

    def computes(self, rank: int, iteration: int, samples: range, at_s: float) -> None:
        self.of.setdefault(rank, []).append(at_s)


def play(
    policy: SyncPolicy,
    cost_s: Mapping[int, float],
    steps: int,
    *,
    sites: Mapping[int, str] | None = None,
    leaves_s: Mapping[int, float] | None = None,
) -> Played:
    """Let workers that need ``cost_s`` for a step take ``steps`` of them; some may die at a given time."""
    nodes = [Node(name=f"n{rank}", cost=Affine(cost_s[rank], 0.0), site=(sites or {}).get(rank, "")) for rank in cost_s]
    events = [Event(do=Do.KILL, node=f"n{rank}", at_s=at_s) for rank, at_s in (leaves_s or {}).items()]
    workload = Workload(global_batch=4 * len(nodes), exchange_core_s=0.0)
    spec = ClusterSpec(name="uneven", nodes=tuple(nodes), events=tuple(events), workload=workload)
    records: list[object] = []
    starts = Starts()
    scenario = Scenario(spec=spec, balancer=Even(), policy=policy, iterations=steps)
    outcome = simulate(scenario, records.append, arithmetic=starts)
    clocks = {worker.rank: worker.clock for worker in outcome.workers}
    return Played(starts.of, clocks, [record for record in records if isinstance(record, StepRecord)])
