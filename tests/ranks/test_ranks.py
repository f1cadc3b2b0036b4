"""The decorator that runs a test on several ranks, run on bodies that do well and on bodies that do not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from uneven.errors import ConfigError
from uneven.runtime.world import discover
from uneven.testing import RankContext, RankFailure, pool_pids, ranks, run_ranks
from uneven.testing.rank_process import RankProcess
from uneven.testing.ranks import fork_server
from uneven_bench.forked.scripts import Script, run_script


@ranks(3)
def test_ranks_are_joined_by_gloo(me: RankContext) -> None:
    x = torch.tensor([10.0**me.rank])
    dist.all_reduce(x)
    assert x.item() == 111.0
    assert (dist.get_rank(), dist.get_world_size()) == (me.rank, me.size)
    assert torch.get_num_threads() == 1


@ranks(2, join=False)
def test_a_body_may_join_by_itself_and_finds_the_world(me: RankContext) -> None:
    assert not dist.is_initialized()
    world = discover()
    assert (world.rank, world.size, world.local_rank) == (me.rank, 2, me.rank)
    dist.init_process_group("gloo")
    # The body ends with a sum: a worker that is connected could exit while the other one still connects to it.
    x = torch.tensor([10.0**me.rank])
    dist.all_reduce(x)
    assert (x.item(), dist.get_rank()) == (11.0, me.rank)


def _sees_every_rank(results: list[list[int]]) -> None:
    assert results == [[0, 0], [1, 10], [2, 20]]


@ranks(3, check=_sees_every_rank)
def test_results_come_back_by_rank(me: RankContext) -> list[int]:
    return [me.rank, 10 * me.rank]


@pytest.mark.parametrize("word", ["spam", "eggs"])
@ranks(2)
def test_fixtures_and_parameters_reach_the_body(me: RankContext, word: str, tmp_path: str) -> None:
    (Path(tmp_path) / f"{word}{me.rank}").touch()
    dist.barrier()
    assert len(list(Path(tmp_path).iterdir())) == me.size


def whoami(me: RankContext) -> list[int]:
    return [os.getpid(), int(os.environ["MASTER_PORT"]), torch.randint(10**9, ()).item()]


def test_processes_are_kept_but_port_and_seed_are_fresh() -> None:
    first, second = run_ranks(2, whoami), run_ranks(2, whoami)
    assert [pid for pid, _, _ in first] == [pid for pid, _, _ in second]
    assert {pid for pid, _, _ in first} <= pool_pids()
    assert first[0][1] == first[1][1]
    assert first[0][2] == second[0][2] == second[1][2]


def test_fresh_processes_on_demand() -> None:
    kept = {pid for pid, _, _ in run_ranks(2, whoami)}
    fresh = {pid for pid, _, _ in run_ranks(2, whoami, fresh=True)}
    assert not kept & fresh
    assert not pool_pids()


def environment(me: RankContext) -> str | None:
    return os.environ.get("UNEVEN_TEST_WORD")


def test_the_environment_of_the_moment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNEVEN_TEST_WORD", "now")
    assert run_ranks(2, environment) == ["now", "now"]
    monkeypatch.delenv("UNEVEN_TEST_WORD")
    assert run_ranks(2, environment) == [None, None]


def say(me: RankContext) -> None:
    print(f"this is rank {me.rank}")


def test_output_is_relayed(capsys: pytest.CaptureFixture[str]) -> None:
    run_ranks(2, say)
    assert capsys.readouterr().out == "this is rank 0\nthis is rank 1\n"


def fail_on_one(me: RankContext) -> None:
    if me.rank == 1:
        raise ValueError("the thing that went wrong")
    dist.barrier()  # its peer never comes


def test_a_failure_brings_the_childs_traceback_and_leaves_no_process() -> None:
    run_ranks(2, whoami)
    before = pool_pids()
    with pytest.raises(RankFailure, match="the thing that went wrong") as caught:
        run_ranks(2, fail_on_one)
    assert "in fail_on_one" in str(caught.value)
    assert caught.value.kind == "failed"
    assert caught.value.rank == 1 or "rank 1 failed" in str(caught.value)
    assert before
    assert not any(psutil.pid_exists(pid) for pid in before)
    assert len(run_ranks(2, whoami)) == 2  # and the next test has new ones


def kill_one(me: RankContext) -> None:
    if me.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def exit_one(me: RankContext) -> None:
    if me.rank == 0:
        os._exit(7)
    dist.barrier()


def test_killed_is_told_from_failed() -> None:
    with pytest.raises(RankFailure, match="rank 1 killed: by SIGKILL") as caught:
        run_ranks(2, kill_one)
    assert (caught.value.kind, caught.value.rank) == ("killed", 1)
    with pytest.raises(RankFailure, match="exit code 7") as caught:
        run_ranks(2, exit_one)
    assert (caught.value.kind, caught.value.rank) == ("killed", 0)


def hang_on_one(me: RankContext, note: str) -> None:
    if me.rank == 1:
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(note).write_text(str(grandchild.pid))
        time.sleep(600)


def test_hung_is_told_apart_says_where_and_takes_grandchildren_along(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(RankFailure, match="rank 1 hung: no answer within 3 s") as caught:
        run_ranks(2, hang_on_one, note, timeout_s=3, join=False)
    assert (caught.value.kind, caught.value.rank) == ("hung", 1)
    assert "in hang_on_one" in str(caught.value)
    assert not pool_pids()
    pid = int(note.read_text())
    deadline = time.monotonic() + 60
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)  # it is killed; its new parent has to reap it
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_who_ends_before_it_is_asked_where_it_is_does_not_hide_who_failed() -> None:
    process = RankProcess(fork_server())
    os.kill(process.pid, signal.SIGKILL)
    fork_server().wait(process.pid)
    assert process.stacks() == "(it has just ended)"
    process.kill()


def test_what_cannot_travel_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be sent"):
        run_ranks(2, whoami, object())
    with pytest.raises(ConfigError, match="top level"):
        ranks(2)(lambda me: None)


@pytest.fixture
def body(tmp_path: Path) -> dict[str, str]:
    """An environment with a module that has a body. ``Forked`` saves another fork server the import of torch there."""
    (tmp_path / "tests_ranks_body.py").write_text("def body(me): return me.rank\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}


PARENT = """
import time, tests_ranks_body as t
from uneven.testing import run_ranks, pool_pids
from uneven.testing.ranks import fork_server
from uneven_bench.forked.run import Forked
fork_server().open(Forked)
run_ranks(2, t.body)
print(*pool_pids(), flush=True)
time.sleep(600)
"""


def test_processes_end_with_a_parent_that_is_killed(body: dict[str, str]) -> None:
    with Script(["-c", PARENT], env=body) as parent:
        while not parent.printed().endswith("\n"):
            assert parent.poll() is None, parent.communicate()
            time.sleep(0.02)
        children = [psutil.Process(int(pid)) for pid in parent.printed().split()]
        assert len(children) == 2
        parent.kill()
        _, alive = psutil.wait_procs(children, timeout=20)
        assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


KILLER = """
import os, signal, subprocess, tests_ranks_body as t
from uneven.testing import kept_pids, pool_pids, run_ranks, stop_pool
from uneven_bench.forked.run import Forked
from uneven_bench.forked.scripts import Script
subprocess.Popen = Forked
run_ranks(2, t.body)
before = kept_pids()
(fork_server,) = before - pool_pids()
with Script(["-c", "import time; time.sleep(600)"]) as script:
    os.kill(fork_server, signal.SIGKILL)
    os.waitid(os.P_PID, fork_server, os.WEXITED | os.WNOWAIT)  # until all of its threads are gone
    assert run_ranks(2, t.body) == [0, 1]
    assert before.isdisjoint(kept_pids())
    assert script.wait(60) == -signal.SIGKILL  # no process would report its end: it counts as killed, and is
stop_pool()
stop_pool()
assert kept_pids() == frozenset()
print("all seen")
"""


def test_when_what_they_are_forked_from_is_killed_there_is_another_until_all_are_stopped(
    body: dict[str, str],
) -> None:
    done = run_script(["-c", KILLER], env=body)
    assert (done.returncode, done.stdout) == (0, "all seen\n"), done.stderr
