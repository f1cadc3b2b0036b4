"""From a description to settings in time."""

from __future__ import annotations

import math

import pytest

from uneven.cluster.emulate.pure.replay import Change, Direction, Happening, Quantity, Replay, Setting, in_words
from uneven.cluster.pure.describe.spec import ClusterSpec, Do, Event, Node, SiteLink, Trace, steady


def cluster(*events: Event, **node: object) -> ClusterSpec:
    return ClusterSpec(name="test", nodes=(Node(name="a", **node), Node(name="b")), events=events)  # type: ignore[arg-type]


def of(changes: list[Change], quantity: Quantity, node: str | Direction = "a") -> list[float]:
    return [
        change.value
        for change in changes
        if isinstance(change, Setting) and change.of == node and change.quantity is quantity
    ]


def test_the_first_look_sets_everything_and_the_next_nothing() -> None:
    replay = Replay(cluster(cores=0.6, share=steady(0.5), up_bit_per_s=steady(1e8)))
    first = replay.advance(0.0, {})
    assert of(first, Quantity.CORES) == [0.3]
    assert of(first, Quantity.UP) == [1e8]
    assert of(first, Quantity.DOWN) == [math.inf]
    assert of(first, Quantity.CORES, "b") == [1.0]
    assert len(first) == 2 * (len(Quantity) - 1)  # all but that of a line, of two nodes
    assert replay.advance(10.0, {}) == []
    assert replay.next_s(0.0) == math.inf


def test_traces_are_replayed_as_fast_as_they_say() -> None:
    replay = Replay(cluster(share=Trace(values=(1.0, 0.5, 0.25), step_s=10, speedup=10), load=steady(1.5)))
    assert of(replay.advance(0.0, {}), Quantity.CORES) == [1.0]
    assert replay.next_s(0.0) == 1.0
    assert replay.advance(0.9, {}) == []
    assert replay.advance(1.0, {}) == [Setting("a", Quantity.CORES, 0.5)]
    assert replay.advance(2.5, {}) == [Setting("a", Quantity.CORES, 0.25)]
    assert replay.next_s(2.5) == 3.0
    assert replay.advance(3.0, {}) == [Setting("a", Quantity.CORES, 1.0)]  # from the start again


def test_a_slow_down_multiplies_and_ends() -> None:
    slow = Event(do=Do.SLOW, node="a", at_s=2.0, factor=0.5, for_s=3.0)
    worse = Event(do=Do.SLOW, node="a", at_s=4.0, factor=0.5)
    replay = Replay(cluster(slow, worse, cores=0.8))
    assert of(replay.advance(0.0, {}), Quantity.CORES) == [0.8]
    assert replay.next_s(0.0) == 2.0
    assert replay.advance(2.01, {}) == [Happening(slow, 2.01), Setting("a", Quantity.CORES, 0.4)]
    assert replay.next_s(2.01) == 4.0
    assert of(replay.advance(4.0, {}), Quantity.CORES) == [0.2]
    assert replay.next_s(4.0) == 5.0
    assert of(replay.advance(5.0, {}), Quantity.CORES) == [0.4]
    assert replay.pending() == []


def test_a_cut_link_has_what_is_left_of_it() -> None:
    cut = Event(do=Do.CUT_LINK, node="a", at_s=1.0, factor=0.1, for_s=1.0)
    flat = Event(do=Do.CUT_LINK, node="a", at_s=3.0, bit_per_s=5e6)
    replay = Replay(cluster(cut, flat, up_bit_per_s=Trace(values=(1e8, 2e8), step_s=1.5)))
    replay.advance(0.0, {})
    assert of(replay.advance(1.0, {}), Quantity.UP) == [1e7]
    assert of(replay.advance(1.5, {}), Quantity.UP) == [2e7]
    assert of(replay.advance(2.0, {}), Quantity.UP) == [2e8]
    last = replay.advance(3.0, {})
    assert (of(last, Quantity.UP), of(last, Quantity.DOWN)) == ([5e6], [5e6])


def test_a_link_may_be_cut_altogether_for_a_while() -> None:
    cut = Event(do=Do.CUT_LINK, node="a", at_s=1.0, factor=0.0, for_s=1.0)
    replay = Replay(cluster(cut, down_bit_per_s=steady(1e8)))
    replay.advance(0.0, {})
    during = replay.advance(1.0, {})
    assert (of(during, Quantity.UP), of(during, Quantity.DOWN)) == ([0.0], [0.0])
    after = replay.advance(2.0, {})
    assert (of(after, Quantity.UP), of(after, Quantity.DOWN)) == ([math.inf], [1e8])


def test_a_stop_lasts_its_time() -> None:
    replay = Replay(cluster(Event(do=Do.STOP, node="a", at_s=1.0, for_s=2.0)))
    assert of(replay.advance(0.0, {}), Quantity.STOPPED) == [0.0]
    assert of(replay.advance(1.0, {}), Quantity.STOPPED) == [1.0]
    assert replay.next_s(1.0) == 3.0
    assert replay.advance(3.0, {}) == [Setting("a", Quantity.STOPPED, 0.0)]


def far(*events: Event, **line: object) -> ClusterSpec:
    nodes = (Node(name="a", site="eu"), Node(name="b", site="us"))
    link = SiteLink(between=("eu", "us"), **line)  # type: ignore[arg-type]
    return ClusterSpec(name="far", nodes=nodes, links=(link,), events=events)


def test_a_line_has_a_bandwidth_each_way_and_one_latency_and_comes_before_the_nodes() -> None:
    there, back = ("eu", "us"), ("us", "eu")
    values = Trace(values=(1e6, 3e6), step_s=2.0)
    replay = Replay(far(bit_per_s=values, back_bit_per_s=steady(9e6), latency_s=0.04))
    assert replay.advance(0.0, {})[:4] == [
        Setting(there, Quantity.ALONG, 1e6), Setting(there, Quantity.LATENCY, 0.04),
        Setting(back, Quantity.ALONG, 9e6), Setting(back, Quantity.LATENCY, 0.04),
    ]  # fmt: skip
    assert replay.next_s(0.0) == 2.0
    assert replay.advance(2.0, {}) == [Setting(there, Quantity.ALONG, 3e6)]


def test_a_line_is_cut_both_ways_once_somebody_is_at_the_iteration() -> None:
    cut = Event(do=Do.CUT_LINK, between=("us", "eu"), at_iteration=5, factor=0.1, for_s=1.0)
    replay = Replay(far(cut, bit_per_s=steady(1e7)))
    replay.advance(0.0, {})
    assert replay.advance(1.0, {"a": 4, "b": 3}) == []
    begun = replay.advance(1.5, {"a": 5, "b": 3})
    assert begun[0] == Happening(cut, 1.5)
    assert (of(begun, Quantity.ALONG, ("eu", "us")), of(begun, Quantity.ALONG, ("us", "eu"))) == ([1e6], [1e6])
    assert of(replay.advance(2.5, {}), Quantity.ALONG, ("eu", "us")) == [1e7]


def test_an_iteration_starts_when_the_nodes_own_worker_has_finished_those_before() -> None:
    kill = Event(do=Do.KILL, node="a", at_iteration=150)
    replay = Replay(cluster(kill))
    replay.advance(0.0, {})
    assert replay.advance(5.0, {"a": 149, "b": 151}) == []
    assert replay.pending() == [kill]
    assert replay.advance(6.0, {"a": 150, "b": 151}) == [Happening(kill, 6.0)]
    assert not replay.pending()
    assert replay.advance(7.0, {"a": 151}) == []


def test_what_lasts_from_an_iteration_on_is_counted_from_when_it_started() -> None:
    slow = Event(do=Do.SLOW, node="a", at_iteration=3, factor=0.5, for_s=2.0)
    replay = Replay(cluster(slow))
    replay.advance(0.0, {})
    assert of(replay.advance(7.0, {"a": 3}), Quantity.CORES) == [0.5]
    assert replay.next_s(7.0) == 9.0
    assert of(replay.advance(9.0, {"a": 5}), Quantity.CORES) == [1.0]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Event(do=Do.SLOW, node="a", at_s=0, factor=0.25), "a: slowed down to 0.25 of its processor time"),
        (Event(do=Do.CUT_LINK, node="a", at_s=0, bit_per_s=1e7, for_s=5), "a: link cut to 10 Mbit/s for 5 s"),
        (Event(do=Do.CUT_LINK, node="a", at_s=0, factor=0.1), "a: link cut to 0.1 of its bandwidth"),
        (Event(do=Do.KILL, node="a", at_s=0), "a: killed"),
        (Event(do=Do.STOP, node="a", at_s=0, for_s=3), "a: stopped for 3 s"),
        (
            Event(do=Do.CUT_LINK, between=("eu", "us"), at_s=0, factor=0.0, for_s=2),
            "the line between eu and us: link cut to nothing for 2 s",
        ),
    ],
)
def test_words(event: Event, words: str) -> None:
    assert in_words(event) == words
