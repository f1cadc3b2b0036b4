"""Nothing is left of an emulation, however it ends; and one does not disturb another."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from emulation import (
    WHY_NOT,
    cluster,
    emulate,
    emulation_id,
    left_of,
    namespaces_of,
    needs_root,
    own_links,
    owned_by,
    said,
    script,
    started,
    until,
)

from uneven.cluster.emulate import capabilities, cgroup, emulation_state
from uneven.cluster.emulate.netns import EmulatedNetwork
from uneven.cluster.emulate.pure import names
from uneven.cluster.emulate.pure.wiring import Wiring
from uneven.cluster.pure.describe.spec import Node, SiteLink, steady
from uneven.errors import LaunchError

pytestmark = needs_root

NODES = """
[[links]]
between = ["x", "y"]
bit_per_s = 1e8
latency_s = 0.001
[[nodes]]
name = "far"
site = "y"
cores = 0.2
[[nodes]]
name = "n"
site = "x"
count = 2
cores = 0.2
load = 1
memory_bytes = 1073741824
up_bit_per_s = 1e8
down_bit_per_s = 1e8
"""

# A worker with a child that would outlive it: only its control group leads to that one.
CHILD = f"sleep 3217.{os.getpid()}"
WITH_CHILD = f"""
import subprocess
subprocess.Popen({CHILD.split()}, start_new_session=True)
(run / f"up-{{rank}}").touch()
ready()
(run / f"trains-{{rank}}").touch()
time.sleep(1.0)
(run / f"done-{{rank}}").touch()
"""


def stays(folder: Path) -> Path:
    return script(folder, WITH_CHILD + "time.sleep(100)\n")


def all_there(run: Path, name: str) -> bool:
    return all((run / f"{name}-{rank}").exists() for rank in range(3))


MOMENTS = ("setup", "setup", "start", "training", "teardown")
LONGEST_S = {"setup": 0.08, "start": 0.4, "training": 0.8, "teardown": 0.1}


@pytest.mark.alone  # other emulations lay interfaces, and remove what this one has left
def test_killed_at_any_moment_it_leaves_nothing_that_the_next_one_does_not_remove(tmp_path: Path) -> None:
    moments = random.Random(20261120)
    links = own_links()
    nodes, worker = cluster(tmp_path, NODES), script(tmp_path, WITH_CHILD)
    runs: list[str] = []
    namespaces: set[str] = set()
    relays: list[psutil.Process] = []
    for number, moment in enumerate(MOMENTS):
        run = tmp_path / f"killed-{number}"
        with started(tmp_path, nodes, "--", str(worker), run=run.name) as emulator:
            assert until(lambda: owned_by(emulator.pid) or emulator.poll() is not None)
            waits_for = {"start": "up", "training": "trains", "teardown": "done"}.get(moment)
            if waits_for:
                assert until(lambda: all_there(run, waits_for))  # noqa: B023
            time.sleep(moments.uniform(0, LONGEST_S[moment]))
            runs += owned_by(emulator.pid)
            namespaces |= namespaces_of(emulator.pid)
            relays += relays_of(emulator.pid)
            emulator.kill()
            emulator.wait()
    assert len(set(runs)) >= 4  # one that was ending may have been just over
    assert relays
    assert until(lambda: not any(map(still_runs, relays)), 10.0)
    done = emulate(tmp_path, nodes, "--", str(worker), run="after")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "after").glob("done-*"))) == 3
    runs.append(emulation_id(done.stderr))
    assert until(lambda: left_of(runs, namespaces, (str(tmp_path), CHILD)) == set()), left_of(
        runs, namespaces, (str(tmp_path), CHILD)
    )
    assert own_links() == links


def workers_of(emulator: int, script: Path) -> set[int]:
    """What it has started of the script and of its children; it starts helpers too, which come and go."""
    found = set()
    for child in psutil.Process(emulator).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            command = " ".join(child.cmdline())
            if str(script) in command or command == CHILD:
                found.add(child.pid)
    return found


@pytest.mark.alone  # others remove what this one has left
def test_doctor_removes_what_was_left_and_only_that(tmp_path: Path) -> None:
    nodes, worker = cluster(tmp_path, NODES), stays(tmp_path)
    with ExitStack() as stack:
        dead = stack.enter_context(started(tmp_path, nodes, "--", str(worker), run="dead"))
        alive = stack.enter_context(started(tmp_path, nodes, "--", str(worker), run="alive"))
        assert until(lambda: all_there(tmp_path / "dead", "trains") and all_there(tmp_path / "alive", "trains"))
        (left,), (lives,) = owned_by(dead.pid), owned_by(alive.pid)
        assert until(lambda: len(workers_of(alive.pid, worker)) == 6), "three, and a child of each"
        workers = workers_of(alive.pid, worker)
        dead.kill()
        dead.wait()
        assert left_of([left], set(), ()) != set()  # the guard is needed
        clean = [*alive.args[:3], "doctor", "--clean"]  # type: ignore[misc, index]
        first = subprocess.run(clean, capture_output=True, text=True, timeout=60)
        assert first.returncode == 0, first.stderr
        groups = 4 * len(capabilities.trees().groups(left, memory=True))  # of three nodes, and above them
        assert f"removed the leftovers of emulation {left}: {groups} control groups" in first.stdout
        assert left_of([left], set(), ()) == set()
        assert left_of([lives], set(), ()) != set()
        assert workers_of(alive.pid, worker) >= workers
        assert alive.poll() is None
        second = subprocess.run(clean, capture_output=True, text=True, timeout=60)
        assert left not in second.stdout
        alive.terminate()
        alive.communicate()
    assert until(lambda: left_of([left, lives], set(), (str(tmp_path), CHILD)) == set())


def relays_of(emulator: int) -> list[psutil.Process]:
    """The processes that delay packets for it."""
    found = []
    for child in psutil.Process(emulator).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "uneven.cluster.emulate.relay" in child.cmdline():
                found.append(child)
    return found


def still_runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def heeds_hangups() -> Iterator[None]:
    """Who started the tests may ignore SIGHUP (nohup does), and an emulator inherits and respects that."""
    before = signal.getsignal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.alone  # others lay interfaces
@pytest.mark.usefixtures("heeds_hangups")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_asked_to_stop_it_ends_everybody_and_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    links = own_links()
    with started(tmp_path, cluster(tmp_path, NODES), "--", str(stays(tmp_path))) as emulator:
        assert until(lambda: all_there(tmp_path / "run", "trains"))
        (run,), namespaces = owned_by(emulator.pid), namespaces_of(emulator.pid)
        assert len(namespaces) == 5  # of three nodes and two sites
        (relay,) = relays_of(emulator.pid)
        emulator.send_signal(number)
        _, err = emulator.communicate(timeout=60)
    assert emulator.returncode == 128 + number
    assert f"stopped by {number.name}; all workers have ended" in err
    assert not still_runs(relay)
    assert until(lambda: left_of([run], namespaces, (str(tmp_path), CHILD)) == set())
    assert own_links() == links


STUBBORN = 'import signal\nsignal.signal(signal.SIGTERM, lambda *_: (run / f"asked-{rank}").touch())\n'


def test_asked_twice_it_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "3600")  # for those who are asked once
    worker = script(tmp_path, STUBBORN + WITH_CHILD + "time.sleep(100)\n")
    with started(tmp_path, cluster(tmp_path, NODES), "--", str(worker)) as emulator:
        assert until(lambda: all_there(tmp_path / "run", "trains"))
        (run,) = owned_by(emulator.pid)
        emulator.send_signal(signal.SIGINT)
        assert until(lambda: all_there(tmp_path / "run", "asked"))
        emulator.send_signal(signal.SIGINT)
        emulator.communicate(timeout=60)
    assert emulator.returncode == 128 + signal.SIGINT
    assert until(lambda: left_of([run], set(), (str(tmp_path), CHILD)) == set())


def test_who_delays_packets_is_missed_when_it_dies(tmp_path: Path) -> None:
    with started(tmp_path, cluster(tmp_path, NODES), "--", str(stays(tmp_path))) as emulator:
        assert until(lambda: all_there(tmp_path / "run", "trains"))
        (run,), namespaces = owned_by(emulator.pid), namespaces_of(emulator.pid)
        (relay,) = relays_of(emulator.pid)
        relay.kill()
        _, err = emulator.communicate(timeout=60)
    assert emulator.returncode == 1
    assert "the process that delays packets has ended with -9" in err
    assert until(lambda: left_of([run], namespaces, (str(tmp_path), CHILD)) == set())


def test_a_network_that_cannot_be_laid_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nsenter = shutil.which("nsenter")
    assert nsenter is not None
    (tmp_path / "nsenter").symlink_to(nsenter)
    monkeypatch.setenv("PATH", str(tmp_path))  # `ip` is nowhere
    before = namespaces_of(os.getpid())
    line = SiteLink(between=("x", "y"), bit_per_s=steady(1e6), latency_s=0.01)
    wiring = Wiring((Node(name="a", site="x"), Node(name="b", site="y")), (line,))
    with pytest.raises(LaunchError, match="`ip` failed"):
        EmulatedNetwork(wiring, netem=False)
    assert namespaces_of(os.getpid()) == before
    assert relays_of(os.getpid()) == []


def test_an_error_in_the_middle_of_making_a_network_leaves_nothing(tmp_path: Path) -> None:
    """The kernel itself refuses a second interface of one name; here it is the bandwidth that it cannot count."""
    nodes = cluster(tmp_path, '[[nodes]]\nname = "a"\nup_bit_per_s = 1e18\n')
    done = emulate(tmp_path, nodes, "--", str(script(tmp_path, WITH_CHILD)))
    assert done.returncode == 1
    assert "`tc` failed" in done.stderr
    run = emulation_id(done.stderr)
    assert until(lambda: left_of([run], set(), (str(tmp_path), CHILD)) == set())


def unified() -> Path | None:
    """Where version 2 is mounted, with or without controllers."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [Path(line.split()[4]) for line in lines if " - cgroup2 " in line]
    return next((place for place in places if os.access(place, os.W_OK)), None)


@pytest.mark.skipif(WHY_NOT != "" or unified() is None, reason="no control groups of version 2 that can be written")
def test_a_group_of_version_2_goes_with_everything_in_it() -> None:
    """The kernel's own files for killing and removing, which need no controller."""
    top = unified()
    assert top is not None
    group = top / names.group(emulation_state.new_id())
    (group / "node0").mkdir(parents=True)
    sleepers = [subprocess.Popen(CHILD.split()) for _ in range(2)]
    for sleeper in sleepers:
        (group / "node0" / "cgroup.procs").write_text(str(sleeper.pid))
    assert sorted(cgroup.processes(group)) == sorted(sleeper.pid for sleeper in sleepers)
    assert cgroup.remove(group) == 2
    assert [sleeper.wait() for sleeper in sleepers] == [-signal.SIGKILL, -signal.SIGKILL]
    assert not group.exists()


TALK = """
import socket
PORT = 29600  # at MASTER_PORT is the launcher's store
text = sys.argv[1]
if rank == 0:
    with socket.create_server(("", PORT)) as server:
        meet("listening")
        heard = []
        for _ in range(2):
            peer, _ = server.accept()
            with peer:
                heard.append(peer.recv(100).decode())
    (run / "all-heard").touch()
else:
    meet("listening")
    with socket.create_connection((os.environ["MASTER_ADDR"], PORT)) as peer:
        peer.sendall(text.encode())
    heard = []
while not (Path(sys.argv[2]) / "all-heard").exists():  # the other emulation: both run at the same time
    time.sleep(0.01)
say(heard=heard)
"""


def test_two_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Same addresses, same ports, same control groups' names inside; each is alone in its network."""
    nodes, worker = cluster(tmp_path, NODES), str(script(tmp_path, TALK))
    with ExitStack() as stack:
        pairs = (("one", "two"), ("two", "one"))
        both = [
            stack.enter_context(started(tmp_path, nodes, "--", worker, mine, str(tmp_path / other), run=mine))
            for mine, other in pairs
        ]
        errors = [emulator.communicate(timeout=100)[1] for emulator in both]
    assert [emulator.returncode for emulator in both] == [0, 0], errors
    for run in ("one", "two"):
        assert said(tmp_path / run, 3)[0]["heard"] == [run, run]
    runs = [emulation_id(err) for err in errors]
    assert runs[0] != runs[1]
    assert until(lambda: left_of(runs, set(), (str(tmp_path),)) == set())
