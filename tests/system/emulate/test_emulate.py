"""The emulator as root, with the kernel's own namespaces, token buckets and control groups.

Counts and ratios between nodes are looked at; where a time is compared with what a bandwidth allows, the bounds are
generous, for other work may hold a machine up.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from emulation import cluster, emulate, emulation_id, left_of, needs_root, said, script

from uneven import journal
from uneven.policy.core.records import EventRecord, RunRecord

pytestmark = needs_root

WHERE = """
import socket
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME",
         "OMP_NUM_THREADS", "UNEVEN_NODE", "UNEVEN_WORLD")
said_of = {name: os.environ.get(name) for name in names}
(Path("/dev/shm") / "mine").touch()
meet("here")
say(**said_of, links=sorted(name for _, name in socket.if_nameindex()), shm=os.listdir("/dev/shm"),
    net=os.readlink("/proc/self/ns/net"), peer=socket.gethostbyname("b"), argv=sys.argv[1:],
    name=socket.getnameinfo(("::ffff:10.77.0.1", 1), 0)[0], group=Path("/proc/self/cgroup").read_text())
"""


def test_every_node_is_a_machine_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # a number of the user's own would be kept
    nodes = cluster(tmp_path, '[[nodes]]\nname = "a"\n[[nodes]]\nname = "b"\ncores = 1.5\n')
    done = emulate(tmp_path, nodes, "--", str(script(tmp_path, WHERE)), "--epochs", "3", "--help")
    assert done.returncode == 0, done.stderr
    run = emulation_id(done.stderr)
    first, second = said(tmp_path / "run", 2)
    same = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "10.77.0.1",
            "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0", "UNEVEN_WORLD": "emulated",
            "links": ["eth0", "lo"], "shm": ["mine"], "peer": "10.77.0.2", "name": "a",
            "argv": ["--epochs", "3", "--help"]}  # fmt: skip
    assert same.items() <= first.items()
    assert same.items() <= second.items()
    assert (first["RANK"], first["UNEVEN_NODE"], second["RANK"], second["UNEVEN_NODE"]) == ("0", "a", "1", "b")
    assert (first["OMP_NUM_THREADS"], second["OMP_NUM_THREADS"]) == ("1", "2")
    assert first["net"] != second["net"]
    assert f"uneven-{run}/node0" in str(first["group"])
    assert "no uneven.Session()" in done.stderr
    assert left_of([run], {str(first["net"]), str(second["net"])}, (str(tmp_path),)) == set()
    assert (tmp_path / "run" / "cluster.toml").is_file()


SHARE = """
ready()
say(share=busy(1.2))
"""


@pytest.mark.alone
def test_quotas_share_the_processor_as_described(tmp_path: Path) -> None:
    cores = (0.4, 0.2, 0.1, 0.05)
    text = "".join(f'[[nodes]]\nname = "n{i}"\ncores = {share}\n' for i, share in enumerate(cores))
    done = emulate(tmp_path, cluster(tmp_path, text), "--", str(script(tmp_path, SHARE)))
    assert done.returncode == 0, done.stderr
    got = [float(str(one["share"])) for one in said(tmp_path / "run", len(cores))]
    for share, want in zip(got, cores, strict=True):
        assert share < want * 1.15 + 0.01  # never more; less only where the machine is busy with other things
    assert got == sorted(got, reverse=True)


def test_a_trace_is_replayed_while_the_run_goes_on(tmp_path: Path) -> None:
    node = '[[nodes]]\nname = "a"\nshare = { values = [0.1, 0.6], step_s = 20, speedup = 40 }\n'
    steps = "ready()\nshares = []\nwhile len(shares) < 5:\n"
    steps += "    now = limit()\n    if now not in (None, *shares[-1:]): shares.append(now)\n    time.sleep(0.01)\n"
    steps += "say(shares=shares)\n"
    done = emulate(tmp_path, cluster(tmp_path, node), "--", str(script(tmp_path, steps)))
    assert done.returncode == 0, done.stderr
    (one,) = said(tmp_path / "run", 1)
    shares = one["shares"]
    assert isinstance(shares, list)
    low, high = sorted(set(shares))  # by turns, half a second each
    assert (low, high) == (pytest.approx(0.1, rel=0.02), pytest.approx(0.6, rel=0.02))


@pytest.mark.alone
def test_rivals_take_their_part(tmp_path: Path) -> None:
    nodes = '[[nodes]]\nname = "free"\ncores = 0.3\n[[nodes]]\nname = "shared"\ncores = 0.3\nload = 2\n'
    done = emulate(tmp_path, cluster(tmp_path, nodes), "--", str(script(tmp_path, SHARE)))
    assert done.returncode == 0, done.stderr
    free, shared = (float(str(one["share"])) for one in said(tmp_path / "run", 2))
    assert 0.1 < shared / free < 0.6  # a third, by a fair scheduler whose turns are about as long as a period's quota


TRANSFER = """
import socket
def transfer(count):
    if rank == 0:
        with socket.create_server(("", 7000)) as server:
            meet("listening")
            peer, _ = server.accept()
            with peer:
                begun, got = time.monotonic(), 0
                while got < count:
                    got += len(peer.recv(1 << 16))
                peer.sendall(b"x")
                return time.monotonic() - begun
    meet("listening")
    with socket.create_connection((os.environ["MASTER_ADDR"], 7000)) as peer:
        peer.sendall(bytes(count))
        peer.recv(1)
ready()
say(seconds=transfer(2_500_000))
"""


@pytest.mark.alone
@pytest.mark.parametrize("limited", ["up", "down"])
def test_a_token_bucket_in_each_direction(tmp_path: Path, limited: str) -> None:
    receiver, sender = ("", "up_bit_per_s = 2e7\n") if limited == "up" else ("down_bit_per_s = 2e7\n", "")
    nodes = f'[[nodes]]\nname = "a"\ncores = 0.5\n{receiver}[[nodes]]\nname = "b"\ncores = 0.5\n{sender}'
    done = emulate(tmp_path, cluster(tmp_path, nodes), "--", str(script(tmp_path, TRANSFER)))
    assert done.returncode == 0, done.stderr
    seconds = float(str(said(tmp_path / "run", 2)[0]["seconds"]))
    assert 0.9 < seconds < 2.5  # 2.5 MB at 20 Mbit/s: 1 s and headers; a few ms without a limit


BETWEEN = """
import socket
def answers(port):
    with socket.create_server(("", port)) as server:
        meet(f"listening-{port}")
        peers = [server.accept()[0] for _ in range(2)]
        for peer in peers:
            peer.sendall(peer.recv(1))  # a round trip
        got = {peer: 0 for peer in peers}
        while min(got.values()) < 1_250_000:
            for peer in peers:
                got[peer] += len(peer.recv(1 << 16, socket.MSG_DONTWAIT)) if poll(peer) else 0
        for peer in peers:
            peer.sendall(b"x")
def poll(peer):
    import select
    return select.select([peer], [], [], 0.001)[0]
def asks(port):
    meet(f"listening-{port}")
    with socket.create_connection((os.environ["MASTER_ADDR"], port)) as peer:
        begun = time.monotonic()
        peer.sendall(b"x")
        peer.recv(1)
        trip = time.monotonic() - begun
        peer.sendall(bytes(1_250_000))
        peer.recv(1)
        say(trip=trip, seconds=time.monotonic() - begun - trip)
ready()
answers(7000) if rank == 0 else asks(7000)
"""


@pytest.mark.alone
def test_a_line_between_sites_is_shared_by_their_nodes_and_takes_its_time(tmp_path: Path) -> None:
    text = """
[defaults]
cores = 0.5
up_bit_per_s = 1e9
latency_s = 0.01
[[nodes]]
name = "here"
site = "x"
[[nodes]]
name = "there"
count = 2
site = "y"
[[links]]
between = ["x", "y"]
bit_per_s = 1e9
back_bit_per_s = 2e7
latency_s = 0.05
[[events]]
do = "stop"
node = "there0"
at_s = 0.0
for_s = 1.0
"""
    done = emulate(tmp_path, cluster(tmp_path, text), "--", str(script(tmp_path, BETWEEN)))
    assert done.returncode == 0, done.stderr
    assert "there0: stopped for 1 s" in done.stderr
    for rank in (1, 2):
        one = json.loads((tmp_path / "run" / f"said-{rank}.json").read_text())
        assert one["trip"] >= 0.14  # twice what the line and the nodes' own links add up to
        assert 0.9 < one["seconds"] < 4.0  # 2.5 MB together at 20 Mbit/s: 1 s and headers, and TCP's start


RING = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
x = torch.ones(1_000_000)
dist.all_reduce(x)
ready()
dist.barrier()
begun = time.monotonic()
for _ in range(3):
    dist.all_reduce(x)
say(seconds=(time.monotonic() - begun) / 3, sum=x[0].item())
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.alone
def test_an_all_reduce_takes_as_long_as_a_ring_must(tmp_path: Path) -> None:
    """4 MB over four nodes at 100 Mbit/s: each sends 2 · 3/4 · 4 MB, 0.48 s."""
    link = "cores = 0.45\nup_bit_per_s = 1e8\ndown_bit_per_s = 1e8\n"
    nodes = "".join(f'[[nodes]]\nname = "n{i}"\n{link}' for i in range(4))
    done = emulate(tmp_path, cluster(tmp_path, nodes), "--", str(script(tmp_path, RING)))
    assert done.returncode == 0, done.stderr
    for one in said(tmp_path / "run", 4):
        assert one["sum"] == 4.0**4
        assert 0.43 < float(str(one["seconds"])) < 1.2


TRAINING = """
import torch, uneven
session = uneven.Session()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = session.setup(model, optimizer)
data = torch.utils.data.TensorDataset(torch.randn(6400, 4), torch.randn(6400, 1))
for x, y in session.loader(data, global_batch_size=32):
    ((model(x) - y) ** 2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
session.close()
"""


def test_a_session_trains_is_balanced_and_sees_events_come_at_their_iteration(tmp_path: Path) -> None:
    text = """
[[nodes]]
name = "quick"
cores = 0.8
[[nodes]]
name = "slow"
cores = 0.3
[[events]]
do = "slow"
node = "slow"
at_iteration = 50
factor = 0.5
[[events]]
do = "slow"
node = "quick"
at_iteration = 100000
factor = 0.5
"""
    done = emulate(tmp_path, cluster(tmp_path, text), "--balance", "even", "--", str(script(tmp_path, TRAINING)))
    assert done.returncode == 0, done.stderr
    assert "slow: slowed down to 0.5 of its processor time" in done.stderr
    assert "did not start training" not in done.stderr  # the session said so by itself
    assert "ended before this could happen: quick: slowed down" in done.stderr
    read = journal.read(tmp_path / "run")
    begun = [one for one in read.records() if isinstance(one, RunRecord)]
    assert [(one.host, one.world) for one in begun] == [("quick", "emulated"), ("slow", "emulated")]
    assert {one.settings["balance"] for one in begun} == {"even"}
    (event,) = [one for one in read.records() if isinstance(one, EventRecord) and one.event == "slow"]
    assert event.rank == 1
    assert event.iteration >= 50
    assert max(one.iteration for one in journal.iterations(list(read.records()))) == 199


def test_a_kill_ends_the_run_and_says_why(tmp_path: Path) -> None:
    nodes = '[[nodes]]\nname = "a"\n[[nodes]]\nname = "b"\n[[events]]\ndo = "kill"\nnode = "b"\nat_s = 0.3\n'
    done = emulate(tmp_path, cluster(tmp_path, nodes), "--", str(script(tmp_path, "ready()\ntime.sleep(100)\n")))
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 1 (b, process" in done.stderr
    assert "was killed by SIGKILL, so the run has been ended: cluster 'test': event at 0.3 s" in done.stderr
    assert left_of([emulation_id(done.stderr)], set(), (str(tmp_path),)) == set()


FAILS = """
from uneven.runtime.world import report_failures
report_failures()
ready()
if rank == 1:
    raise RuntimeError("no such batch")
time.sleep(100)
"""


def test_a_worker_that_dies_ends_the_run_with_its_traceback_and_exit_code(tmp_path: Path) -> None:
    nodes = cluster(tmp_path, '[[nodes]]\nname = "n"\ncount = 3\ncores = 0.3\n')
    done = emulate(tmp_path, nodes, "--", str(script(tmp_path, FAILS)))
    assert done.returncode == 1
    assert "error: rank 1 (n1, process" in done.stderr
    assert done.stderr.count("Traceback") == 1
    assert "so the run has been ended: RuntimeError: no such batch (see above)" in done.stderr
    assert list((tmp_path / "run").glob("error-*")) == []
    exits = emulate(tmp_path, nodes, "--", str(script(tmp_path, "sys.exit(7 if rank == 2 else 0)")), run="again")
    assert exits.returncode == 7
    assert "rank 2 (n2, process" in exits.stderr


def test_memory_is_limited_and_the_message_says_so(tmp_path: Path) -> None:
    nodes = '[[nodes]]\nname = "a"\nmemory_bytes = 67108864\n[[nodes]]\nname = "b"\n'
    greedy = "ready()\nkept = bytearray(b'x') * (200 << 20 if rank == 0 else 1)\ntime.sleep(100)\n"
    done = emulate(tmp_path, cluster(tmp_path, nodes), "--", str(script(tmp_path, greedy)))
    assert done.returncode == 128 + signal.SIGKILL
    assert "it needed more memory than its node's memory_bytes" in done.stderr


def test_who_never_says_that_it_trains_is_limited_all_the_same(tmp_path: Path) -> None:
    node = '[[nodes]]\nname = "silent"\ncores = 0.2\n'
    late = "before = limit()\nwhile limit() == before: time.sleep(0.02)\nsay(before=before, after=limit())\n"
    worker = str(script(tmp_path, late))
    done = emulate(tmp_path, cluster(tmp_path, node), "--ready-within", "3", "--", worker)
    assert done.returncode == 0, done.stderr
    assert "silent did not start training within 3 s" in done.stderr
    assert said(tmp_path / "run", 1) == [{"before": None, "after": pytest.approx(0.2, rel=0.02)}]


def test_what_cannot_be_is_refused_before_there_is_a_run(tmp_path: Path) -> None:
    nodes = '[[nodes]]\nname = "a"\n[[events]]\ndo = "leave"\nnode = "a"\nat_s = 3\n'
    done = emulate(tmp_path, cluster(tmp_path, nodes), "--", str(script(tmp_path, "")))
    assert done.returncode == 2
    assert "event leave of node a: workers come and go in an elastic run: add --elastic MIN:MAX" in done.stderr
    assert not (tmp_path / "run").exists()
