"""Small parts: token buckets, rivals, names, what is kept for cleaning, requests to stop."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from uneven.cluster import files
from uneven.cluster.emulate import emulation_state
from uneven.cluster.emulate.artificial_load import Rivals, duties
from uneven.cluster.emulate.emulated_workers import EmulatedWorkers, environment, error_file
from uneven.cluster.emulate.emulation import Emulation
from uneven.cluster.emulate.pure import names, shape
from uneven.cluster.pure.describe.spec import ClusterSpec, Do, Event, Node
from uneven.cluster.pure.describe.trace import Trace
from uneven.errors import LaunchError
from uneven.journal import Writer, rank_path, read
from uneven.policy.core.records import EventRecord, StepRecord
from uneven.runtime.jobs import Command, Ending, Events, Stop
from uneven.runtime.jobs.processes import import_path
from uneven.runtime.launch.local_workers import LocalWorker
from uneven.runtime.world import discover


def test_a_bucket_holds_two_milliseconds_and_at_least_a_packet() -> None:
    assert shape.burst_bytes(100e6) == 25_000
    assert shape.burst_bytes(1e6) == shape.LEAST_BURST_BYTES
    assert shape.queue_bytes(100e6) == 6_250_000
    assert 1514 < shape.at_once_bytes(1e6) < shape.at_once_bytes(100e6) < 25_000  # else the bucket cuts it into packets
    assert shape.at_once_bytes(math.inf) == shape.at_once_bytes(10e9) == 65_536
    assert shape.queue_bytes(1e6) == shape.LEAST_QUEUE_BYTES


def test_words_for_tc() -> None:
    limited = "qdisc replace dev eth0 root handle 1: tbf rate 100000000bit burst 25000 limit 6250000"
    delay = "handle 10: netem delay 1500us limit 100000"
    away = "qdisc del dev eth0 root"
    assert shape.commands("eth0", 100e6, 0) == [limited]
    assert shape.commands("eth0", math.inf, 0) == []
    assert shape.commands("eth0", math.inf, 0, before_bit_per_s=1e6) == [away]
    assert shape.commands("eth0", 100e6, 0, before_bit_per_s=20e6) == [limited]
    assert shape.commands("eth0", 100e6, 0, before_bit_per_s=400e6) == [away, limited]
    nothing = "qdisc replace dev eth0 root handle 2: pfifo limit 0"
    assert shape.commands("eth0", 0.0, 0.0015, before_bit_per_s=100e6) == [nothing]
    assert shape.commands("eth0", 100e6, 0, before_bit_per_s=0.0) == [away, limited]
    assert shape.commands("eth0", math.inf, 0, before_bit_per_s=0.0) == [away]
    assert shape.commands("eth0", 100e6, 0.0015) == [limited, f"qdisc replace dev eth0 parent 1:1 {delay}"]
    assert shape.commands("eth0", math.inf, 0.0015) == [f"qdisc replace dev eth0 root {delay}"]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("load", [0, 0.2, 0.5, 1, 1.37, 3, 4.9])
def test_rivals_leave_the_worker_its_fair_part(load: float, threads: int) -> None:
    busy = duties(load, threads)
    assert all(0 < duty <= 1 for duty in busy)
    whole = [duty for duty in busy if duty == 1]
    left = [duty for duty in busy if duty < 1]
    assert len(left) <= 1
    duty = left[0] if left else 0.0
    gets = duty * threads / (threads + len(whole) + 1) + (1 - duty) * threads / (threads + len(whole))
    assert gets == pytest.approx(threads / (threads + load))


def test_rivals_start_when_needed_stay_and_end() -> None:
    started: list[Command] = []

    def start() -> Command:
        env = {**os.environ, "PYTHONPATH": import_path()}
        line = [sys.executable, "-P", "-m", "uneven.cluster.emulate.rival"]
        started.append(Command("rival", line, stdin=subprocess.PIPE, env=env))
        return started[-1]

    rivals = Rivals(start, threads=1)
    rivals.set(0)
    assert started == []
    rivals.set(1.5)
    assert len(started) == 2
    rivals.set(0)
    assert [one.wait(0.0) for one in started] == [None, None]  # asleep
    os.kill(started[0].pid, signal.SIGKILL)
    started[0].wait()
    rivals.set(2)  # one was killed with its node, where another worker computes now
    assert len(started) == 3
    rivals.close()
    assert [one.ending for one in started] == [Ending.of(-signal.SIGKILL)] * 3


def test_a_rival_ends_with_its_standard_input() -> None:
    line = [sys.executable, "-P", "-m", "uneven.cluster.emulate.rival"]
    done = subprocess.run(line, input=b"0.1\n0.9\n", env={**os.environ, "PYTHONPATH": import_path()}, timeout=60)
    assert done.returncode == 0


def test_names() -> None:
    ids = {emulation_state.new_id() for _ in range(50)}
    assert len(ids) == 50
    assert all(map(names.is_id, ids))
    assert not names.is_id("../../etc")
    assert (names.address(0), names.address(299)) == ("10.77.0.1", "10.77.1.44")


def test_what_a_dead_owner_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    folder, tree = tmp_path / "state", tmp_path / "tree"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    mine = emulation_state.begin("aaaaaaaa", [tree / "uneven-aaaaaaaa"], folder)
    assert mine.alive
    others = {"bbbbbbbb": (ended.pid, 1), "cccccccc": (os.getpid(), mine.started - 1)}  # ended; its number given anew
    for run, (pid, started) in others.items():
        groups = [str(tree / f"uneven-{run}"), str(tree / "precious")]
        (folder / f"{run}.json").write_text(json.dumps({"id": run, "pid": pid, "started": started, "groups": groups}))
    (folder / "dddddddd.new").write_text("{")  # killed while writing: nothing was made yet
    for name in ("uneven-aaaaaaaa", "uneven-bbbbbbbb/node0", "uneven-cccccccc/node0", "precious"):
        (tree / name).mkdir(parents=True)
    removed = emulation_state.clean(folder)
    assert [(one.id, one.groups, one.processes) for one in removed] == [("bbbbbbbb", 2, 0), ("cccccccc", 2, 0)]
    assert "emulation bbbbbbbb: 2 control groups and 0 processes" in str(removed[0])
    assert sorted(path.name for path in tree.iterdir()) == ["precious", "uneven-aaaaaaaa"]
    assert sorted(path.name for path in folder.iterdir()) == ["aaaaaaaa.json", "lock"]
    emulation_state.end(mine, folder)
    assert [path.name for path in tree.iterdir()] == ["precious"]
    assert emulation_state.clean(folder) == []
    assert emulation_state.clean(tmp_path / "none") == []


def test_a_strange_state_file_is_not_acted_upon(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "aaaaaaaa.json").write_text('{"id": "aaaaaaaa"}')
    with pytest.raises(LaunchError, match=r"aaaaaaaa\.json is not from this version"):
        emulation_state.clean(tmp_path)


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(LaunchError, match="is writable by users other"):
        emulation_state.clean(tmp_path)


def test_requests_to_stop_are_counted_and_raise_nothing() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Stop() as stop:
        assert stop.requests == 0
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        while stop.requests < 2:
            signal.sigtimedwait([], 0.01)
        assert stop.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) is before


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Stop() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.requests == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_worker_is_told_the_cores_that_it_is_held_to_unless_they_change(tmp_path: Path) -> None:
    spec = files.load("demo4")
    carried: Any = SimpleNamespace(network={"MASTER_ADDR": "127.0.0.1"})

    def told(spec: Any, rank: int) -> float | None:
        return discover(environment(spec, rank, rank, carried, tmp_path, 4)).share

    assert [told(spec, rank) for rank in range(4)] == [one.cores * one.share.at(0.0) for one in spec.nodes]
    moving = replace(spec.nodes[0], share=Trace(values=(1.0, 0.5), step_s=1.0, source="made up"))
    assert told(replace(spec, nodes=(moving, *spec.nodes[1:])), 0) is None


def test_a_worker_that_ended_in_order_long_before_does_not_change_the_blame(tmp_path: Path) -> None:
    def worker(rank: int, code: int, at_s: float) -> LocalWorker:
        process: Any = SimpleNamespace(pid=100 + rank, ending=replace(Ending.of(code), at_s=at_s))
        return LocalWorker(rank=rank, place=rank, process=process, error_file=tmp_path / "none")

    workers = EmulatedWorkers.__new__(EmulatedWorkers)
    workers._all = [worker(0, 0, 10.0), worker(1, 1, 100.0), worker(2, -signal.SIGKILL, 101.0)]
    workers.lost, workers._end_within_s = workers._all[1:], 10
    workers._spec = files.load("demo4")
    assert str(workers.failure()).startswith("rank 2 ")


def test_only_errors_of_workers_are_forgotten(tmp_path: Path) -> None:
    workers = EmulatedWorkers.__new__(EmulatedWorkers)
    workers._run_directory = tmp_path
    theirs = {"error-bars.png", "error-plots", "error-5.json"}
    (tmp_path / "error-plots").mkdir()
    for name in ("error-bars.png", "error-5.json", "error-0.json", f"error-{'0a' * 8}"):
        (tmp_path / name).touch()
    workers._all = [SimpleNamespace(error_file=error_file(tmp_path, number)) for number in range(2)]  # type: ignore[misc]
    workers.forget_errors()
    assert {path.name for path in tmp_path.iterdir()} == theirs


def test_an_event_at_a_time_is_recorded_in_the_iteration_of_its_worker(tmp_path: Path) -> None:
    path = rank_path(tmp_path, 0)
    path.parent.mkdir()
    values = dict.fromkeys(("data_s", "compute_s", "exchange_s", "control_s", "ended_at_s"), 0.1)
    with Writer(path) as writer:
        writer.write(StepRecord(rank=0, iteration=41, epoch=0, batch=8, global_batch=8, **values))
    event = Event(do=Do.SLOW, node="a", at_s=1.0, factor=0.5, for_s=1.0)

    class Worker:
        place = rank = 0

    class Workers(dict[int, Any]):
        def on(self, node: int) -> Any:
            return self[node]

    workers: Any = Workers({0: Worker()})
    machines: Any = SimpleNamespace(apply=lambda *_: None)
    spec = ClusterSpec(name="test", nodes=(Node(name="a"),), events=(event,))
    with Events() as events:
        emulation = Emulation(spec, machines, workers, tmp_path, events)
        emulation._read_journal(1.0)
        emulation._carry_out(1.0)
    assert [one.iteration for one in read(tmp_path).records() if isinstance(one, EventRecord)] == [42]
