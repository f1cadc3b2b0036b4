"""Samples that stay at their site, and models that visit other sites, in virtual time."""

from __future__ import annotations

import pytest
import torch
from quadratics import Quadratic
from small_world import cluster, node
from torch import nn

from uneven.cluster.pure.simulate import Scenario
from uneven.cluster.virtual import train
from uneven.cluster.virtual.homes import HomeOrder
from uneven.cluster.virtual.task import Classification
from uneven.cluster.virtual.virtual_traffic import ModelTraffic
from uneven.errors import ConfigError
from uneven.policy.balance import balancers
from uneven.policy.sync import Scout, policies

STEPS = 40


def scenario(policy: str, steps: int = STEPS) -> Scenario:
    spec = cluster(node("n0", site="a"), node("n1", site="b"), node("n2", site="b"))
    return Scenario(
        spec=spec, balancer=balancers.resolve("even"), policy=policies.resolve(policy), iterations=steps, seed=1
    )


def homes(length: int = 30) -> HomeOrder:
    return HomeOrder([range(10), range(10, length)], {0: 0, 1: 1, 2: 1}, seed=0)


def test_each_worker_computes_with_samples_of_its_site_all_of_them_once_an_epoch() -> None:
    task = Quadratic.random(30)
    task.by_sample = False  # so that batches of one worker can be told apart
    train(scenario("bsp", 10), task, homes=homes())
    sites = [[sample >= 10 for sample in call] for call in task.calls]
    assert all(len(set(one)) == 1 for one in sites)
    for far, length in ((False, 10), (True, 20)):
        seen = [sample for call, at in zip(task.calls, sites, strict=True) for sample in call if at[0] == far]
        assert sorted(seen[:length]) == sorted(set(seen[:length])), "once before any twice"


def test_a_worker_at_a_site_without_samples_is_refused() -> None:
    with pytest.raises(ConfigError, match="which has no samples"):
        HomeOrder([range(3)], {0: 0, 1: 1}, seed=0)


def labelled(seed: int = 0) -> Classification:
    """Two labels, each at one site: what a model learns at home is of no use away."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.cat([torch.zeros(10), torch.ones(20)]).long()
    x = torch.randn(30, 4, generator=generator) + 2 * y[:, None]
    torch.manual_seed(seed)
    return Classification(nn.Linear(4, 2), (x, y), (x, y), learning_rate=0.1)


def scouted(policy: str) -> Scout:
    playing = scenario(policy)
    train(playing, labelled(), homes=homes())
    assert isinstance(playing.policy, Scout)
    return playing.policy


def test_what_models_lose_away_tightens_the_knob() -> None:
    policy = scouted("scout:period=5,judge=copies:local")
    assert len(policy.periods) == (STEPS - 1) // 5
    assert policy.periods[0].loss > 0.05, "64 steps alone, on one label"
    assert policy.setting < policy.settings[0]
    assert all(one.share >= 0.2 - 1e-9 for one in policy.periods), "each visit is a whole model"


def test_a_policy_that_scouts_needs_the_samples_homes() -> None:
    with pytest.raises(ConfigError, match="homes"):
        train(scenario("scout:geo"), labelled())
    with pytest.raises(ConfigError, match="right"):
        train(scenario("scout:period=5:geo"), Quadratic.random(30), homes=homes())


def test_a_momentum_that_a_lead_makes_unstable_is_refused() -> None:
    train(scenario("geo:bsp:lead=1"), Quadratic.random(30))
    with pytest.raises(ConfigError, match="is stable only up to"):
        train(scenario("geo:bsp:lead=1"), Quadratic.random(30, momentum=0.9))


def test_traffic_counts_what_leaves_a_site() -> None:
    sent = {}
    for policy in ("bsp", "geo:bsp:threshold=0", "local:every=4", "hierarchical:every=4", "topk:density=1"):
        traffic = ModelTraffic({0: 0, 1: 1, 2: 1})
        train(scenario(policy), Quadratic.random(30), traffic=traffic)
        sent[policy] = traffic.models / STEPS
    assert sent["bsp"] == sent["geo:bsp:threshold=0"] == pytest.approx(traffic.of_bsp)
    assert sent["local:every=4"] == sent["hierarchical:every=4"] == pytest.approx(traffic.of_bsp / 4)
    assert sent["topk:density=1"] == pytest.approx(1.0, rel=0.05)


def test_batches_are_joined_only_where_each_sample_is_treated_by_itself() -> None:
    def batches(by_sample: bool) -> int:
        task = Quadratic.random(30)
        task.by_sample = by_sample
        train(scenario("bsp", 4), task)
        return len(task.calls)

    assert (batches(True), batches(False)) == (4, 12)
