"""The launcher of workers that leave and join: who has ended well, and runs that cannot be joined."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from torch.distributed import DistNetworkError, HashStore  # type: ignore[attr-defined] # its stubs say: private

from uneven.errors import ConfigError, LaunchError
from uneven.runtime.jobs import Events
from uneven.runtime.launch import Launch, elastic_workers, preflight
from uneven.runtime.launch.hang_detection import stopped
from uneven.runtime.launch.remote_workers import Others
from uneven.runtime.launch.rendezvous import keep_store
from uneven.runtime.membership_board import CLOSED, OPEN, RELEASED, RUN, SESSION, WORKERS, Board
from uneven_bench.forked.scripts import run_script


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text("print('hello')\n")
    return str(tmp_path / "train.py")


@pytest.fixture
def board() -> Board:
    return Board(HashStore())


@pytest.fixture
def started(board: Board, tmp_path: Path) -> Iterator[elastic_workers.Members]:
    """Four workers that end at once, with exit code 0 but for worker 3."""
    line = [sys.executable, "-I", "-S", "-c", "import os; raise SystemExit(int(os.environ['CODE']))"]
    with ExitStack() as stack:
        events = stack.enter_context(Events())
        those = elastic_workers.Members(
            board, line, lambda worker, place: {"CODE": str(worker // 3)}, tmp_path, events, lambda death: None
        )
        stack.callback(those.kill)
        yield those


def test_who_ends_in_order_has_ended_well(board: Board, started: elastic_workers.Members) -> None:
    for worker, said in enumerate([OPEN, CLOSED, None, CLOSED]):
        if said is not None:
            board.write(f"{SESSION}/{worker}", said)
        started.add(worker)
    while started.running:
        started._events.wait(None)
    assert {one.rank: one.exit_code for one in started.lost} == {0: 0, 3: 1}, "0 was during its session"
    assert sorted(started.finished) == [1, 2]
    assert board.dead(range(4)) == {
        0: "it ended with exit code 0", 3: "it ended with exit code 1",
        1: "it has ended without training", 2: "it has ended without training",
    }  # fmt: skip


def test_who_has_trained_to_the_end_or_was_told_to_leave_is_not_missed(
    board: Board, started: elastic_workers.Members
) -> None:
    for worker, end in enumerate(["through", "left"]):
        board.write(f"{SESSION}/{worker}", CLOSED)
        board.write(f"{end}/{worker}", "")
        started.add(worker)
    while started.running:
        started._events.wait(None)
    assert (started.finished, started.lost, board.dead(range(2))) == ([0], [], {})


def test_a_script_without_a_session_comes_to_its_end(script: str, tmp_path: Path) -> None:
    words = ["-m", "uneven", "run", "--elastic", "1:2", "--nproc", "2", "--run-dir", str(tmp_path / "run"), script]
    done = run_script(words, cwd=tmp_path, timeout_s=100)
    assert done.returncode == 0, done.stderr
    assert "the script made no uneven.Session()" in done.stderr


@pytest.mark.parametrize("endpoint", ["foo", "foo:", ":29500", "foo:0", "foo:65536", "foo:²"])
def test_what_is_no_address_is_refused_before_anything_is_made(script: str, endpoint: str) -> None:
    with pytest.raises(ConfigError, match=rf"--join {endpoint} is not an address: write it as HOST:PORT"):
        Launch(target=(script,), join=endpoint)


def test_a_machine_that_does_not_exist(script: str) -> None:
    with pytest.raises(ConfigError, match=r"--join no-such\.invalid:29500: no machine no-such\.invalid"):
        preflight.check(Launch(target=(script,), join="no-such.invalid:29500"))


def test_a_run_that_nobody_keeps(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "JOINED_WITHIN_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    with pytest.raises(LaunchError, match=rf"no process has answered at 127\.0\.0\.1, port {port}, within 0\.3 s"):
        preflight.check(Launch(target=(script,), join=f"127.0.0.1:{port}"))


def test_somebody_who_is_no_launcher(
    script: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(elastic_workers, "JOINED_WITHIN_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(LaunchError, match=f"no run at {endpoint}") as told:
            elastic_workers.run_members(Launch(target=(script,), nproc="1", join=endpoint), None)
        said = capfd.readouterr().err  # before the other one hangs up on torch, which would write that down
    assert "\n" not in str(told.value)
    assert said == ""


class TestOthers:
    """Workers that other launchers have started, when the first one's own have ended."""

    SILENCE_S = 10.0

    def test_who_gives_signs_of_life_is_waited_for_and_who_is_silent_is_not(self, board: Board) -> None:
        others = Others(board, self.SILENCE_S)
        board.count(WORKERS, 4)
        board.write(f"{RELEASED}/0", "")
        board.remove_member(1, "it was killed")
        board.count("beats/2", 1)
        assert others.there(0.0) == (2, 3)
        board.count("beats/2", 1)
        assert others.there(9.0) == (2, 3)
        assert others.there(18.0) == (2, 3)
        assert others.there(20.0) == (2, 3)
        assert board.dead([2]) == {2: "it sent no heartbeat for 10 s; if its machine is only busy, raise --silence"}
        assert others.there(61.0) == (3,), "3 has had its number, and may still start"
        assert others.there(61.1) == (), "it has not"
        assert board.dead([3]) == {3: "it sent no heartbeat for 60 s; if its machine is only busy, raise --silence"}

    def test_without_a_limit_nobody_is_taken_for_gone(self, board: Board) -> None:
        others = Others(board, 0.0)
        board.count(WORKERS, 1)
        assert others.there(0.0) == (0,)
        assert others.there(1e6) == (0,)
        assert others.there(1e6) == (0,)

    def test_the_run_is_over_where_nobody_is_left_who_could_let_them_in(self, board: Board) -> None:
        others = Others(board, self.SILENCE_S)
        board.count(WORKERS, 3)
        board.remove_member(0, "it was killed")
        board.ask(1, {})
        assert others.there(0.0) == (1, 2)
        assert board.look("over") is None, "2 trains"
        board.remove_member(2, "it was killed")
        assert others.there(1.0) == (1,)
        assert board.look("over")
        board.remove_member(1, "it ended with exit code 1")
        assert others.there(2.0) == ()

    def test_after_the_end_only_those_that_still_ask_are_waited_for(self, board: Board) -> None:
        others = Others(board, self.SILENCE_S)
        board.count(WORKERS, 3)
        board.write("through/0", "")
        board.write(f"{SESSION}/0", OPEN)
        board.write("over", "")
        board.ask(2, {})
        assert others.there(0.0) == (0, 2), "0 has to see that all are through"
        board.write(f"{SESSION}/0", CLOSED)
        assert others.there(0.0) == (0, 2), "its launcher may not know yet that 0 needs the store no more"
        board.write(f"{RELEASED}/0", "")
        assert others.there(0.0) == (2,)
        board.remove_member(2, "it ended with exit code 1")
        assert others.there(1.0) == (), "1 may start still, and will see that there is nothing to join"

    def test_a_closed_session_whose_launcher_has_ended_too_needs_no_store(self, board: Board) -> None:
        others = Others(board, self.SILENCE_S)
        board.count(WORKERS, 1)
        board.count("beats/0", 1)
        board.write("through/0", "")
        board.write(f"{SESSION}/0", CLOSED)
        assert others.there(0.0) == (0,)
        others.there(11.0)
        assert (others.there(12.0), board.dead([0])) == ((), {})


@pytest.fixture
def hanging(board: Board, tmp_path: Path) -> Iterator[elastic_workers.Members]:
    """Workers that never end."""
    line = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
    with ExitStack() as stack:
        events = stack.enter_context(Events())
        those = elastic_workers.Members(board, line, lambda worker, place: {}, tmp_path, events, lambda death: None)
        stack.callback(those.kill)
        for worker in range(3):
            those.add(worker)
        yield those


def test_who_was_given_up_and_does_not_end_is_ended(board: Board, hanging: elastic_workers.Members) -> None:
    os.kill(pid := hanging.running[0].pid, signal.SIGSTOP)
    while not stopped(pid):
        signal.sigtimedwait([], 0.005)
    board.remove_member(0, "it sent no heartbeat for 10 s")
    board.miss([1], "the gradient exchange of iteration 6")
    hanging.end_overdue(100.0)
    assert sorted(hanging.running) == [0, 1, 2]
    hanging.end_overdue(110.5)
    while len(hanging.running) > 1:
        hanging._events.wait(None)
    killed = {one.rank: one for one in hanging.lost}
    assert {rank: one.exit_code for rank, one in killed.items()} == {0: -signal.SIGKILL, 1: -signal.SIGKILL}
    assert killed[0].killed_by.endswith("removed it, and it was stopped, by SIGSTOP or in a debugger")
    assert killed[1].killed_by.endswith("removed it, and it did not end by itself")


def test_without_a_store_only_a_script_whose_session_is_closed_goes_on(
    board: Board, hanging: elastic_workers.Members
) -> None:
    """It may evaluate and save for as long as it likes; the store waits only until its launcher knows."""
    board.write("through/1", "")
    board.write(f"{SESSION}/1", CLOSED)
    hanging.end_overdue(99.0)
    assert [board.any_of([RELEASED], one) for one in range(3)] == [False, True, False]
    hanging._given_up._board = Board(Ended())
    hanging.end_overdue(100.0)
    hanging.end_overdue(110.5)
    while len(hanging.running) > 1:
        hanging._events.wait(None)
    assert {one.rank: one.exit_code for one in hanging.lost} == {0: -signal.SIGKILL, 2: -signal.SIGKILL}


class Ended(HashStore):
    """A store whose launcher has ended."""

    def check(self, keys: list[str]) -> bool:
        raise DistNetworkError("Connection was likely closed")


def test_a_worker_that_ends_after_the_store_is_told_by_how_it_ended(started: elastic_workers.Members) -> None:
    started._board = Board(Ended())
    for worker in (0, 3):
        started.add(worker)
    while started.running:
        started._events.wait(None)
    assert started.cut
    assert started.finished == [0]
    assert [one.rank for one in started.lost] == [3]


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system waits as long as it likes")
def test_a_launcher_that_joins_finds_out_in_time_that_its_line_is_cut(script: str) -> None:
    """Else it would wait for an answer of the store for minutes."""
    kept, port = keep_store("127.0.0.1", 0)
    kept.set(RUN, json.dumps({"founders": 1, "elastic": "1:4:7.5"}))
    way, *_ = elastic_workers._join(Launch(target=(script,), join=f"127.0.0.1:{port}"))
    assert way.check([RUN])
    limits = set()
    for one in psutil.Process().net_connections("tcp"):
        if one.raddr and one.raddr.port == port:
            with socket.socket(fileno=os.dup(one.fd)) as line:
                limits.add(line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    assert limits == {7500}
