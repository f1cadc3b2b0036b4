"""Sessions come and go: alone, closed twice, dropped, ended by an error or by the end of the program."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven import journal
from uneven.cluster.emulate.ports import quiet_ports
from uneven.errors import DataError
from uneven.policy.balance import Static
from uneven.policy.core.records import EventRecord, StepRecord
from uneven.testing.ranks import RankContext, ranks
from uneven_bench.forked.scripts import Script, run_script

X = 24


def samples() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    return TensorDataset(torch.randn(60, 6, generator=generator), torch.arange(60) % 3)


def train(session: uneven.Session, model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = session.setup(model, optimizer)
    for count, (x, y) in enumerate(session.loader(samples(), X, shuffle=False)):
        half = F.cross_entropy(model(x), y) / 2
        with session.no_sync():
            half.backward()
        (F.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        session.log(count=count)


def events(run: Path, rank: int = 0) -> list[tuple[str, str]]:
    found = [r for r in journal.read(run).ranks[rank] if isinstance(r, EventRecord)]
    return [(r.event, r.message) for r in found if r.event != "plan"]


def test_alone_it_is_plain_pytorch(tmp_path: Path) -> None:
    torch.manual_seed(1)
    plain = nn.Linear(6, 3)
    torch.manual_seed(1)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    x, y = samples().tensors
    for part in torch.arange(60).split(X):
        F.cross_entropy(plain(x[part]), y[part]).backward()
        optimizer.step()
        optimizer.zero_grad()
    with uneven.Session(run_dir=tmp_path) as session:
        assert (session.rank, session.world_size, session.next_shares) == (0, 1, ())
        train(session, model)
        assert session.shares == (X,)
        assert not dist.is_initialized()
    torch.testing.assert_close(model.weight, plain.weight)
    assert list(model.state_dict()) == list(plain.state_dict())
    steps = [record for record in journal.read(tmp_path).ranks[0] if isinstance(record, StepRecord)]
    assert [step.batch for step in steps] == [24, 24, 12]
    assert events(tmp_path) == [("end", "the run has ended")]


def test_alone_shares_for_several_workers_are_told_once_and_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "uneven.toml").write_text('[run]\nbalance = "static:shares=4/3/2/1"\n')
    given: list[dict[str, Any]] = [{}, {"balance": "static:shares=2/1"}, {"balance": Static(shares=(2, 1))}]
    for number, more in enumerate(given):
        run = tmp_path / str(number)
        told = "balance = 'even'"
        with pytest.warns(RuntimeWarning, match=told), uneven.Session(run_dir=run, **more) as session:
            train(session, nn.Linear(6, 3))
        assert [step.batch for step in journal.read(run).ranks[0] if isinstance(step, StepRecord)] == [24, 24, 12]
        assert [event for event, message in events(run) if message.startswith(told)] == ["conflict"]
        (tmp_path / "uneven.toml").unlink(missing_ok=True)  # the rest says it in the code


def test_closing_twice_and_going_on_afterwards(tmp_path: Path) -> None:
    session = uneven.Session(run_dir=tmp_path)
    loader = session.loader(samples(), X)
    session.close()
    session.close()
    assert len(events(tmp_path)) == 1
    with pytest.raises(DataError, match="closed"):
        next(iter(loader))


def test_an_exception_in_the_block_is_in_the_journal(tmp_path: Path) -> None:
    with pytest.raises(KeyError), uneven.Session(run_dir=tmp_path):
        raise KeyError("label")
    assert events(tmp_path) == [("failed", "KeyError: 'label'")]


def closed_by_hand(session: uneven.Session) -> None:
    try:
        raise ValueError("bad")
    finally:
        session.close()


def test_an_exception_seen_by_a_close_in_finally_is_in_the_journal(tmp_path: Path) -> None:
    session = uneven.Session(run_dir=tmp_path)
    with pytest.raises(ValueError, match="bad"):
        closed_by_hand(session)
    assert events(tmp_path) == [("failed", "ValueError: bad")]


def test_an_older_exception_is_not_this_sessions(tmp_path: Path) -> None:
    """As in a notebook, or where a run is tried again in an except clause."""
    try:
        raise ValueError("the first try")
    except ValueError:
        with uneven.Session(run_dir=tmp_path):
            pass
    assert events(tmp_path) == [("end", "the run has ended")]


@pytest.mark.parametrize(("code", "event"), [(0, "end"), (None, "end"), (2, "failed")])
def test_leaving_by_sys_exit(tmp_path: Path, code: int | None, event: str) -> None:
    with pytest.raises(SystemExit), uneven.Session(run_dir=tmp_path):
        sys.exit(code)
    assert events(tmp_path)[0][0] == event


SCRIPT = """
import uneven
session = uneven.Session(run_dir="run")
for x in session.loader([1, 2, 3, 4], 2):
    pass
{then}
"""


@pytest.mark.parametrize(
    ("then", "last"), [("", ("end", "the run has ended")), ("1 / 0", ("failed", "ZeroDivisionError: division by zero"))]
)
def test_a_script_that_never_closes(tmp_path: Path, then: str, last: tuple[str, str]) -> None:
    done = run_script(["-c", SCRIPT.format(then=then)], cwd=tmp_path)
    assert done.returncode == bool(then)
    assert events(tmp_path / "run")[-1] == last


def test_a_session_lives_as_long_as_its_loader() -> None:
    session = uneven.Session()
    loader = session.loader(samples(), X)
    watch = weakref.ref(session)
    del session
    gc.collect()
    assert watch() is not None
    assert len(list(loader)) == 3
    del loader
    gc.collect()
    assert watch() is None


@ranks(2, join=False)
def test_a_session_lives_as_long_as_its_model(me: RankContext, tmp_path: str) -> None:
    """Dropped with its model it leaves the group; kept by the model alone it goes on exchanging."""
    model = uneven.Session(run_dir=tmp_path).setup(nn.Linear(6, 3))
    gc.collect()
    assert dist.is_initialized()
    F.mse_loss(model(torch.full((2, 6), float(me.rank))), torch.zeros(2, 3)).backward()
    both = [torch.empty_like(model.weight) for _ in range(2)]
    dist.all_gather(both, model.weight.grad)
    assert torch.equal(both[0], both[1])
    del model
    gc.collect()
    assert not dist.is_initialized()
    assert events(Path(tmp_path), me.rank) == [("end", "the run has ended")]


@ranks(2, join=False)
def test_one_session_after_another(me: RankContext) -> None:
    """Each joins anew at the store that the launcher keeps, where the traces of the last one lie."""
    for _ in range(3):
        torch.manual_seed(me.rank)
        with uneven.Session() as session:
            model = nn.Linear(6, 3)
            train(session, model)
            table = [torch.empty_like(model.weight) for _ in range(2)]
            dist.all_gather(table, model.weight.detach())
            assert torch.equal(table[0], table[1])
        assert not dist.is_initialized()


@ranks(2)
def test_a_group_that_the_user_made_is_left_alone(me: RankContext) -> None:
    group = dist.group.WORLD
    with uneven.Session() as session:
        train(session, nn.Linear(6, 3))
    assert dist.group.WORLD is group
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2


STARTED_BY_HAND = """
import sys
import torch.distributed as dist
from torch import nn
import uneven
from test_session_life import train
rank, port = map(int, sys.argv[1:])
store = dist.TCPStore("127.0.0.1", port, 2, rank == 0)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
with uneven.Session() as session:
    print(session.rank, session.world_size)
    train(session, nn.Linear(6, 3))
dist.barrier()
dist.destroy_process_group()
"""


def test_processes_that_the_user_started_are_no_loners() -> None:
    """A group without any launcher's variables: every process would else train a model of its own."""
    (port,) = quiet_ports(1)
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path(__file__).parent)}
    assert "RANK" not in env
    with ExitStack() as stack:
        programs = [["-c", STARTED_BY_HAND, rank, port] for rank in range(2)]
        processes = [stack.enter_context(Script(program, env=env)) for program in programs]
        told = [process.communicate(90) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    assert [out for out, _ in told] == ["0 2\n", "1 2\n"]
