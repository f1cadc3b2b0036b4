"""Nothing hangs: when a worker is gone, stopped or busy elsewhere, the others end and say who it is."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven import journal
from uneven.cluster.emulate.ports import quiet_ports
from uneven.errors import PeerError
from uneven.policy.core.records import EventRecord
from uneven.runtime.jobs.processes import import_path
from uneven.testing.ranks import RankContext, ranks
from uneven_bench.forked.scripts import Script, run_script

TIMEOUT_S = 5.0
AT = 6  # the iteration in which it happens


def until(path: Path) -> None:
    """Wait for a file of another rank."""
    while not path.exists():
        time.sleep(0.02)


def together(me: RankContext, folder: str) -> None:
    """Wait for the other ranks, so that the short time-out does not run while one of them still imports."""
    Path(folder, f"here{me.rank}").touch()
    for rank in range(me.size):
        until(Path(folder, f"here{rank}"))


def batches(session: uneven.Session) -> Iterator[int]:
    """A training loop that hands out the number of each iteration before it computes."""
    model = nn.Linear(6, 3)
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = TensorDataset(torch.randn(960, 6), torch.zeros(960, dtype=torch.long))
    for count, (x, y) in enumerate(session.loader(data, 24)):
        yield count
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def train(session: uneven.Session) -> None:
    for _ in batches(session):
        pass


@ranks(3, join=False)
def test_a_worker_that_hangs_elsewhere_is_named(me: RankContext, tmp_path: str) -> None:
    together(me, tmp_path)
    done = [Path(tmp_path, f"done{rank}") for rank in range(me.size)]
    with uneven.Session(timeout_s=TIMEOUT_S) as session:
        if me.rank == 1:
            for count in batches(session):
                if count == AT:
                    until(done[0])
                    until(done[2])
                    break
        else:
            late = rf"iteration {AT}: rank 1 did not take part within {TIMEOUT_S:g} s, but is alive"
            with pytest.raises(PeerError, match=late):
                train(session)
    done[me.rank].touch()


@ranks(3, join=False)
def test_a_worker_that_was_stopped_is_named(me: RankContext, tmp_path: str) -> None:
    together(me, tmp_path)
    pid, done = Path(tmp_path, "pid"), [Path(tmp_path, f"done{rank}") for rank in range(me.size)]
    with uneven.Session(timeout_s=TIMEOUT_S) as session:
        if me.rank == 1:
            for count in batches(session):
                if count == AT:
                    pid.write_text(str(os.getpid()))
                    os.kill(os.getpid(), signal.SIGSTOP)
                    break
        else:
            with pytest.raises(PeerError, match=rf"iteration {AT}: rank 1 did not take part and sent no heartbeat"):
                train(session)
            done[me.rank].touch()
        if me.rank == 0:
            until(done[2])
            os.kill(int(pid.read_text()), signal.SIGCONT)


@ranks(3, join=False)
def test_a_worker_that_never_starts_is_named(me: RankContext, tmp_path: str) -> None:
    together(me, tmp_path)
    done = [Path(tmp_path, f"done{rank}") for rank in range(me.size)]
    if me.rank == 1:
        until(done[0])
        until(done[2])
    else:
        with pytest.raises(PeerError, match=f"rank 1 of 3 did not join within {TIMEOUT_S:g} s: does every rank run"):
            uneven.Session(timeout_s=TIMEOUT_S)
        done[me.rank].touch()


@ranks(2, join=False)
def test_a_worker_that_comes_in_another_order_is_named(me: RankContext, tmp_path: str) -> None:
    """One rank forgets the loader: the other waits for it in vain, already before training."""
    together(me, tmp_path)
    told = Path(tmp_path, "told")
    with uneven.Session(timeout_s=TIMEOUT_S) as session:
        if me.rank == 1:
            until(told)
        else:
            with pytest.raises(
                PeerError, match=r"comparing the ranks.*rank 1 did not take part|gathering.*rank 1 did not"
            ):
                session.loader(TensorDataset(torch.randn(96, 6)), 24)
            told.touch()


@ranks(2, join=False)
def test_leaving_the_loop_by_an_error_waits_for_nobody(me: RankContext) -> None:
    """The time-out of minutes would show it; both ranks fail in the same iteration, as with a bad batch."""
    with pytest.raises(ValueError, match="a bad label"), uneven.Session(timeout_s=600) as session:
        fail(session)


def fail(session: uneven.Session) -> None:
    for count in batches(session):
        if count == AT:
            raise ValueError("a bad label")


WORKER = """
import os, signal, sys, time
import test_session_deaths as deaths
import torch, uneven
torch.set_num_threads(1)
run, rank, dying = os.environ["RUN"], int(os.environ["RANK"]), int(os.environ["DYING"])
session = uneven.Session(timeout_s=float(os.environ["LIMIT"]), run_dir=run)
open(os.path.join(run, f"{{rank}}.ready"), "w").close()
for count in deaths.batches(session):
    if rank == dying and count == deaths.AT:
        {act}
    {always}
"""


@contextmanager
def workers(n: int, run: Path, act: str, *, dying: int, limit_s: float, always: str = "pass") -> Iterator[list[Script]]:
    """Ranks started by hand, as on machines without a launcher: nobody ends the survivors."""
    (port,) = quiet_ports(1)
    world = {
        "WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1",
        "RUN": str(run), "DYING": str(dying), "LIMIT": str(limit_s),
    }  # fmt: skip
    script = WORKER.format(act=act, always=always)
    with ExitStack() as stack:
        envs = [{**os.environ, **world, "RANK": str(rank)} for rank in range(n)]
        yield [stack.enter_context(Script(["-c", script], env=env)) for env in envs]


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else ""


def events(run: Path, rank: int) -> list[tuple[str, str]]:
    """Of a rank; who is killed early may have written nothing yet."""
    return [(r.event, r.message) for r in journal.read(run).ranks.get(rank, ()) if isinstance(r, EventRecord)]


def test_a_worker_that_dies_is_named_by_all_others(tmp_path: Path) -> None:
    """Of four workers in a ring only its neighbors notice at once; also the others blame just the dead one."""
    with workers(4, tmp_path, "os.kill(os.getpid(), signal.SIGKILL)", dying=2, limit_s=40) as processes:
        errors = [process.communicate(100)[1] for process in processes]
    for rank in (0, 1, 3):
        assert processes[rank].returncode == 1
        line = next(line for line in errors[rank].splitlines() if "uneven.errors.PeerError" in line)
        assert re.search(rf"iteration {AT}: rank 2 did not take part and sent no heartbeat", line), line
        (event,) = events(tmp_path, rank)
        assert event[0] == "failed"
        assert "PeerError" in event[1]
    assert events(tmp_path, 2) == []


def test_the_keeper_of_the_store_was_stopped(tmp_path: Path) -> None:
    """Rank 0 keeps the store that the roll is called through: asking it would wait for ever."""
    with workers(2, tmp_path, "os.kill(os.getpid(), signal.SIGSTOP)", dying=0, limit_s=TIMEOUT_S) as processes:
        error = processes[1].communicate(100)[1]
    assert processes[1].returncode == 1
    assert "the store of the run does not answer" in error
    assert "rank 0" in error


def test_ctrl_c_ends_workers_in_an_exchange(tmp_path: Path) -> None:
    with workers(2, tmp_path, "pass", dying=0, limit_s=600, always="time.sleep(0.05)") as processes:
        for rank in range(2):
            until(tmp_path / f"{rank}.ready")
        for process in processes:
            process.send_signal(signal.SIGINT)
        errors = [process.communicate(100)[1] for process in processes]
    assert any("KeyboardInterrupt" in error for error in errors), errors
    assert all(process.returncode != 0 for process in processes)
    assert all(events(tmp_path, rank)[-1][0] == "failed" for rank in range(2))


def test_the_launcher_names_the_cause(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, uneven\n"
        f"sys.path.append({str(Path(__file__).parent)!r})\n"
        "import test_session_deaths as deaths\n"
        "session = uneven.Session(timeout_s=60)\n"
        "for count in deaths.batches(session):\n"
        "    if count == deaths.AT and session.rank == 1:\n"
        "        raise ValueError('a bad label')\n"
    )
    command = ["-m", "uneven_bench.forked.run", "run", "--nproc", "2", "--run-dir", "run", "train.py"]
    done = run_script(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": import_path()}, timeout_s=100)
    assert done.returncode == 1
    cause = done.stderr.rpartition("error: ")[2]
    assert cause.startswith("rank 1 (process "), done.stderr
    assert "ValueError: a bad label" in cause
    assert events(tmp_path / "run", 1)[-1] == ("failed", "ValueError: a bad label")
