"""At their edges policies turn into each other; sums are kept that must be kept (sync_family, acceptance tests)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from replicas import Replicas

from uneven.policy.sync import policies

MEMBERS = (1, 2, 5, 9)
SHARES = {1: 16, 2: 8, 5: 8, 9: 32}
SITES = {1: "east", 2: "west", 5: "east", 9: "west"}
ALONE = {rank: f"site {rank}" for rank in MEMBERS}
STEPS = 24


def played(spec: str, *, momentum: float = 0.0, sites: dict[int, str] | None = None) -> Replicas:
    run = Replicas(MEMBERS, SHARES, sites=sites or {}, momentum=momentum)
    return run.play(policies.resolve(spec), STEPS)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("backup:spares=0", "bsp"),
        ("local:every=1", "bsp"),  # the mean of the parameters is that of the gradients where all is linear
        ("local:every=4,warmup=24", "bsp"),
        ("ma:every=1", "bsp"),
        ("bmuf:every=4,momentum=0,block_lr=1", "local:every=4"),
        ("bmuf:every=4,momentum=0,block_lr=1,nesterov=true", "local:every=4"),
        ("diloco:every=4,outer_lr=1,outer_momentum=0", "local:every=4"),
        ("diloco:every=4,outer_lr=0.7,outer_momentum=0.9", "bmuf:every=4,block_lr=0.7,momentum=0.9,nesterov=true"),
        ("shuffle:columns=4", "ma:every=1"),
        ("shuffle:columns=4:ma:every=3", "ma:every=3"),
        ("shuffle:groups=sites", "ma:every=1"),  # where there is only one site
        ("hierarchical:every=3", "bsp"),
    ],
)
def test_edges(spec: str, same: str, momentum: float) -> None:
    one, other = played(spec, momentum=momentum), played(same, momentum=momentum)
    assert np.ptp(one.all, axis=0) == pytest.approx(0, abs=1e-12)
    assert one.all == pytest.approx(other.all, abs=1e-12)
    assert abs(one.all).max() > 0.1


@pytest.mark.parametrize(("spec", "same"), [("hierarchical:every=4", "local:every=4"), ("local:every=4", "ma:every=4")])
def test_with_one_worker_a_site_a_hierarchy_is_local_sgd(spec: str, same: str) -> None:
    assert played(spec, sites=ALONE).all == pytest.approx(played(same).all, abs=1e-12)


def test_ssp_without_slack_is_bsp_where_shares_are_equal() -> None:
    equal = dict.fromkeys(MEMBERS, 8)
    ssp = Replicas(MEMBERS, equal).play(policies.resolve("ssp:staleness=0"), STEPS)
    assert ssp.all == pytest.approx(Replicas(MEMBERS, equal).play(policies.resolve("bsp"), STEPS).all, abs=1e-12)


def test_inside_a_site_replicas_are_equal_and_between_sites_after_an_exchange() -> None:
    run = Replicas(MEMBERS, SHARES, sites=SITES).play(policies.resolve("hierarchical:every=4"), 6)
    assert np.array_equal(run.x[1], run.x[5])
    assert np.array_equal(run.x[2], run.x[9])
    assert not np.allclose(run.x[1], run.x[2])
    again = Replicas(MEMBERS, SHARES, sites=SITES).play(policies.resolve("hierarchical:every=4"), 8)
    assert np.ptp(again.all, axis=0) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("together", ["true", "false"])
def test_an_elastic_exchange_keeps_the_sum_of_copy_and_replicas(together: str) -> None:
    run = Replicas(MEMBERS, SHARES, rate=0.0)  # exchanges without steps
    run.x = {rank: np.arange(3.0) * rank for rank in MEMBERS}
    run.centre = np.array([4.0, -1.0, 0.5])
    before = run.all.sum(axis=0) + run.centre
    run.play(policies.resolve(f"easgd:alpha=0.3,every=2,together={together}"), STEPS)
    assert run.all.sum(axis=0) + run.centre == pytest.approx(before)
    assert np.ptp(run.all, axis=0).max() < 0.5, "and draws them together"


def test_the_outer_step_of_diloco_is_torchs_sgd_with_nesterov_momentum() -> None:
    start = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    outer = torch.optim.SGD([start], lr=0.7, momentum=0.9, nesterov=True)
    twin = Replicas(MEMBERS, SHARES)
    for block in range(6):
        run = Replicas(MEMBERS, SHARES).play(policies.resolve("diloco:every=4"), 4 * (block + 1))
        twin.x = {rank: start.detach().numpy().copy() for rank in MEMBERS}
        twin.play(policies.resolve("local:every=4"), 4)
        start.grad = start.detach() - torch.tensor(twin.x[1])
        outer.step()
        assert run.x[1] == pytest.approx(start.detach().numpy(), abs=1e-12)


@pytest.mark.parametrize("by_samples", ["true", "false"])
def test_groups_keep_the_weighted_mean_of_all_or_the_plain_one(by_samples: str) -> None:
    run = Replicas(MEMBERS, SHARES, rate=0.0)
    run.x = {rank: np.arange(3.0) * rank for rank in MEMBERS}
    weights = [SHARES[rank] if by_samples == "true" else 1 for rank in MEMBERS]
    mean = np.average(run.all, axis=0, weights=weights)
    for _ in range(6):
        run.play(policies.resolve(f"shuffle:groups=random,size=2:ma:every=1,by_samples={by_samples}"), 1)
        assert np.average(run.all, axis=0, weights=weights) == pytest.approx(mean)
