"""Where workers of several launchers find each other."""

from __future__ import annotations

import socket

import psutil

from uneven.runtime.launch.rendezvous import towards


def test_the_own_address_is_the_one_that_the_other_end_sees() -> None:
    own = [one.address for of in psutil.net_if_addrs().values() for one in of if one.family == socket.AF_INET]
    assert "127.0.0.1" in own
    assert [towards(address, 29500) for address in own] == own
