"""The store that the ranks meet at is used again, and another is found where it has ended. With real stores."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest
from torch import distributed as dist

from uneven.cluster.emulate.ports import quiet_ports
from uneven.errors import PeerError
from uneven.run.lines.in_process_rendezvous import MeetingPlace
from uneven.run.lines.rollcall import RollCall
from uneven.run.start.connect import _OwnGroup
from uneven.runtime.world import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    (port,) = quiet_ports(1)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    yield World(rank=1, size=2, port=port)
    gc.collect()


def server(world: World) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", world.port, is_master=True, wait_for_workers=False)


def connections(world: World) -> set[int]:
    """The local ports of this process's connections to the store."""
    mine = psutil.Process(os.getpid()).net_connections("tcp")
    return {one.laddr.port for one in mine if one.raddr and one.raddr.port == world.port}


def test_who_meets_again_needs_no_new_connection(world: World) -> None:
    keeper = server(world)
    own = _OwnGroup()
    made = []
    for time in (1, 2, 3):
        own.meet(world, 20.0)
        own.enter()
        roll = own.roll(world, 20.0)
        assert keeper.check([f"uneven/{time}/roll-calls/1"])
        roll.close()
        made.append(connections(world))
        own.leave()
    assert len(made[0]) == 3, "the keeper's own, one to ask and one to wait"
    assert made[0] == made[1] == made[2]


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system waits as long as it likes")
def test_a_store_whose_machine_has_lost_its_power_fails_after_the_time_out(world: World) -> None:
    """Else a worker that has found that out waits for minutes on its way out of the session."""
    keeper = server(world)
    before = connections(world)
    own = _OwnGroup()
    own.meet(world, 7.5)
    limits = set()
    for one in psutil.Process().net_connections("tcp"):
        if one.raddr and one.raddr.port == world.port and one.laddr.port not in before:
            with socket.socket(fileno=os.dup(one.fd)) as line:
                limits.add(line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    assert keeper.check(["uneven/joins/1"])
    assert limits == {7500}
    own.forget()


def test_a_store_that_rank_0_keeps_is_open_to_this_machine_only(world: World) -> None:
    own, first = _OwnGroup(), replace(world, rank=0)
    store = own.meet(first, 20.0)
    own.forget()
    again = own.meet(first, 20.0)  # while the port is still held by the first one
    store.set("kept", "1")
    found = psutil.Process(os.getpid()).net_connections("tcp")
    assert {one.laddr.ip for one in found if one.status == "LISTEN" and one.laddr.port == world.port} == {"127.0.0.1"}
    assert dist.TCPStore("127.0.0.1", world.port).check(["uneven/1/kept"])
    del store, again


def test_a_store_that_has_ended_is_left_for_the_next_one(world: World) -> None:
    own = _OwnGroup()
    keeper = server(world)
    own.meet(world, 20.0)
    own.meet(world, 20.0)
    assert keeper.add("uneven/joins/1", 0) == 2
    del keeper
    gc.collect()
    keeper = server(world)
    own.meet(world, 20.0)
    assert keeper.add("uneven/joins/1", 0) == 1


def test_two_who_wait_have_a_connection_each(world: World) -> None:
    keeper = server(world)
    place = MeetingPlace(keeper)
    rolls = [RollCall(place, f"uneven/{which}", 0, 1, 20.0) for which in range(2)]
    for roll in rolls:
        roll.close()
    with place.aside() as first, place.aside() as second:
        assert first is not second
        first.set("key", "value")
        assert second.get("key") == b"value"


def test_ranks_that_wait_in_different_exchanges_are_told_where_each_is(world: World) -> None:
    place = MeetingPlace(server(world))
    rolls = [RollCall(place, "uneven", rank, 3, 20.0) for rank in range(3)]

    def waits(rank: int, what: str) -> PeerError:
        with pytest.raises(PeerError) as told, rolls[rank].waiting(what):
            raise RuntimeError("timed out")
        return told.value

    rolls[1].place, rolls[2].place = "the mean to evaluate", "the gradients of iteration 4"
    said = str(waits(0, "the gradients of iteration 4"))
    assert "(rank 0, 2: the gradients of iteration 4; rank 1: the mean to evaluate)" in said
    assert "or for a connection that broke during an exchange" in said
    assert said.endswith("(noticed by rank 0: timed out)")
    for roll in rolls:
        roll.close()
