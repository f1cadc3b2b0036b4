"""Fair shares of links, and transfers over them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_world import MEGABIT_PER_S, MEGABYTE, Ran, cluster, node

from uneven.cluster.pure.describe.cluster_events import Do, Event
from uneven.cluster.pure.describe.spec import ClusterSpec, Node, SiteLink, Trace, steady
from uneven.cluster.pure.simulate.event_queue import EventQueue
from uneven.cluster.pure.simulate.links import LinkLoad, Network, Route, fair_rates
from uneven.cluster.pure.simulate.routes import RingPieces, Topology
from uneven.cluster.pure.simulate.stage import buckets
from uneven.errors import ConfigError
from uneven.policy.core.actions import Add, Exchange, Moment, Payload, StepPlan, Via
from uneven.policy.core.views import SyncView
from uneven.policy.sync import SyncPolicy

BYTE_PER_S = 8.0  # in bit/s


class Transfers:
    """Starts transfers at given times and notes their ends."""

    def __init__(self, *capacities: Trace) -> None:
        self.queue = EventQueue()
        self.network = Network(self.queue, capacities)
        self.ends_s: dict[str, float] = {}

    def start(self, name: str, at_s: float, size_bytes: float, parts: dict[int, float], latency_s: float = 0.0) -> None:
        route = Route(LinkLoad(parts), latency_s)
        self.queue.at(at_s, lambda: self.network.start(route, size_bytes, self._ended, name))

    def _ended(self, name: str) -> None:
        self.ends_s[name] = self.queue.now_s


def test_two_transfers_share_a_link_and_the_longer_one_has_it_alone_afterwards() -> None:
    it = Transfers(steady(100 * BYTE_PER_S))
    it.start("short", 0.0, 100.0, {0: 1.0})
    it.start("long", 0.0, 300.0, {0: 1.0})
    it.queue.run()
    assert it.ends_s == {"short": 2.0, "long": 4.0}


def test_a_transfer_that_comes_later_slows_down_the_one_under_way() -> None:
    it = Transfers(steady(100 * BYTE_PER_S))
    it.start("first", 0.0, 200.0, {0: 1.0})
    it.start("second", 1.0, 100.0, {0: 1.0})
    it.queue.run()
    assert it.ends_s == {"first": 3.0, "second": 3.0}


def test_what_one_cannot_use_the_other_gets() -> None:
    it = Transfers(steady(100 * BYTE_PER_S), steady(20 * BYTE_PER_S))
    it.start("narrow", 0.0, 100.0, {0: 1.0, 1: 1.0})
    it.start("wide", 0.0, 400.0, {0: 1.0})
    it.queue.run()
    assert it.ends_s == {"narrow": 5.0, "wide": 5.0}


def test_a_link_that_carries_half_of_a_transfer_may_be_half_as_fast() -> None:
    it = Transfers(steady(100 * BYTE_PER_S), steady(50 * BYTE_PER_S))
    it.start("spread", 0.0, 100.0, {0: 1.0, 1: 0.5})
    it.queue.run()
    assert it.ends_s == {"spread": 1.0}


def test_a_bandwidth_that_changes_in_mid_transfer() -> None:
    it = Transfers(Trace(values=(100 * BYTE_PER_S, 25 * BYTE_PER_S), step_s=1.0))
    it.start("one", 0.0, 150.0, {0: 1.0})
    it.queue.run()
    assert it.ends_s == {"one": 2.25}  # 100 bytes, 25 bytes, then 25 more at the full rate


def test_a_cut_in_mid_transfer_and_its_end() -> None:
    it = Transfers(steady(100 * BYTE_PER_S))
    it.start("one", 0.0, 200.0, {0: 1.0})
    it.queue.at(1.0, it.network.cut, 0, 0.5, 1e15)
    it.queue.at(2.0, it.network.mend, 0, 0.5, 1e15)
    it.queue.run()
    assert it.ends_s == {"one": 2.5}


def test_latency_comes_on_top_and_nothing_to_carry_takes_only_that() -> None:
    it = Transfers(steady(100 * BYTE_PER_S))
    it.start("some", 0.0, 100.0, {0: 1.0}, latency_s=0.25)
    it.start("nothing", 0.0, 0.0, {0: 1.0}, latency_s=0.25)
    it.start("unlimited", 0.0, 100.0, {}, latency_s=0.25)
    it.queue.run()
    assert it.ends_s == {"some": 1.25, "nothing": 0.25, "unlimited": 0.25}


def test_a_transfer_that_is_broken_off_leaves_the_link_to_the_others() -> None:
    it = Transfers(steady(100 * BYTE_PER_S))
    gone = it.network.start(Route(LinkLoad({0: 1.0}), 0.0), 1e6, it._ended, "gone")
    it.start("stays", 0.0, 100.0, {0: 1.0})
    it.queue.at(1.0, it.network.cancel, gone)
    it.queue.run()
    assert it.ends_s == {"stays": 1.5}


@given(data=st.data())
def test_max_min_fairness(data: st.DataObject) -> None:
    links = data.draw(st.integers(1, 6))
    capacities = np.array(data.draw(st.lists(st.floats(0.1, 1e9), min_size=links, max_size=links)))
    part = st.dictionaries(st.integers(0, links - 1), st.floats(0.001, 1.0), min_size=1)
    loads = [LinkLoad(parts) for parts in data.draw(st.lists(part, min_size=1, max_size=8))]
    rates = fair_rates(loads, capacities)
    used = np.zeros(links)
    for load, rate in zip(loads, rates, strict=True):
        used[load.links] += load.weights * rate
    assert (used <= capacities * (1 + 1e-6)).all()
    full = used >= capacities * (1 - 1e-6)
    for load, rate in zip(loads, rates, strict=True):
        # Somewhere on its way is a full link on which nobody is faster: work-conserving, and fair.
        highest = [max(r for one, r in zip(loads, rates, strict=True) if link in one.links) for link in load.links]
        assert any(full[link] and rate >= top * (1 - 1e-6) for link, top in zip(load.links, highest, strict=True))


def test_a_flow_without_a_limit_is_infinitely_fast() -> None:
    assert fair_rates([LinkLoad({}), LinkLoad({0: 1.0})], np.array([5.0])) == [math.inf, 5.0]


def at(megabit_per_s: float) -> dict[str, Trace]:
    return {key: steady(megabit_per_s * MEGABIT_PER_S) for key in ("up_bit_per_s", "down_bit_per_s")}


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("latency_s", [0.0, 0.0005, 0.02])
def test_a_ring_moves_two_times_n_minus_one_nths_and_two_pieces_wait_for_one_way_there_and_back(
    workers: int, latency_s: float
) -> None:
    nodes = [node(f"n{rank}", **at(100), latency_s=latency_s) for rank in range(workers)]
    run = Ran(cluster(*nodes), "local:every=1", iterations=1)
    seconds, pairs = 2 * (workers - 1) / workers * MEGABYTE * 8 / (100 * MEGABIT_PER_S), 2 * (workers - 1)
    assert run.ends_s(0) == [pytest.approx(1.0 + max(seconds, pairs * 4 * latency_s + seconds / 2))]


def test_pieces_are_of_a_megabyte_at_most_and_two_of_each_part_at_least() -> None:
    topology = Topology(cluster(*(node(f"n{rank}", latency_s=0.01) for rank in range(4))))
    assert topology.ring_pieces(range(4), 0).many == topology.ring_pieces(range(4), 8 << 20).many == 12
    assert topology.ring_pieces(range(4), 20 << 20).many == 6 * 5
    assert topology.ring(range(4), 20 << 20).latency_s == pytest.approx(6 * 5 / 2 * 2 * 0.02)


def test_pieces_that_are_passed_on_one_by_one_take_as_long_as_the_slowest_hop() -> None:
    """What a ring takes by its formula is what it comes to piece by piece, whoever is slow."""
    pieces = RingPieces(4 * 30, (0.01, 0.002, 0.03, 0.004), (0.001, 0.0, 0.004, 0.02))
    begun_s = ends_s = [0.0] * 4
    for _ in range(pieces.many):
        begun_s, ends_s = ends_s, list(map(max, pieces.come_s(begun_s), ends_s))
    bytes_s = pieces.many * 0.02
    assert bytes_s + pieces.waits_s == pytest.approx(60 * (0.06 + 0.004))
    assert max(ends_s) == pytest.approx(bytes_s + pieces.waits_s, rel=0.02)


def test_where_time_is_dealt_out_in_periods_a_quota_is_waited_for_on_top_of_the_way() -> None:
    def ends_s(latency_s: float) -> float:
        nodes = [node(f"n{rank}", cores=0.5, period_s=0.01, latency_s=latency_s) for rank in range(3)]
        return Ran(cluster(*nodes, exchange_core_s=0.012), iterations=1).ends_s(0)[0]

    assert ends_s(0.02) - ends_s(0.0) == pytest.approx(4 * 0.08, abs=0.03), "four pairs, each there and back"


@pytest.mark.parametrize("quota", [{}, {"cores": 0.5, "period_s": 0.01}])
def test_a_ring_waits_for_a_link_that_carries_nothing_at_first(quota: dict[str, float]) -> None:
    late = Trace(values=(0.0, 0.0, 0.0, 8 * MEGABIT_PER_S), step_s=1.0)
    nodes = [node(f"n{rank}", up_bit_per_s=late, **quota) for rank in range(2)]
    run = Ran(cluster(*nodes, exchange_core_s=0.001), "local:every=1", iterations=1)
    assert run.ends_s(0) == [pytest.approx(4.0, abs=0.02)], "a megabyte a second from the third second on"


def test_the_slowest_link_holds_a_ring_back() -> None:
    nodes = [node("slow", **at(10)), *(node(f"n{rank}", **at(1000)) for rank in range(3))]
    run = Ran(cluster(*nodes), "local:every=1", iterations=1)
    assert run.ends_s(3) == [pytest.approx(1.0 + 1.5 * MEGABYTE * 8 / (10 * MEGABIT_PER_S))]


def test_the_four_megabytes_of_the_description_take_half_a_second_over_four_nodes() -> None:
    run = Ran(cluster(*(node(f"n{i}", **at(100)) for i in range(4)), gradient_bytes=4_000_000), "local:every=1")
    assert run.of(0)[0].exchange_s == pytest.approx(0.48)


def test_a_ring_over_sites_loads_each_line_once_each_way() -> None:
    spec = cluster(
        *(node(f"n{rank}", site="east" if rank < 2 else "west") for rank in range(4)),
        links=(SiteLink(between=("west", "east"), bit_per_s=steady(8 * MEGABIT_PER_S), latency_s=0.5),),
    )
    run = Ran(spec, "local:every=1", iterations=1)
    assert run.ends_s(0) == [pytest.approx(1.0 + 1.5 / 2 + 6 * 2 * 0.5)], "six pairs of pieces, each there and back"


def test_buckets_are_cut_as_ddp_cuts_them() -> None:
    assert buckets(100, 200, 25) == (1.0,)
    assert buckets(100, 20, 50) == (0.2, 0.7, 1.0)
    assert buckets(0, 20, 50) == (1.0,)


def test_a_transfer_hides_under_the_backward_pass_as_far_as_its_buckets_are_ready() -> None:
    nodes = [node(f"n{i}", 3.0, **at(8)) for i in range(2)]  # a megabyte each way takes a second
    spec = cluster(*nodes, backward=2 / 3, first_bucket_bytes=500_000, bucket_bytes=500_000)
    step = Ran(spec, iterations=1).of(0)[0]
    # Half of it is ready at 2 s and through at 2.5 s, the other half ready at 3 s and through at 3.5 s.
    assert (step.compute_s, step.exchange_s) == (3.0, pytest.approx(0.5))
    slower = cluster(*(node(f"n{i}", 3.0, **at(2)) for i in range(2)), first_bucket_bytes=500_000, bucket_bytes=500_000)
    assert Ran(slower, iterations=1).of(0)[0].exchange_s == pytest.approx(2.0 + 4.0 - 3.0)


def test_everybody_must_have_a_bucket_ready() -> None:
    nodes = [node("fast", 1.0, **at(8)), node("slow", 3.0, **at(8))]
    spec = cluster(*nodes, first_bucket_bytes=500_000, bucket_bytes=500_000)
    run = Ran(spec, iterations=1)
    assert run.ends_s(0) == run.ends_s(1) == [pytest.approx(3.5)]
    assert run.of(0)[0].exchange_s == pytest.approx(2.5)


def test_a_slow_down_moves_the_buckets_that_are_not_ready_yet() -> None:
    slow = Event(do=Do.SLOW, node="b", at_s=1.5, factor=0.5)
    nodes = [node("a", 3.0, **at(8)), node("b", 3.0, **at(8))]
    spec = cluster(*nodes, first_bucket_bytes=500_000, bucket_bytes=500_000, events=(slow,))
    run = Ran(spec, iterations=1)
    assert run.of(1)[0].compute_s == 4.5
    assert run.ends_s(0) == [pytest.approx(5.0)]  # the first bucket is ready at 2.5 s, the second at 4.5 s


def test_a_workers_own_side_is_slow_where_the_worker_is_and_holds_up_all() -> None:
    spec = cluster(node("fast"), node("slow", share=steady(0.5)), exchange_core_s=0.1)
    run = Ran(spec, iterations=1)
    assert run.ends_s(0) == run.ends_s(1) == [pytest.approx(2.2)]
    assert [run.of(rank)[0].transfer_s for rank in (0, 1)] == pytest.approx([0.1, 0.2])
    assert [run.of(rank)[0].exchange_s for rank in (0, 1)] == pytest.approx([1.2, 0.2])


def test_its_own_side_hides_under_a_slower_link() -> None:
    spec = cluster(*(node(f"n{i}", **at(8)) for i in range(2)), exchange_core_s=0.1)
    assert Ran(spec, iterations=1).ends_s(0) == [pytest.approx(2.0)]


def test_a_push_goes_to_the_shards_of_all_others() -> None:
    topology = Topology(cluster(*(node(f"n{i}", **at(8)) for i in range(4))))
    push, pull = topology.push(1, (0, 1, 2, 3)), topology.pull(1, (0, 1, 2, 3))
    assert push.load.fullest == pull.load.fullest == 0.75
    up, down = topology.links_of(1)
    sent = dict(zip(push.load.links.tolist(), push.load.weights.tolist(), strict=True))
    assert sent[up] == 1.0
    assert down not in sent
    assert sorted(sent.values()) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1.0])


class Push(SyncPolicy):
    """Every worker adds its delta to the parameter server."""

    def plan(self, view: SyncView) -> StepPlan:
        push = Exchange(payload=Payload.DELTA, members=view.members, merge=Add(), moment=Moment.STEP, via=Via.SERVER)
        return StepPlan(exchanges=(push,))


def test_pushes_at_the_same_time_share_the_links_down() -> None:
    nodes = [node(f"n{i}", up_bit_per_s=steady(80 * MEGABIT_PER_S)) for i in range(3)]
    nodes.append(Node(name="narrow", cost=node("x").cost, down_bit_per_s=steady(2 * MEGABIT_PER_S)))
    run = Ran(cluster(*nodes), Push(), iterations=1)
    # Three quarter megabytes from the others come in over the narrow one's 0.25 megabytes a second.
    assert run.ends_s(0) == run.ends_s(2) == [pytest.approx(1.0 + 0.75 / 0.25)]
    assert run.ends_s(3) == [1.0]


def test_what_a_worker_reads_back_holds_up_its_next_step() -> None:
    nodes = [node(f"n{i}", **at(8), latency_s=0.01) for i in range(2)]
    run = Ran(cluster(*nodes), Push(), iterations=2)
    first, second = run.of(0)
    assert first.exchange_s == pytest.approx(0.5 + 0.02)
    assert second.exchange_s == pytest.approx((0.5 + 2 * 0.02) + (0.5 + 0.02))  # reads, then pushes


def test_a_cut_link_at_an_iteration_and_one_that_had_no_limit() -> None:
    cut = Event(do=Do.CUT_LINK, node="n0", at_iteration=1, bit_per_s=8 * MEGABIT_PER_S)
    run = Ran(cluster(node("n0"), node("n1"), events=(cut,)), "local:every=1", iterations=2)
    assert run.ends_s(1) == [pytest.approx(1.0, abs=1e-6), pytest.approx(3.0, abs=1e-6)]
    (event,) = run.events("cut_link")
    assert (event.iteration, event.message) == (1, "n0 has 8 Mbit/s left")


def sites(*events: Event, **line: Any) -> ClusterSpec:
    link = SiteLink(between=("west", "east"), **line)
    return cluster(node("w", site="west"), node("e", site="east"), links=(link,), events=events)


def test_a_line_may_be_slower_on_the_way_back() -> None:
    spec = sites(bit_per_s=steady(16 * MEGABIT_PER_S), back_bit_per_s=steady(8 * MEGABIT_PER_S))
    topology = Topology(spec)
    there, back = topology.links_between("west", "east")
    assert [topology.capacities[link].at(0.0) for link in (there, back)] == [16 * MEGABIT_PER_S, 8 * MEGABIT_PER_S]
    assert Ran(spec, "local:every=1", iterations=1).ends_s(0) == [pytest.approx(2.0)]  # a ring goes at the slower one


def test_a_line_that_is_cut_altogether_carries_nothing_until_it_is_mended() -> None:
    cut = Event(do=Do.CUT_LINK, between=("east", "west"), at_s=1.25, factor=0.0, for_s=2.0)
    run = Ran(sites(cut, bit_per_s=steady(8 * MEGABIT_PER_S)), "local:every=1", iterations=1)
    assert run.ends_s(0) == run.ends_s(1) == [pytest.approx(4.0)]  # a quarter, two seconds, three quarters
    assert [event.message for event in run.events("cut_link")] == [
        "the line between east and west has nothing left",
        "the cut of the line between east and west to nothing has ended",
    ]


def test_a_node_without_a_limit_can_be_cut_off_too() -> None:
    cut = Event(do=Do.CUT_LINK, node="n0", at_s=0.5, factor=0.0, for_s=2.0)
    run = Ran(cluster(node("n0"), node("n1"), events=(cut,)), "local:every=1", iterations=2)
    assert run.ends_s(1) == [pytest.approx(2.5, abs=1e-6), pytest.approx(3.5, abs=1e-6)]


def test_a_transfer_whose_last_bytes_are_under_way_can_be_broken_off() -> None:
    ended: list[int] = []
    transfers = Transfers(steady(10 * BYTE_PER_S))
    flow = transfers.network.start(Route(LinkLoad({0: 1.0}), 5.0), 10.0, ended.append, 1)
    transfers.queue.at(3.0, lambda: transfers.network.cancel(flow))
    transfers.queue.run()
    assert not ended


def test_bandwidth_that_never_stops_changing_ends_in_words() -> None:
    transfers = Transfers(Trace(values=(8.0, 16.0), step_s=1e-6))
    transfers.start("one", 0.0, 1e9, {0: 1.0})
    with pytest.raises(ConfigError, match=r"changes more than 20,000 times during one transfer: give its trace a"):
        transfers.queue.run()
