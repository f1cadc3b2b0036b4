"""Namespaces, cables and routes of an emulated network, in the words of ``ip``."""

from __future__ import annotations

from uneven.cluster.emulate.pure.wiring import CableEnd, Wiring
from uneven.cluster.pure.describe.spec import Node, SiteLink, steady

NODES = (Node(name="a", site="x"), Node(name="b", site="y", latency_s=0.001), Node(name="c", site="x"))
LINE = SiteLink(between=("y", "x"), bit_per_s=steady(1e7), latency_s=0.04)
HELD = [100, 101, 102, 103, 104]  # of the switches x and y, then of the nodes


def test_without_lines_all_nodes_hang_on_one_switch_whatever_their_sites() -> None:
    wiring = Wiring(NODES)
    assert (list(wiring.places), list(wiring.routers)) == ([0, 1, 2, 3], [])
    assert [cable.latency_s for cable in wiring.cables] == [0.0, 0.001, 0.0]
    assert wiring.set_up(0, HELD)[:4] == [
        "link set lo up", "link add switch type bridge", "link set switch up",
        "link add port0 type veth peer name eth0 netns /proc/self/fd/101",
    ]  # fmt: skip
    assert wiring.set_up(1, HELD) == [
        "link set lo up", "link set eth0 addrgenmode none", "addr add 10.77.0.1/16 dev eth0", "link set eth0 up"
    ]  # fmt: skip
    assert wiring.lines_of(wiring.up(0)) == []


def test_with_lines_every_site_has_a_switch_that_knows_the_way_to_the_others() -> None:
    wiring = Wiring(NODES, (LINE,))
    assert (list(wiring.places), list(wiring.routers)) == ([0, 1, 2, 3, 4], [0, 1])
    assert [cable.latency_s for cable in wiring.cables] == [0.0, 0.001, 0.0, 0.04]
    assert (wiring.line("x", "y"), wiring.line("y", "x")) == (CableEnd(0, "line1"), CableEnd(1, "line0"))
    assert (wiring.up(2), wiring.down(2)) == (CableEnd(4, "eth0"), CableEnd(0, "port2"))
    assert wiring.lines_of(wiring.up(1)) == [CableEnd(1, "line0")]
    assert wiring.set_up(0, HELD)[3:] == [
        "link add port0 type veth peer name eth0 netns /proc/self/fd/102", "link set port0 master switch up",
        "link add port2 type veth peer name eth0 netns /proc/self/fd/104", "link set port2 master switch up",
        "link add line1 type veth peer name line0 netns /proc/self/fd/101", "link set line1 up",
        "addr add 10.77.255.254/16 dev switch", "route add 10.77.0.2 via 10.77.255.253 dev line1 onlink",
    ]  # fmt: skip
    assert wiring.set_up(1, HELD)[5:] == [
        "link set line0 up", "addr add 10.77.255.253/16 dev switch",
        "route add 10.77.0.1 via 10.77.255.254 dev line0 onlink",
        "route add 10.77.0.3 via 10.77.255.254 dev line0 onlink",
    ]  # fmt: skip
    assert wiring.set_up(3, HELD)[-2:] == [
        "route add 10.77.0.1 via 10.77.255.253", "route add 10.77.0.3 via 10.77.255.253"
    ]  # fmt: skip


def test_two_sites_without_a_line_are_joined_without_a_limit() -> None:
    nodes = (*NODES, Node(name="d", site="z"))
    wiring = Wiring(nodes, (LINE,))
    assert [cable.latency_s for cable in wiring.cables[4:]] == [0.04, 0.0, 0.0]
    assert wiring.cables[5].ends == (wiring.line("x", "z"), wiring.line("z", "x"))


def test_devices_of_a_process_are_there_already_and_queue_for_it() -> None:
    wiring = Wiring(NODES, (LINE,))
    made = {device for cable in wiring.cables if cable.latency_s for device in cable.ends}
    switch = wiring.set_up(0, HELD, made)
    assert "link set line1 txqueuelen 10000" in switch
    assert not [line for line in switch if line.startswith("link add line1")]
    node = wiring.set_up(3, HELD, made)
    assert node[1] == "link set eth0 txqueuelen 10000"
    assert not [line for line in wiring.set_up(2, HELD, made) if "txqueuelen" in line]
