"""A policy sees the same of a run as of its simulation."""

from __future__ import annotations

from policy_runs import Run
from session_parts import X

from uneven.cluster.pure.describe.spec import ClusterSpec, Node, Workload
from uneven.cluster.pure.simulate import Scenario, simulate
from uneven.policy.balance import balancers
from uneven.policy.core.actions import StepPlan
from uneven.policy.core.cost import Affine
from uneven.policy.core.views import SyncView
from uneven.policy.sync import Facts, SyncPolicy, policies
from uneven.testing.ranks import RankContext, ranks

STEPS = 4


class Watching(SyncPolicy):
    """Another policy, and what it was shown."""

    def __init__(self, inner: str) -> None:
        self.inner = inner
        self._policy = policies.resolve(inner)
        self.evaluation_model = self._policy.evaluation_model
        self.views: dict[tuple[int, int], list[SyncView]] = {}

    @property
    def facts(self) -> Facts | None:
        return self._policy.facts

    def plan(self, view: SyncView) -> StepPlan:
        self.views.setdefault((view.rank, view.clock), []).append(view)
        return self._policy.plan(view)


def of_a_simulation(inner: str, sites: dict[int, str]) -> Watching:
    nodes = tuple(Node(name=f"n{rank}", cost=Affine(0.1 + 0.05 * rank, 0.0), site=sites[rank]) for rank in sites)
    spec = ClusterSpec(name="same", nodes=nodes, workload=Workload(global_batch=X))
    policy = Watching(inner)
    simulate(Scenario(spec=spec, balancer=balancers.resolve("even"), policy=policy, iterations=STEPS))
    return policy


@ranks(2)
def test_the_same_policy_sees_the_same_views_in_a_run_and_in_its_simulation(me: RankContext) -> None:
    """Of steps that both worlds take: nobody says how far others are who do not keep step."""
    for inner in ("bsp", "local:every=2", "asp"):
        real = Watching(inner)
        run = Run(real)
        real.views.clear()  # those of checks before the first step, which ask about two workers anywhere
        run.epoch(most=STEPS)
        simulated = of_a_simulation(inner, run.session._loop.context.sites)
        common = real.views.keys() & simulated.views.keys()
        assert {(me.rank, 0), (me.rank, 1)} <= common, inner
        for step in common:
            (view,) = simulated.views[step]
            assert all(seen == view for seen in real.views[step]), inner
        run.session.close()
