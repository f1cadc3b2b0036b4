"""Sites that send each other the entries that matter: real gradients in virtual time."""

from __future__ import annotations

import pytest
import torch
from quadratics import Quadratic, Trained, by_hand
from small_world import Ran, cluster, node

from uneven.cluster.spec import ClusterSpec, SiteLink, steady

STEPS = 12


def sited(*sites: str, balanced: bool = False, **workload: object) -> ClusterSpec:
    slow = [2.0 if balanced and place == 0 else 1.0 for place in range(len(sites))]
    nodes = [node(f"n{place}", slow[place], site=site) for place, site in enumerate(sites)]
    return cluster(*nodes, **workload)


def bsp(task: Quadratic, trained: Trained) -> torch.Tensor:
    """One process on the same samples, step after step."""
    batches = [[trained.training.computed[rank, step] for rank in range(4)] for step in range(STEPS)]
    return by_hand(task, trained.order, batches)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("sites", [("a", "a", "b", "b"), ("a", "b", "c", "d"), ("a", "b", "b", "b")])
@pytest.mark.parametrize("policy", ["geo:bsp:threshold=0", "geo:bsp:threshold=0,schedule=sqrt", "topk:density=1"])
def test_where_all_is_sent_it_is_bsp(policy: str, sites: tuple[str, ...], momentum: float) -> None:
    """Gaia with v = 0 and no slack, in double precision up to the order of sums; also where sites are unequal."""
    task = Quadratic.random(64, momentum=momentum)
    trained = Trained(sited(*sites), task, policy, iterations=STEPS)
    assert torch.allclose(trained.replicas(), bsp(task, trained), rtol=0, atol=1e-12)


def test_where_the_learning_rate_is_divided_by_hand_nothing_else_divides_it() -> None:
    halved = Quadratic.random(64, learning_rate=0.05, momentum=0.9)
    trained = Trained(sited("a", "a", "b", "b"), halved, "geo:bsp:threshold=0,divide=false", iterations=STEPS)
    whole = Quadratic.random(64, learning_rate=0.1, momentum=0.9)
    assert torch.allclose(trained.replicas(), bsp(whole, trained), rtol=0, atol=1e-12)


def unsent(trained: Trained, rank: int) -> torch.Tensor:
    replica = trained.training._replicas[rank]
    return replica.state.moved - replica.carried


@pytest.mark.parametrize("policy", ["geo:bsp:threshold=0.2", "geo:bsp:threshold=0.2,bits=16"])
def test_what_is_not_sent_is_in_the_sites_own_replica_only(policy: str) -> None:
    task = Quadratic.random(64, momentum=0.9)
    trained = Trained(sited("a", "b", "c"), task, policy, iterations=STEPS)
    held = torch.stack([unsent(trained, rank) for rank in range(3)])
    assert held.abs().sum() > 0
    replicas = trained.replicas()
    common = replicas - held
    assert torch.allclose(common, common[0].expand(3, -1), rtol=0, atol=1e-12)
    assert not torch.allclose(replicas[0], replicas[1], atol=1e-6)
    if "bits" not in policy:
        assert (held.abs() <= 0.2 * replicas.abs() * 1.5 + 1e-9).all()


def test_a_flush_makes_all_replicas_equal() -> None:
    task = Quadratic.random(64, momentum=0.9)
    trained = Trained(sited("a", "b", "c"), task, f"geo:bsp:threshold=0.5,flush={STEPS}", iterations=STEPS)
    replicas = trained.replicas()
    assert torch.allclose(replicas, replicas[0].expand(3, -1), rtol=0, atol=1e-12)


def test_replicas_that_keep_what_is_not_sent_beside_them_are_equal() -> None:
    task = Quadratic.random(64)
    trained = Trained(sited("a", "b", "b", "c"), task, "sparse-local:every=4,density=0.4,chunk=3", iterations=STEPS)
    replicas = trained.replicas()
    assert all(torch.equal(replicas[0], one) for one in replicas)
    assert any(unsent(trained, rank).abs().sum() > 0 for rank in range(4))


def test_local_steps_of_which_everything_is_sent_are_local_sgd() -> None:
    for momentum in (0.0, 0.9):
        task = Quadratic.random(64, momentum=momentum)
        sparse = Trained(sited("", "", ""), task, "sparse-local:every=4,density=1,bits=32", iterations=STEPS)
        local = Trained(sited("", "", ""), task, "local:every=4", iterations=STEPS)
        assert torch.allclose(sparse.replicas(), local.replicas(), rtol=0, atol=1e-12)


def test_what_was_moved_is_sent_or_held_after_every_block() -> None:
    """Σ sent + held = Σ own movements, by what the replicas are made of: start + Σ mean of what was sent."""
    task = Quadratic.random(64)
    for steps in range(1, STEPS + 1):
        trained = Trained(sited("a", "b", "c"), task, "topk:density=0.4,chunk=3,bits=16", iterations=steps)
        moved = torch.stack([trained.training._replicas[rank].state.moved for rank in range(3)])
        sent = moved - torch.stack([unsent(trained, rank) for rank in range(3)])
        assert torch.allclose(trained.replicas(), task.initial() + sent.mean(0), rtol=0, atol=1e-12)


def test_entries_take_the_time_of_their_bytes() -> None:
    """A megabyte over a line of a megabyte a second, one site to the other and back at the same time: 1 s dense."""
    nodes = [node("a", site="a"), node("b", site="b")]
    spec = cluster(*nodes, links=(SiteLink(between=("a", "b"), bit_per_s=steady(8e6)),), significant=0.01)
    ends_s = Ran(spec, "geo:bsp", iterations=2).ends_s(0)
    assert ends_s[0] == pytest.approx(1.0 + 0.015, rel=0.01)  # 1 % of the entries, 6 bytes each of 4
    assert Ran(spec, "bsp", iterations=2).ends_s(0)[0] == pytest.approx(2.0, rel=0.01)
    tenth = Ran(spec, "sparse-local:every=2", iterations=2).ends_s(0)
    assert tenth[0] == pytest.approx(1.0)
    assert tenth[1] - tenth[0] == pytest.approx(1.0 + 1.5 * 0.1 / 4, rel=0.05)


def test_with_one_site_it_is_the_policy_inside() -> None:
    task = Quadratic.random(64)
    one, other = (Trained(sited("a", "a", "a"), task, policy, iterations=6) for policy in ("geo:bsp", "bsp"))
    assert torch.equal(one.replicas(), other.replicas())
