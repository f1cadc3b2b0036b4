"""Sites that send each other the entries that matter: real gradients in virtual time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from quadratics import Quadratic, Trained, by_hand
from small_world import Ran, cluster, node

from uneven.cluster.pure.describe.spec import ClusterSpec, Do, Event, SiteLink, steady
from uneven.errors import ConfigError
from uneven.policy.core.actions import span
from uneven.policy.core.records import LineRecord, StepRecord
from uneven.policy.sync import DiLoCo, policies

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


def records(spec: ClusterSpec, policy: str) -> list[LineRecord]:
    return [one for one in Ran(spec, policy, iterations=2).records if isinstance(one, LineRecord)]


def test_hubs_come_to_the_same_and_send_what_several_have_changed_once() -> None:
    sites = ("us/a", "us/b", "us/c", "eu/a", "eu/b")
    task = Quadratic.random(64, momentum=0.9)
    mesh, hubs = (
        Trained(sited(*sites), task, f"geo:bsp:threshold=0.2{more}", iterations=STEPS) for more in ("", ",hubs=true")
    )
    assert torch.allclose(mesh.replicas(), hubs.replicas(), rtol=0, atol=1e-12)
    far = [
        SiteLink(between=(here, there), bit_per_s=steady(8e6))
        for here in sites[:3] for there in sites[3:]
    ]  # fmt: skip
    nodes = [node(site.replace("/", "-"), site=site) for site in sites]
    spec = cluster(*nodes, links=tuple(far), significant=0.01)
    sent = {
        name: sum(one.sent_bytes for one in records(spec, f"geo:bsp{more}"))
        for name, more in (("mesh", ""), ("hubs", ":hubs=true"))
    }
    assert sent["hubs"] < sent["mesh"] / 2
    with pytest.raises(ConfigError, match="use one of the two"):
        policies.resolve("geo:bsp:hubs=true,lead=1")


def test_with_one_site_it_is_the_policy_inside() -> None:
    task = Quadratic.random(64)
    one, other = (Trained(sited("a", "a", "a"), task, policy, iterations=6) for policy in ("geo:bsp", "bsp"))
    assert torch.equal(one.replicas(), other.replicas())


def test_a_lead_lets_sites_go_on_while_entries_are_under_way_and_no_further() -> None:
    nodes = [node(name, site=name) for name in ("a", "b")]
    spec = cluster(*nodes, links=(SiteLink(between=("a", "b"), bit_per_s=steady(1e12), latency_s=1.5),))
    ends_s = {lead: Ran(spec, f"geo:bsp:lead={lead},schedule=fixed", iterations=8).ends_s(0)[-1] for lead in range(4)}
    assert ends_s[0] > ends_s[1] > ends_s[2] >= ends_s[3]
    assert ends_s[3] == pytest.approx(Ran(cluster(*nodes), "bsp", iterations=8).ends_s(0)[-1], rel=0.01)


@pytest.mark.parametrize("lead", [1, 3])
def test_with_a_lead_nothing_is_lost_and_it_comes_to_the_same_place(lead: int) -> None:
    task = Quadratic.random(64)
    late = Trained(sited("a", "a", "b", "c"), task, f"geo:bsp:threshold=0,lead={lead}", iterations=60)
    sent = torch.stack([late.training._replicas[rank].state.moved - unsent(late, rank) for rank in (0, 2, 3)])
    held = unsent(late, 0)
    assert torch.allclose(late.replicas()[0], task.initial() + sent.sum(0) + held, rtol=0, atol=1e-12)
    assert torch.equal(late.replicas()[0], late.replicas()[1]), "of one site"
    steady_ = Trained(sited("a", "a", "b", "c"), task, "geo:bsp:threshold=0", iterations=60)
    assert (late.replicas()[0] - steady_.replicas()[0]).abs().max() < 0.1 * steady_.replicas()[0].abs().max()


@pytest.mark.parametrize("delay", [0, 2])
def test_fragments_are_local_sgd_of_one_piece_after_the_other(delay: int) -> None:
    """Each piece of three is averaged every six steps, two steps after the one before."""
    task = Quadratic.random(64)
    steps, policy = 7, "diloco:every=6,fragments=3,outer_lr=1.0,outer_momentum=0.0"
    whole = Trained(sited("", "", ""), task, "local:every=6", iterations=6)
    cut = Trained(sited("", "", ""), task, f"{policy},delay={delay // 2}", iterations=steps)
    replicas = cut.replicas()
    size = replicas.shape[1]
    assert torch.equal(whole.replicas()[0], whole.replicas()[1])
    last = span((2, 3), size)
    if not delay:
        six = Trained(sited("", "", ""), task, policy, iterations=6).replicas()
        assert torch.equal(six[0, last], six[1, last]), "the piece that was exchanged last"
        assert not torch.equal(six[0, span((0, 3), size)], six[1, span((0, 3), size)])
        mean = six.mean(0)
        assert torch.allclose(mean, whole.replicas()[0], rtol=0, atol=0.2 * float(mean.abs().max()))


def test_an_outer_step_in_pieces_is_one_outer_step_where_all_pieces_go_at_once() -> None:
    task = Quadratic.random(64)
    one = Trained(sited("", "", ""), task, "diloco:every=1", iterations=STEPS)
    late = Trained(sited("", "", ""), task, "diloco:every=2,delay=1", iterations=STEPS)
    assert torch.equal(one.replicas()[0], one.replicas()[2])
    assert bool(late.replicas().isfinite().all())


def test_an_outer_optimizer_of_the_user_is_what_it_stands_for() -> None:
    task = Quadratic.random(64)
    nesterov = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
    by_hand_, own = (
        Trained(sited("", "", ""), task, policy, iterations=STEPS)
        for policy in (DiLoCo(every=3), DiLoCo(every=3, outer=nesterov))
    )
    assert torch.allclose(by_hand_.replicas(), own.replicas(), rtol=0, atol=1e-12)
    adam = Trained(sited("", ""), task, DiLoCo(every=3, outer=partial(torch.optim.Adam, lr=0.01)), iterations=STEPS)
    assert torch.equal(adam.replicas()[0], adam.replicas()[1])


def test_an_exchange_under_way_holds_nobody_up_until_it_is_due() -> None:
    nodes = [node(name, site=name) for name in ("a", "b")]
    spec = cluster(*nodes, links=(SiteLink(between=("a", "b"), bit_per_s=steady(1e12), latency_s=0.6),))
    ends_s = {delay: Ran(spec, f"diloco:every=4,delay={delay}", iterations=9).ends_s(0)[-1] for delay in (0, 1, 3)}
    assert ends_s[0] > ends_s[1] > ends_s[3] == pytest.approx(9.0)
    with pytest.raises(ConfigError, match="fragments that divide every"):
        policies.resolve("diloco:every=4,fragments=4,delay=1")
    with pytest.raises(ConfigError, match="mix up"):
        Ran(spec, "shadow:diloco:every=4,fragments=2", iterations=5)


def test_learners_never_wait_and_what_comes_late_counts_in_the_next_merge() -> None:
    speeds = [1.0, 1.0, 2.5]
    spec = cluster(*[node(f"n{place}", slow, site=f"s{place}") for place, slow in enumerate(speeds)])
    task = Quadratic.random(64)
    policy = "decoupled:every=2,quorum=2,outer_lr=1.0,outer_momentum=0.0,grace=0.0"
    trained = Trained(spec, task, policy, iterations=20)
    ends_s = {rank: [one.ended_at_s for one in trained.records if isinstance(one, StepRecord) and one.rank == rank]
              for rank in range(3)}  # fmt: skip
    assert all(
        after - before == pytest.approx(speeds[rank]) for rank, own in ends_s.items() for before, after in pairwise(own)
    )
    assert len(ends_s[0]) > 2 * len(ends_s[2])
    centre = trained.training._centre
    assert bool(centre.isfinite().all())
    whole = Trained(spec, task, "decoupled:every=2,quorum=3,outer_lr=1.0,outer_momentum=0.0", iterations=20)
    assert not torch.equal(whole.training._centre, centre)
    assert any(2 in ranks for ranks in trained.training.merged), "a slow learner is late for many, and in others"
    assert all(len(ranks) >= 2 for ranks in trained.training.merged[:-2]), "until the fast ones have no more to send"


def test_the_first_merge_of_all_without_momentum_is_that_of_local_sgd() -> None:
    task = Quadratic.random(64)
    apart = Trained(sited("", "", ""), task, "decoupled:every=4,quorum=3,outer_lr=1.0,outer_momentum=0.0", iterations=5)
    local = Trained(sited("", "", ""), task, "local:every=4", iterations=4)
    assert torch.allclose(apart.training._centre, local.replicas()[0], rtol=0, atol=1e-12)


def test_a_grace_window_takes_in_who_comes_soon_after_the_quorum() -> None:
    speeds = [1.0, 1.5, 1.8]
    spec = cluster(*[node(f"n{place}", slow, site=f"s{place}") for place, slow in enumerate(speeds)])
    merged = {}
    for grace in (0.0, 2.0):
        trained = Trained(spec, Quadratic.random(64), f"decoupled:every=4,quorum=2,grace={grace}", iterations=12)
        merged[grace] = trained.training.merged[0]
    assert (merged[0.0], merged[2.0]) == ((0, 1), (0, 1, 2))


def test_learners_merge_with_all_who_are_there_whatever_step_they_are_in() -> None:
    """The fast one's step is past a change of the members long before the slow one's is."""
    nodes = [node(f"n{place}", slow, site=f"s{place}") for place, slow in enumerate([1.0, 3.0, 3.5])]
    events = (Event(node="n2", do=Do.KILL, at_s=12.5), Event(node="n2", do=Do.JOIN, at_s=40.0))
    policy = "decoupled:every=2,quorum=2,grace=0.0,outer_lr=1.0,outer_momentum=0.0"
    trained = Trained(replace(cluster(*nodes), events=events), Quadratic.random(64), policy, iterations=40)
    merged = trained.training.merged
    came = [place for place, ranks in enumerate(merged) if 2 in ranks]
    assert len(came) > 2
    away = merged[came[0] + 1 : came[1]]
    assert away == [(0, 1)] * 6, "the slow one sends every 6 s, and waits for no other"


def test_two_levels_of_outer_steps_without_momentum_are_two_levels_of_means() -> None:
    task = Quadratic.random(64)
    plain = "outer_momentum=0.0,global_lr=1.0,global_momentum=0.0"
    spec = sited("a", "a", "b", "b")
    two = Trained(spec, task, f"regional:every=2,across=3,{plain}", iterations=STEPS)
    assert torch.equal(two.replicas()[0], two.replicas()[3])
    part = Trained(spec, task, f"regional:every=2,across=3,{plain}", iterations=2).replicas()
    assert torch.equal(part[0], part[1])
    assert not torch.equal(part[0], part[2])
    own = Trained(spec, task, "local:every=99", iterations=2).replicas()
    assert torch.allclose(part[0], own[:2].mean(0), rtol=0, atol=1e-12)
    often = Trained(spec, task, f"regional:every=2,across=1,{plain}", iterations=STEPS)
    assert torch.allclose(often.replicas(), Trained(spec, task, "local:every=2", iterations=STEPS).replicas(), rtol=0,
                          atol=1e-12)  # fmt: skip
    moved = Trained(spec, task, "regional:every=2,across=3", iterations=STEPS).replicas()
    assert not torch.allclose(moved, two.replicas(), atol=1e-6)
