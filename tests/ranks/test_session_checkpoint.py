"""A run that was stopped goes on with just the samples not yet seen, whoever is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.errors import CheckpointError
from uneven.testing.ranks import RankContext, ranks, run_ranks
from uneven_bench.inside import inside

N, X = 64, 12  # 5 full iterations and a last part of 4


def samples(length: int = N) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(
        torch.randn(length, 5, generator=generator),
        torch.randint(0, 3, (length,), generator=generator),
        torch.arange(length),
    )


class Training:
    """A session with all that belongs to a loop, and the indices of the samples this rank has used."""

    def __init__(self, balance: Any = "static:shares=1/2", length: int = N, **settings: Any) -> None:
        torch.manual_seed(1)
        self.session = uneven.Session(balance=balance, **settings)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
        self.model, self.optimizer = self.session.setup(model, torch.optim.Adam(model.parameters(), lr=0.01))
        self.loader = self.session.loader(samples(length), X)
        self.used: list[int] = []

    def train(self, iterations: int) -> None:
        """So many iterations, over the ends of epochs."""
        while iterations > 0:
            for x, y, index in self.loader:
                self.step(x, y)
                part = inside(self.session).part
                if part is not None and part.batch(self.session.rank):
                    self.used += index.tolist()
                iterations -= 1
                if iterations == 0:
                    break

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        F.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def saved(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "session": self.session.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.session.load_state_dict(state["session"])


def everybodys(used: list[int]) -> list[int]:
    """Samples used by all ranks together, sorted."""
    if not dist.is_initialized():
        return sorted(used)
    table: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(table, used)
    return sorted(index for row in table for index in row)


def stop_in_the_middle(me: RankContext, path: str, iterations: int) -> list[int]:
    run = Training("lb-bsp" if me.size > 1 else None)
    run.train(iterations)
    used = everybodys(run.used)
    if me.rank == 0:
        torch.save(run.saved(), path)
    run.session.close()
    return used


def go_on(me: RankContext, path: str, before: bool, iterations: int) -> list[int]:
    """The samples that a resumed run uses until the end of the epoch, or in so many iterations."""
    state = torch.load(path, weights_only=True)
    torch.manual_seed(1)
    session = uneven.Session()
    model = session.setup(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)))
    if before:
        session.load_state_dict(state["session"])
    loader = session.loader(samples(), X)
    if not before:
        session.load_state_dict(state["session"])
    used = []
    for count, (x, y, index) in enumerate(loader, 1):
        F.cross_entropy(model(x), y).backward()
        model.zero_grad()
        part = inside(session).part
        used += index.tolist() if part.batch(me.rank) else []
        if count == iterations:
            break
    used = everybodys(used)
    if me.rank == 0:
        torch.save({"session": session.state_dict()}, path)
    session.close()
    return used


@pytest.mark.parametrize("before", [True, False])
def test_two_then_three_workers_then_one_use_every_sample_once(tmp_path: Path, before: bool) -> None:
    path = str(tmp_path / "state.pt")
    first = run_ranks(2, stop_in_the_middle, path, 2)[0]
    second = run_ranks(3, go_on, path, before, 2)[0]
    third = run_ranks(1, go_on, path, before, 100)[0]
    assert (len(first), len(second), len(third)) == (2 * X, 2 * X, N - 4 * X)
    assert sorted(first + second + third) == list(range(N))


@ranks(2)
def test_resumed_training_is_the_uninterrupted_one_bit_for_bit(me: RankContext, tmp_path: Path) -> None:
    whole = Training()
    whole.train(9)  # into the second epoch
    half = Training()
    half.train(4)
    torch.save(half.saved(), f"{tmp_path}/{me.rank}")
    half.session.close()
    resumed = Training()
    resumed.load(torch.load(f"{tmp_path}/{me.rank}", weights_only=True))
    resumed.train(5)
    assert half.used + resumed.used == whole.used
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    whole.session.close()
    resumed.session.close()


@ranks(2)
def test_resumed_training_is_the_same_to_rounding_where_the_split_moves(me: RankContext, tmp_path: Path) -> None:
    whole = Training("even")
    whole.train(11)
    half = Training("proportional:predictor=last")
    half.train(4)
    torch.save(half.saved(), f"{tmp_path}/{me.rank}")
    resumed = Training("proportional:predictor=last")
    resumed.load(torch.load(f"{tmp_path}/{me.rank}", weights_only=True))
    resumed.train(7)
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for run in (whole, half, resumed):
        run.session.close()


@pytest.mark.parametrize("before", [True, False])
@ranks(2)
def test_distributed_checkpoint_of_a_stateful_session(me: RankContext, tmp_path: Path, before: bool) -> None:
    run = Training()
    run.train(3)
    dcp.save({"model": run.model.state_dict(), "session": run.session}, checkpoint_id=f"{tmp_path}/dcp")
    expected = run.session.state_dict()
    run.session.close()
    session = uneven.Session(balance="static:shares=1/2")
    session.setup(nn.Linear(5, 3))
    if before:
        dcp.load({"session": session}, checkpoint_id=f"{tmp_path}/dcp")
    loader = session.loader(samples(), X)
    if not before:
        dcp.load({"session": session}, checkpoint_id=f"{tmp_path}/dcp")
    assert json.loads(session.state_dict()["loader"]) == json.loads(expected["loader"])
    assert len(list(loader)) == 3
    session.close()


@ranks(2)
def test_distributed_checkpoint_of_a_plain_dictionary(me: RankContext, tmp_path: Path) -> None:
    run = Training()
    run.train(3)
    where = {"checkpoint_id": f"{tmp_path}/dcp"}
    dcp.save({"model": run.model.state_dict(), "session": run.session.state_dict()}, **where)
    other = Training()
    state = {"model": other.model.state_dict(), "session": other.session.state_dict()}
    dcp.load(state, **where)
    other.session.load_state_dict(state["session"])
    assert other.session.state_dict() == run.session.state_dict()
    other.train(3)
    assert everybodys(run.used + other.used) == list(range(N))
    run.session.close()
    other.session.close()


@ranks(2)
def test_the_state_is_plain_data_and_the_same_on_every_rank_but_for_its_own_predictor(me: RankContext) -> None:
    run = Training("lb-bsp")
    run.train(4)
    state = run.session.state_dict()
    assert json.loads(json.dumps(state)) == state
    table: list[Any] = [None, None]
    dist.all_gather_object(table, state)
    both = [json.loads(other.pop("control")) for other in table]
    own = [(other.pop("rank"), other.pop("forecaster")) for other in both]
    assert own[0] != own[1]
    assert table[0] == table[1]
    assert both[0] == both[1]
    run.session.close()


@ranks(2)
def test_going_back_inside_a_run_repeats_the_same_samples(me: RankContext) -> None:
    run = Training("lb-bsp")
    run.train(2)
    state = run.session.state_dict()
    run.used.clear()
    run.train(2)  # leaves the epoch early, so these are the first two of the next one
    run.session.load_state_dict(state)
    again = Training("lb-bsp")
    again.session.load_state_dict(state)
    run.used.clear()
    run.train(3)
    again.train(3)
    assert everybodys(run.used) == everybodys(again.used)
    run.session.close()
    again.session.close()


WRONG = {
    "length": ({}, 65, r"data set length of the checkpoint is 64, of this run 65"),
    "seed": ({"seed": 5}, N, r"seed of the checkpoint is 0, of this run 5"),
}


@pytest.mark.parametrize("what", WRONG)
@ranks(2)
def test_a_checkpoint_of_another_run_is_refused(me: RankContext, what: str) -> None:
    settings, length, message = WRONG[what]
    run = Training()
    run.train(1)
    state = run.session.state_dict()
    run.session.close()
    other = Training(length=length, **settings)
    with pytest.raises(CheckpointError, match=message):
        other.session.load_state_dict(state)
    other.session.close()
    early = uneven.Session(balance="static:shares=1/2", **settings)
    early.load_state_dict(state)
    with pytest.raises(CheckpointError, match=message):
        early.loader(samples(length), X)
    early.close()


def test_a_checkpoint_of_another_schema_or_none_at_all_is_refused() -> None:
    with uneven.Session() as session:
        state = session.state_dict()
        with pytest.raises(CheckpointError, match=r"schema 9, this version reads 2"):
            session.load_state_dict({**state, "schema": 9})
        with pytest.raises(CheckpointError, match=r"found \['model'\].*session\.state_dict"):
            session.load_state_dict({"model": 1})
        with pytest.raises(CheckpointError, match="damaged"):
            session.load_state_dict({**state, "loader": "{"})
        session.loader(samples(), X)
        inner = json.loads(session.state_dict()["loader"])
        with pytest.raises(CheckpointError, match=r"schema 7, this is 1"):
            session.load_state_dict({**state, "loader": json.dumps({**inner, "schema": 7})})


def test_a_state_before_there_is_a_loader_is_empty_and_can_be_loaded() -> None:
    with uneven.Session() as session:
        session.load_state_dict(session.state_dict())
        assert len(list(session.loader(samples(), X))) == 6
