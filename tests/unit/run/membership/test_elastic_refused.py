"""Which policies an elastic run carries, and why it refuses the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

from uneven.errors import ConfigError
from uneven.policy.balance import balancers
from uneven.policy.core.actions import StepPlan
from uneven.policy.core.run_config import RunConfig
from uneven.policy.core.views import SyncView
from uneven.policy.merge import Elastic, Mean, Merge
from uneven.policy.sync import Regional, SyncPolicy, policies
from uneven.run.membership.agreed import BackgroundMembers
from uneven.run.membership.followed import FollowedMembers
from uneven.run.model.check import refuse_inelastic
from uneven.run.step.build import elastic_kind
from uneven.run.step.refusals import refuse_elastic
from uneven.runtime.world import Elastic as ElasticWorld

RUN = ElasticWorld(least=1, most=4, silence_s=10.0)


def refuse(sync: str, *, balance: str = "lb-bsp", run: ElasticWorld = RUN, threads: int = 1) -> None:
    refuse_elastic(run, policies.resolve(sync), balancers.resolve(balance), RunConfig(threads=threads))


@pytest.mark.parametrize(
    "sync",
    [
        "bsp",
        "local:every=4",
        "local:every=4,warmup=10",
        "ma",
        "bmuf",
        "diloco",
        "blocks:merge=mean",
        "local:every=9999",
        "shuffle",
        "shuffle:groups=random,size=3:ma:every=4",
        "hierarchical",
        "regional",
        "easgd:together=true",
        "easgd:together=true,alpha=0.5",
        "topk:density=0.1",
        "topk:by_site=false",
        "sparse-local:every=3",
        "geo:threshold=0.02",
        "geo:flush=4,mbit=1,most=0.5",
    ],
)
def test_carried(sync: str) -> None:
    refuse(sync)


@pytest.mark.parametrize(
    "sync", ["shadow:ma", "shadow:bmuf", "shadow:local", "shadow:diloco:every=3", "shadow:easgd:together=true"]
)
def test_carried_beside_the_training(sync: str) -> None:
    refuse(sync, balance="even")
    assert elastic_kind(policies.resolve(sync)) is BackgroundMembers


@pytest.mark.parametrize("sync", ["asp", "ssp", "easgd", "backup", "shadow:easgd", "shadow:asp", "decoupled"])
def test_carried_through_a_parameter_server(sync: str) -> None:
    refuse(sync, balance="even")
    assert elastic_kind(policies.resolve(sync)) is FollowedMembers


@pytest.mark.parametrize(
    ("sync", "why"),
    [
        ("sparse-local:every=4,delay=1", "with delay = 1 an outcome is in flight, which a new worker would miss"),
        ("geo:lead=2", "with lead = 2 entries are in flight that belong to no common step;"),
        ("geo:lead=2,barrier_kb=10", "no common step, and so is the barrier that bounds them"),
        ("geo:hubs=true", "a sum that a hub has not forwarded"),
        ("geo:ssp", "the server of a site is in one of its workers"),
        ("diloco:fragments=2", "parameters in pieces"),
        ("diloco:delay=2", "parameters in pieces"),
    ],
)
def test_refused_with_the_reason(sync: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        refuse(sync)


class Elsewhere(Regional):
    """Keeps momentum in pairs that are no sites, or lets sites meet by another rule."""

    def __init__(self, far: Merge | None = None) -> None:
        super().__init__(every=1, across=1)
        self.far = far

    def plan(self, view: SyncView) -> StepPlan:
        near, *far = super().plan(view).exchanges
        if self.far is None:
            return StepPlan(exchanges=(replace(near, members=view.members[:2]), *far))
        return StepPlan(exchanges=(near, *(replace(one, merge=self.far) for one in far)))


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (Elsewhere(), "OuterMovement among some of the workers, which are not those of a site"),
        (Elsewhere(Mean(by_samples=False)), "Mean among parties, which is not a mean by samples"),
        (Elsewhere(Elastic(0.1)), "Elastic among parties, which is not a mean by samples"),
    ],
)
def test_groups_that_are_refused(policy: SyncPolicy, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        refuse_elastic(RUN, policy, balancers.resolve("lb-bsp"), RunConfig())


def test_a_policy_that_most_workers_would_break_is_refused_before_they_come() -> None:
    with pytest.raises(ConfigError, match=r"alpha = 0\.6 with 4 workers would make the centre overshoot"):
        refuse("easgd:together=true,alpha=0.6")


@pytest.mark.parametrize("sync", ["ma", "diloco", "shuffle:ma", "easgd:together=true"])
def test_threads_that_stop_for_an_exchange_are_carried(sync: str) -> None:
    refuse(sync, balance="even", threads=3)


def test_other_reasons() -> None:
    with pytest.raises(ConfigError, match="threads = 2"):
        refuse("shadow:ma", balance="even", threads=2)
    with pytest.raises(ConfigError, match="made for 2 workers"):
        refuse("bsp", balance="static:shares=2/1")
    with pytest.raises(ConfigError, match="threads = 2"):
        refuse("bsp", threads=2)
    with pytest.raises(ConfigError, match="more than 64 workers"):
        refuse("bsp", run=ElasticWorld(least=1, most=65, silence_s=10.0))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)), "SyncBatchNorm, which torch has for accelerators only"),
        (nn.Embedding(3, 2, sparse=True), "sparse gradients"),
        (nn.Linear(2, 2).half(), "parameters of type torch.float16"),
    ],
)
def test_models_that_are_not_carried(model: nn.Module, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        refuse_inelastic(model)
