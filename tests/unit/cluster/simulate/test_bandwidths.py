"""A site keeps within its bandwidth in virtual time: its threshold goes up where it sends more, and back."""

from __future__ import annotations

from typing import Any

import pytest
from quadratics import Quadratic, Trained, Watched
from small_world import Ran, cluster, node
from torch import Tensor

from uneven.cluster.pure.describe.spec import ClusterSpec, SiteLink, steady
from uneven.cluster.pure.simulate import Arithmetic
from uneven.policy.core.actions import Exchange, Significant
from uneven.policy.core.records import LineRecord
from uneven.policy.select import estimated_bytes


def sited(*sites: str, **workload: Any) -> ClusterSpec:
    pairs = {tuple(sorted((a, b))) for a in sites for b in sites if a < b}
    links = tuple(SiteLink(between=pair, bit_per_s=steady(1e9)) for pair in sorted(pairs))
    return cluster(*[node(f"n{place}", site=site) for place, site in enumerate(sites)], links=links, **workload)


class Noted(Arithmetic):
    """Which threshold each worker takes for each of its exchanges."""

    def __init__(self) -> None:
        self.thresholds: dict[int, list[float]] = {}

    def sends(self, rank: int, exchange: Exchange) -> None:
        if isinstance(exchange.select, Significant):
            self.thresholds.setdefault(rank, []).append(round(exchange.select.threshold, 9))


def played(policy: str, spec: ClusterSpec, iterations: int) -> tuple[dict[int, list[float]], Ran]:
    """Thresholds by rank, and what happened."""
    noted = Noted()
    ran = Ran(spec, policy, iterations=iterations, arithmetic=noted)
    return noted.thresholds, ran


def sent_bytes(ran: Ran) -> int:
    return sum(one.sent_bytes for one in ran.records if isinstance(one, LineRecord))


def test_the_threshold_goes_up_until_a_site_keeps_within_its_bandwidth() -> None:
    """A quarter of a megabyte's entries and where they are: 281 kB a step of one second, and 125 kB may be sent."""
    spec = sited("a", "b", significant=0.25)
    thresholds, ran = played("geo:bsp:threshold=0.05,mbit=1,most=0.3", spec, 60)
    own = thresholds[0]
    assert own[:4] == [0.05, 0.055, 0.06, 0.065]
    assert own[-1] == own[-2] > 0.1, "it stays where it has come to"
    step_s = ran.ends_s(0)[-1] - ran.ends_s(0)[-2]
    assert 0.9 < estimated_bytes(Significant(own[-1]), 250_000, 0.25 * 0.05 / own[-1]) / step_s / 125e3 < 1.1
    assert thresholds[1] == own, "each site for itself, and these are alike"
    few, _ = played("geo:bsp:threshold=0.05,mbit=1,most=0.08", spec, 60)
    assert max(few[0]) == few[0][-1] == 0.08
    loose, _ = played("geo:bsp:threshold=0.05,mbit=100,most=0.3", spec, 60)
    assert set(loose[0]) == {0.05}


def test_a_limit_saves_bytes_and_time() -> None:
    spec = sited("a", "a", "b", significant=0.25)
    thresholds, within = played("geo:bsp:threshold=0.05,mbit=1,most=0.3", spec, 40)
    assert set(thresholds[1]) == {0.05}, "who does not speak for its site asks for what the policy says"
    _, free = played("geo:bsp:threshold=0.05", spec, 40)
    assert sent_bytes(within) < 0.7 * sent_bytes(free)


def test_what_hubs_hand_on_counts_as_theirs() -> None:
    spec = sited("eu/a", "us/a", "us/b", significant=0.05)
    thresholds, _ = played("geo:bsp:threshold=0.05,mbit=1.2,most=0.3,hubs=true", spec, 30)
    assert thresholds[1][-1] > thresholds[2][-1] == 0.05, "the hub of two sites sends more than the other one of them"


@pytest.mark.parametrize("lead", [0, 2])
def test_real_gradients_are_picked_by_the_threshold_of_the_site(lead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[float] = []
    movement = Watched._movement

    def noting(training: Watched, rank: int, exchange: Exchange) -> Tensor:
        assert isinstance(exchange.select, Significant)
        if rank == 0:
            taken.append(round(exchange.select.threshold, 9))
        return movement(training, rank, exchange)

    monkeypatch.setattr(Watched, "_movement", noting)
    policy = f"geo:bsp:threshold=0.01,mbit=0.001,most=0.3,lead={lead}"
    trained = Trained(sited("a", "b"), Quadratic.random(64), policy, iterations=20)
    assert taken[:3] == [0.01, 0.015, 0.02]
    assert bool(trained.replicas().isfinite().all())
