"""Where workers of several launchers find each other."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from uneven.cluster.emulate.ports import quiet_ports
from uneven.errors import LaunchError
from uneven.runtime.launch import rendezvous
from uneven.runtime.launch.rendezvous import NumberedLaunchers, towards


def test_the_own_address_is_the_one_that_the_other_end_sees() -> None:
    own = [one.address for of in psutil.net_if_addrs().values() for one in of if one.family == socket.AF_INET]
    assert "127.0.0.1" in own
    assert [towards(address, 29500) for address in own] == own


def test_launchers_name_the_machines_that_do_not_report(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rendezvous, "_QUIET_S", 0.1)
    (port,) = quiet_ports(1)
    first = NumberedLaunchers("127.0.0.1", port, 0, 4, "run", timeout=1)
    third = NumberedLaunchers("127.0.0.1", port, 2, 4, "run", timeout=60)
    names = f"machine 1, 3 of --nnodes 4 has not reported at 127.0.0.1:{port}"
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(third.next_rendezvous)
        with pytest.raises(LaunchError, match=rf"^{names} within 1 s: .*--node-rank 1"):
            first.next_rendezvous()
        first._store = None  # as when its process ends
        with pytest.raises(LaunchError, match=f"^{names} and the launcher of machine 0 has ended"):
            waits.result(60)
    said = re.findall("uneven: waits for machine ([0-9, ]+), which has not reported yet", capfd.readouterr().err)
    assert said[-1] == "1, 3"
