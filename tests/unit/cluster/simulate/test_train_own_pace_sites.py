"""Sites at whose parameter servers workers go at their own pace: real gradients in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from quadratics import Quadratic, Trained, Watched, by_hand
from small_world import Ran, cluster, node
from torch import Tensor

from uneven.cluster.pure.describe.cluster_events import Event
from uneven.cluster.pure.describe.spec import ClusterSpec, Do, SiteLink, steady
from uneven.cluster.virtual.copies import key_of
from uneven.policy.core.actions import Add, Exchange
from uneven.policy.core.records import StepRecord

STEPS = 12


def sited(sites: str, speeds: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0), latency_s: float = 0.0) -> ClusterSpec:
    """A worker for each letter, at the site of that name; a step takes so many seconds."""
    nodes = [node(f"n{place}", speeds[place], site=site) for place, site in enumerate(sites)]
    names = sorted(set(sites))
    lines = [
        SiteLink(between=(here, there), bit_per_s=steady(1e12), latency_s=latency_s)
        for here, there in product(names, names)
        if here < there
    ]
    return cluster(*nodes, links=tuple(lines if latency_s else ()))


def trained(policy: str, spec: ClusterSpec, steps: int = STEPS) -> Trained:
    return Trained(spec, Quadratic.random(64), policy, iterations=steps)


def copies(run: Trained) -> tuple[Tensor, Tensor]:
    """Of each site its copy, and that without what the site has not told the others."""
    found = list({id(one): one for one in run.training._copies._of.values()}.values())
    return torch.stack([one.parameters for one in found]), torch.stack([one.shared for one in found])


@pytest.mark.parametrize("sites", ["aabb", "abcd", "abbb"])
@pytest.mark.parametrize("policy", ["threshold=0", "threshold=0,schedule=sqrt", "threshold=0.5,flush=1"])
def test_where_all_is_sent_and_nobody_leads_it_is_bsp(sites: str, policy: str) -> None:
    """On plain SGD, in double precision up to the order of sums; also where sites are unequal."""
    task = Quadratic.random(64)
    run = Trained(sited(sites), task, f"geo:ssp:staleness=0,{policy}", iterations=STEPS)
    batches = [[run.training.computed[rank, step] for rank in range(4)] for step in range(STEPS)]
    found, shared = copies(run)
    expected = by_hand(Quadratic.random(64), run.order, batches)
    assert torch.allclose(found, expected.expand_as(found), rtol=0, atol=1e-12)
    assert torch.allclose(shared, found, rtol=0, atol=1e-14)
    assert torch.allclose(run.training._centre, expected, rtol=0, atol=1e-12)


class Accounted(Watched):
    """Adds up what each worker has pushed, and what each site has sent and heard, and compares before every step."""

    def __init__(self, *rest: Any, **named: Any) -> None:
        super().__init__(*rest, **named)
        self.pushed: dict[int, Tensor] = {}
        self.sent: dict[int, Tensor] = {}
        self.heard: dict[int, Tensor] = {}
        self.most_held = 0.0
        self.compared = 0

    def merges(self, exchange: Exchange, ranks: tuple[int, ...]) -> None:
        assert isinstance(exchange.merge, Add)
        given = exchange.merge.scale * self._sent[key_of(ranks[0], exchange)].value
        self.pushed[ranks[0]] = self.pushed.get(ranks[0], 0) + given
        super().merges(exchange, ranks)

    def writes(self, rank: int, exchange: Exchange) -> object:
        found = super().writes(rank, exchange)
        assert isinstance(found, Tensor)
        self.sent[rank] = self.sent.get(rank, 0) + found
        return found

    def hears(self, exchange: Exchange, content: object, ranks: Sequence[int]) -> None:
        super().hears(exchange, content, ranks)
        assert isinstance(content, Tensor)
        self.heard[ranks[0]] = self.heard.get(ranks[0], 0) + content

    def computes(self, rank: int, iteration: int, samples: range, at_s: float) -> None:
        super().computes(rank, iteration, samples, at_s)
        initial = self.sgd.task.initial()
        none = torch.zeros_like(initial)
        for site in ((0, 1), (2,), (3,)):
            copy, first = self._copies.of(site), site[0]
            own = sum((self.pushed.get(one, none) for one in site), none)
            heard, sent, held = self.heard.get(first, none), self.sent.get(first, none), copy.parameters - copy.shared
            torch.testing.assert_close(copy.parameters, initial + own + heard, rtol=0, atol=1e-12)
            torch.testing.assert_close(own, sent + held, rtol=0, atol=1e-12)
            self.most_held = max(self.most_held, float(held.abs().max()))
            self.compared += 1


@pytest.mark.parametrize("more", ["", ",bits=16,lead=1", ",lead=3,schedule=sqrt"])
def test_what_a_site_has_moved_is_sent_or_in_its_own_copy_before_every_step(more: str) -> None:
    """Sent + held = own movements, with unequal speeds, while messages are under way and when all have come."""
    spec = sited("aabc", (1.0, 1.4, 1.0, 0.8), latency_s=0.7)
    run = Trained(spec, Quadratic.random(64), f"geo:ssp:staleness=2,threshold=0.5{more}", iterations=STEPS,
                  watched=Accounted)  # fmt: skip
    assert isinstance(run.training, Accounted)
    assert run.training.compared == 3 * 4 * STEPS
    assert run.training.most_held > 1e-3
    found, shared = copies(run)
    assert torch.allclose(shared, shared[0].expand_as(shared), rtol=0, atol=1e-12), "what all have been told"
    assert not torch.allclose(found[0], found[1], atol=1e-6)


def test_a_flush_makes_all_copies_equal() -> None:
    found, shared = copies(trained(f"geo:ssp:staleness=0,threshold=0.5,flush={STEPS}", sited("aabc")))
    assert torch.allclose(found, found[0].expand_as(found), rtol=0, atol=1e-12)
    assert torch.allclose(found, shared, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("staleness", "lead"), [(0, 0), (2, 0), (1, 2), (3, 1)])
def test_nobody_is_further_ahead_than_the_staleness_at_home_and_the_lead_beyond_elsewhere(
    staleness: int, lead: int
) -> None:
    """One worker of four is four times as slow; clocks differ by at most one more while a step is under way."""
    run = trained(f"geo:ssp:staleness={staleness},threshold=0,lead={lead}", sited("aabb", (4.0, 1.0, 1.0, 1.0)), 24)
    clocks, home, far = dict.fromkeys(range(4), 0), 0, 0
    for step in (one for one in run.records if isinstance(one, StepRecord)):
        clocks[step.rank] = step.iteration + 1
        home = max(home, clocks[1] - clocks[0])
        far = max(far, max(clocks[2], clocks[3]) - clocks[0])
    assert (home, far) == (staleness + 1, staleness + lead + 1)


def test_a_site_that_leads_does_not_wait_for_the_line() -> None:
    spec = sited("aabb", latency_s=1.5)
    ends_s = {
        lead: Ran(spec, f"geo:ssp:staleness=0,lead={lead},schedule=fixed", iterations=8).ends_s(0)[-1]
        for lead in range(4)
    }
    assert ends_s[0] == pytest.approx(8 + 7 * 1.5)
    assert ends_s[0] > ends_s[1] > ends_s[2] >= ends_s[3] == pytest.approx(8)


def test_only_sites_speak_over_the_line_between_them() -> None:
    """Two of a hundred entries, 6 bytes each of 4, once a step each way; the model itself stays at home."""
    link = SiteLink(between=("a", "b"), bit_per_s=steady(8e6))
    nodes = [node(name, site=name[0]) for name in ("a0", "a1", "b0", "b1")]
    spec = cluster(*nodes, links=(link,), significant=0.02)
    ends_s = Ran(spec, "geo:ssp:staleness=0,schedule=fixed", iterations=5).ends_s(0)
    assert ends_s[-1] == pytest.approx(5 + 4 * 0.03, rel=0.01)
    alone = cluster(*[node(name, site="a") for name in ("a0", "a1")])
    one, other = (trained(policy, alone, 6) for policy in ("geo:ssp:staleness=1", "ssp:staleness=1"))
    assert torch.equal(one.training._centre, other.training._centre)


def test_workers_that_end_or_die_keep_nobody_waiting() -> None:
    dies = Event(at_s=4.5, do=Do.KILL, node="n1")
    spec = replace(sited("aabb", (1.0, 1.0, 1.5, 1.0), latency_s=0.2), events=(dies,))
    run = trained("geo:ssp:staleness=1,threshold=0.1,lead=1", spec, 20)
    ended = {worker.rank: worker.clock for worker in run.outcome.workers}
    assert min(clock for rank, clock in ended.items() if rank != 1) >= 19, "all share what the dead one has left"
    assert bool(run.training._centre.isfinite().all())
