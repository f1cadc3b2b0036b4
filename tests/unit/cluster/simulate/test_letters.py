"""Sites with a lead send each other a message a step, each on its own line; the selective barrier holds who is told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from quadratics import Quadratic, Trained
from small_world import Ran, cluster, node

from uneven.cluster.pure.describe.cluster_events import Event
from uneven.cluster.pure.describe.spec import ClusterSpec, Do, SiteLink, steady
from uneven.cluster.pure.simulate import Arithmetic
from uneven.policy.core.actions import Exchange, Significant
from uneven.policy.select import estimated_bytes

MESSAGE = estimated_bytes(Significant(0.01), 250_000, 0.01)
"""Bytes of one in 250,000 entries of which a hundredth is significant."""


def spec(events: tuple[Event, ...] = (), **seconds: float) -> ClusterSpec:
    """Three sites whose steps take a second, and what a message takes between two of them, and its latency."""
    lines = tuple(
        SiteLink(between=(pair[0], pair[1]), bit_per_s=steady(8 * MESSAGE / took_s), latency_s=0.1)
        for pair, took_s in seconds.items()
    )
    return cluster(*[node(name, site=name) for name in ("a", "b", "c")], links=lines, events=events, significant=0.01)


class Heard(Arithmetic):
    """Who has written what, who has heard it, in order, and how much was under way."""

    def __init__(self) -> None:
        self.written: dict[int, int] = {}
        self.heard: dict[tuple[int, int], list[int]] = {}
        self.most: dict[tuple[int, int], int] = {}  # messages under way when the one who is to hear them steps

    def writes(self, rank: int, exchange: Exchange) -> object:
        self.written[rank] = self.written.get(rank, 0) + 1
        return rank, self.written[rank]

    def hears(self, exchange: Exchange, content: object, ranks: Sequence[int]) -> None:
        assert isinstance(content, tuple)
        for rank in ranks:
            self.heard.setdefault((content[0], rank), []).append(content[1])

    def computes(self, rank: int, iteration: int, samples: range, at_s: float) -> None:
        for other in {0, 1, 2} - {rank}:
            under_way = self.written.get(other, 0) - len(self.heard.get((other, rank), ()))
            self.most[other, rank] = max(under_way, self.most.get((other, rank), 0))


def test_each_line_carries_a_message_a_step_and_holds_only_its_own_ends_back() -> None:
    noted = Heard()
    Ran(spec(ab=0.1, bc=0.1, ac=3.0), "geo:bsp:lead=4", iterations=12, arithmetic=noted)
    assert noted.written == {0: 12, 1: 12, 2: 12}
    assert all(one == list(range(1, 13)) for one in noted.heard.values()), "each once, in order"
    assert noted.most[0, 1] == 1, "that of the step before, when the next one begins"
    assert noted.most[0, 2] == noted.most[2, 0] == 4, "on the slow line, up to the lead"


@pytest.mark.parametrize(("barrier_kb", "held"), [(0.0, False), (2.5 * MESSAGE / 1e3, True), (1e6, False)])
def test_the_barrier_bounds_in_bytes_what_the_lead_bounds_in_steps(barrier_kb: float, held: bool) -> None:
    noted = Heard()
    ran = Ran(spec(ab=0.1, bc=0.1, ac=2.0), f"geo:bsp:lead=50,barrier_kb={barrier_kb}", iterations=20, arithmetic=noted)
    assert all(one == list(range(1, 21)) for one in noted.heard.values())
    assert (noted.most[0, 2] <= 3) == held
    assert noted.most[0, 1] == 1, "nobody bars what goes by the fast line"
    assert (ran.ends_s(0)[-1] > 30) == held, "as fast as the slow line, or as the steps"
    assert held or ran.ends_s(0)[-1] == pytest.approx(20)


def test_what_is_lost_with_a_writer_is_waited_for_by_nobody() -> None:
    noted, dies = Heard(), Event(at_s=5.5, do=Do.KILL, node="a")
    ran = Ran(spec((dies,), ab=4.0, bc=0.1, ac=4.0), "geo:bsp:lead=3", iterations=12, arithmetic=noted)
    assert len(ran.ends_s(1)) == 12
    assert len(noted.heard[0, 1]) < noted.written[0]


def test_a_barrier_learns_too() -> None:
    kept = [
        Trained(spec(ab=0.1, bc=0.1, ac=2.0), Quadratic.random(64), f"geo:bsp:threshold=0,lead=6{more}", iterations=40)
        for more in ("", ",barrier_kb=0.001")
    ]
    assert all(bool(one.replicas().isfinite().all()) for one in kept)
    free, barred = (float((one.replicas()[0] - one.replicas()[2]).abs().max()) for one in kept)
    assert barred <= free
