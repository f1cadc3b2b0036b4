"""``uneven measure-link`` between two network namespaces whose cable is shaped with tc tbf."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")), reason="shapes a cable between namespaces"
)
UP, DOWN = 40, 80  # Mbit/s


def tool(words: str) -> None:
    subprocess.run(words.split(), check=True, capture_output=True)


@pytest.fixture
def shaped() -> Iterator[tuple[str, str]]:
    here, there = (f"uneven-{side}-{os.getpid()}" for side in ("a", "b"))
    try:
        for name in (here, there):
            tool(f"ip netns add {name}")
        tool(f"ip -n {here} link add eth0 type veth peer name eth0 netns {there}")
        for name, address, rate in ((here, "10.77.0.1", UP), (there, "10.77.0.2", DOWN)):
            tool(f"ip -n {name} address add {address}/24 dev eth0")
            tool(f"ip -n {name} link set eth0 up")
            tool(f"ip netns exec {name} tc qdisc add dev eth0 root tbf rate {rate}mbit burst 32kb limit 300kb")
        yield here, there
    finally:
        for name in (here, there):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@needs_root
def test_the_shaped_rates_come_out_each_way(shaped: tuple[str, str]) -> None:
    here, there = shaped
    uneven = (sys.executable, "-m", "uneven", "measure-link")
    with subprocess.Popen(
        ["ip", "netns", "exec", there, *uneven, "--listen", "--host", "10.77.0.2"], stderr=subprocess.PIPE, text=True
    ) as listener:
        try:
            assert listener.stderr is not None
            assert "listening on 10.77.0.2" in listener.stderr.readline()
            words = ["ip", "netns", "exec", here, *uneven, "10.77.0.2", "--flows", "3", "--format", "json"]
            found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout)
        finally:
            listener.terminate()
    # Frames have 1,514 bytes with 1,448 of payload.
    for key, rate in (("up_bit_per_s", UP), ("flow_up_bit_per_s", UP), ("down_bit_per_s", DOWN)):
        assert found[key] == pytest.approx(rate * 1e6 * 1448 / 1514, rel=0.15), key
    assert found["round_trip_s"] < 0.1
    assert found["lines"][2].startswith("achieved = 1.0")
