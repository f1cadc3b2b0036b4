"""A machine that loses its power closes no connection; workers that wait for it notice by the kernel's probes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from emulation import needs_root

from uneven.runtime.messages import peer_messages
from uneven.runtime.messages.peer_messages import PeerMessages

ADDRESSES = ("10.231.77.1", "10.231.77.2")


def post_of(rank: int, folder: Path) -> PeerMessages:
    def texts(text: str) -> list[str]:
        (folder / f"{rank}.new").write_text(text)
        (folder / f"{rank}.new").rename(folder / str(rank))
        while not (folder / str(1 - rank)).exists():
            time.sleep(0.01)
        return [(folder / str(one)).read_text() for one in range(2)]

    there = ADDRESSES[1 - rank]
    return PeerMessages(rank, (1 - rank,), texts, meeting=there, most_bytes=1000, timeout_s=20.0)


@pytest.fixture
def machine() -> Iterator[str]:
    name = f"uneven-{os.getpid()}"
    commands = f"""netns add {name}
        link add {name[-12:]} type veth peer name far netns {name}
        addr add {ADDRESSES[0]}/30 dev {name[-12:]}
        link set {name[-12:]} up
        -n {name} addr add {ADDRESSES[1]}/30 dev far
        -n {name} link set far up"""
    try:
        for one in commands.splitlines():
            subprocess.run(["ip", *one.split()], check=True)
        yield name
    finally:
        subprocess.run(["ip", "link", "delete", name[-12:]], check=True)  # the kernel may keep it for minutes
        subprocess.run(["ip", "netns", "delete", name], check=True)


@needs_root
def test_a_patient_wait_for_it_ends(tmp_path: Path, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_messages, "_SILENT_S", 4)
    there = subprocess.Popen(["ip", "netns", "exec", machine, sys.executable, __file__, str(tmp_path)])
    post = post_of(0, tmp_path)
    try:
        until_s = time.monotonic() + 15.0
        post.patient = lambda: time.monotonic() < until_s
        assert bytes(post.receive(1)) == b"here"
        time.sleep(1.0)  # until all is confirmed: the kernel repeats what is not, for about 15 minutes
        subprocess.run(["ip", "-n", machine, "link", "set", "far", "down"], check=True)
        with pytest.raises(RuntimeError, match="no message from rank 1 has come to rank 0: its connection is closed"):
            post.receive(1)
    finally:
        post.close(failed=True)
        there.kill()
        there.wait()


if __name__ == "__main__":
    post = post_of(1, Path(sys.argv[1]))
    post.send(0, b"here")
    time.sleep(120.0)
