"""Ports for meeting: free, and never those that the system gives away."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from uneven.cluster.emulate import ports


def given_away(folder: Path, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the system gave away all ports from this one on."""
    (folder / "range").write_text(f"{first}\t65535\n")
    monkeypatch.setattr(ports, "_RANGE", folder / "range")


def test_they_differ_and_lie_below_those_that_the_system_gives_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_away(tmp_path, 24_000, monkeypatch)
    found = ports.quiet_ports(50)
    assert len(set(found)) == 50
    assert all(12_000 <= port < 24_000 for port in found)


def test_where_somebody_listens_nobody_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "_LEAST", port)
        given_away(tmp_path, port + 1, monkeypatch)
        found = ports.quiet_ports(2)
    assert len(set(found)) == 2
    assert port not in found, "the only one below; so they are of the system's choosing"
