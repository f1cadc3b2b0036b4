"""What cannot be emulated is refused by name, before anything starts."""

from __future__ import annotations

import pytest

from uneven.cluster.emulate.pure.requirements import Able, check, notes, without
from uneven.cluster.pure.describe.spec import ClusterSpec, Do, Event, Node, SiteLink, Trace, steady
from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.core.cost import Affine

FULL = ClusterSpec(
    name="full",
    nodes=(
        Node(name="a", cores=0.5, load=steady(1), memory_bytes=2**30, up_bit_per_s=steady(1e8)),
        Node(name="b", cores=0.5, down_bit_per_s=steady(1e8), latency_s=0.01),
    ),
    events=(
        Event(do=Do.CUT_LINK, node="a", at_s=1, bit_per_s=1e6),
        Event(do=Do.SLOW, node="b", at_s=1, factor=0.5),
        Event(do=Do.KILL, node="b", at_s=2),
    ),
)


def test_a_machine_that_can_do_everything_is_given_everything() -> None:
    check(FULL, Able())


@pytest.mark.parametrize(
    ("able", "complaint"),
    [
        (Able(load="LOAD"), r"load of node a \(1\): LOAD; --leave-out load"),
        (Able(memory="MEMORY"), r"memory_bytes of node a \(1\.07374e\+09\): MEMORY"),
        (Able(links="LINKS"), r"(?s)up_bit_per_s of node a \(1e\+08\): LINKS.*down_bit_per_s.*cut_link of node a"),
        (Able(latency="LATENCY"), r"latency_s of node b \(0\.01\): LATENCY; --leave-out latency_s, or use `uneven sim"),
    ],
)
def test_what_the_machine_lacks_is_named_with_node_and_key(able: Able, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check(FULL, able)


def test_shares_and_their_traces_need_nothing() -> None:
    nothing = Able(load="no", memory="no", links="no", latency="no")
    slow = Event(do=Do.SLOW, node="a", at_s=1, factor=0.5)
    node = Node(name="a", share=Trace(values=(1, 0.5), step_s=1))
    check(ClusterSpec(name="x", nodes=(node,), events=(slow,)), nothing)


def test_comings_and_goings_need_an_elastic_run() -> None:
    nodes = (Node(name="a"), Node(name="b"), Node(name="c"))
    events = (Event(do=Do.LEAVE, node="a", at_s=1), Event(do=Do.JOIN, node="b", at_s=1))
    spec = ClusterSpec(name="spot", nodes=nodes, events=events)
    fixed = Able(changes="FIXED")
    with pytest.raises(ConfigError, match=r"(?s)join of node b: FIXED.*leave of node a: FIXED; --leave-out events"):
        check(spec, fixed)
    check(without(spec, ["events"]), fixed)
    check(spec, Able())


def test_lines_between_sites_need_what_links_need() -> None:
    nodes = (Node(name="a", site="x"), Node(name="b", site="y"))
    links = (SiteLink(between=("x", "y"), bit_per_s=steady(1e7), latency_s=0.04),)
    cut = Event(do=Do.CUT_LINK, between=("y", "x"), at_s=1, factor=0.5)
    spec = ClusterSpec(name="wide", nodes=nodes, links=links, events=(cut,))
    check(spec, Able())
    with pytest.raises(ConfigError, match="line between x and y: LINKS; --leave-out links"):
        check(spec, Able(links="LINKS"))
    check(without(spec, ["links"]), Able(links="LINKS", latency="LATENCY"))  # and with the line, what cuts it
    with pytest.raises(ConfigError, match="latency_s of the line between x and y: LATENCY; --leave-out latency_s"):
        check(spec, Able(latency="LATENCY"))
    check(without(spec, ["latency_s"]), Able(latency="LATENCY"))


def test_many_nodes_are_not_all_listed() -> None:
    spec = ClusterSpec(name="x", nodes=tuple(Node(name=f"n{i}", latency_s=0.1) for i in range(9)))
    with pytest.raises(ConfigError, match=r"n0 \(0\.1\), .*n3 \(0\.1\) and 5 more: NO"):
        check(spec, Able(latency="NO"))


def test_leaving_out() -> None:
    for key in ("load", "memory_bytes", "up_bit_per_s", "down_bit_per_s", "latency_s", "events"):
        assert without(FULL, [key]) != FULL
    bare = without(FULL, ["load", "memory_bytes", "up_bit_per_s", "down_bit_per_s", "latency_s", "events"])
    check(bare, Able(load="no", memory="no", links="no", latency="no"))
    assert [node.cores for node in bare.nodes] == [0.5, 0.5]
    with pytest.raises(UnknownNameError, match="did you mean 'latency_s'"):
        without(FULL, ["latency"])


def test_notes() -> None:
    assert notes(FULL, cores=1) == []
    (note,) = notes(ClusterSpec(name="x", nodes=(Node(name="a"), Node(name="b"))), cores=1)
    assert "have 2 cores together and this machine 1" in note
    (note,) = notes(ClusterSpec(name="x", nodes=(Node(name="a", cost=Affine(0.1, 0.1)),)), cores=1)
    assert note.startswith("cost of node a is for the simulator")
