"""What a session does for a script next to its steps: a barrier, one worker that prints and saves, a ready loader."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from session_parts import N, Stream, net, sgd, tensors
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import uneven
from uneven.errors import CheckpointError, DataError, UnknownNameError
from uneven.journal import planned_iterations, read
from uneven.policy.core.records import EventRecord
from uneven.testing.ranks import RankContext, ranks

DATA = TensorDataset(*tensors(), torch.arange(N))


@ranks(2)
def test_one_worker_acts_for_all(me: RankContext, tmp_path: Path) -> None:
    folder = Path(tmp_path)
    with uneven.Session() as session:
        assert session.is_main == (me.rank == 0)
        if session.is_main:
            (folder / "data").write_text("there")
        session.barrier()  # before there is a model
        assert (folder / "data").exists()
        with redirect_stdout(StringIO()) as said:
            session.print("one", 2, sep="-", end="!")
        assert said.getvalue() == ("one-2!" if me.rank == 0 else "")
        model = session.setup(net())
        session.save({"model": model.state_dict(), "rank": session.rank}, folder / "kept" / "state.pt")
        session.barrier()
        assert [one.name for one in (folder / "kept").iterdir()] == ["state.pt"]
        assert torch.load(folder / "kept" / "state.pt")["rank"] == 0
        if session.is_main:
            with pytest.raises(CheckpointError, match="cannot write"):
                session.save({}, folder / "data" / "state.pt")


@ranks(2)
def test_a_ready_loader_is_taken_over(me: RankContext) -> None:
    with uneven.Session(balance="static:shares=3/1") as session:
        loader = session.loader(DataLoader(DATA, 4, sampler=DistributedSampler(DATA, 2, me.rank), drop_last=True))
        assert (loader.batch_size, session.shares) == (8, (6, 2))
        session.setup(model := net(), sgd(model))
        seen = [index for _, _, indices in loader for index in indices.tolist()]
        assert len(seen) == (N // 8) * session.shares[me.rank]
        assert seen != sorted(seen)


def alone(loader: DataLoader[Any], **given: Any) -> list[list[int]]:
    """The samples of an epoch, batch by batch."""
    with uneven.Session() as session:
        batches = session.loader(loader, **given)
        return [[int(one) for one in batch] for batch in batches]


def test_order_collation_and_readers_are_the_loaders() -> None:
    numbers = list(range(10))
    assert alone(DataLoader(numbers, 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert alone(DataLoader(numbers, 4, drop_last=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert alone(DataLoader(numbers, 4, drop_last=True), drop_last=False)[-1] == [8, 9]
    assert alone(DataLoader(numbers, 4), global_batch_size=5) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert alone(DataLoader(numbers, 4, num_workers=1, collate_fn=sorted), shuffle=False)[0] == [0, 1, 2, 3]
    assert alone(DataLoader(numbers, 5, collate_fn=lambda batch: [-one for one in batch]))[0] == [0, -1, -2, -3, -4]
    shuffled = alone(DataLoader(numbers, 10, shuffle=True))[0]
    assert (sorted(shuffled), shuffled != numbers) == (numbers, True)
    assert alone(DataLoader(numbers, 10, shuffle=True), shuffle=False) == [numbers]
    assert alone(DataLoader(numbers, 4, sampler=[3, 1, 2])) == [[3, 1, 2]]
    assert alone(DataLoader(numbers, 3, sampler=WeightedRandomSampler([0.0] * 9 + [1.0], 3))) == [[9, 9, 9]]
    assert alone(DataLoader(numbers, 4, sampler=[3, 1, 2]), sampler=[5]) == [[5]]
    assert alone(DataLoader(numbers[:5], batch_sampler=BatchSampler(SequentialSampler(numbers[:5]), 2, True))) == [
        [0, 1],
        [2, 3],
    ]


class Own(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


REFUSED: dict[str, tuple[Callable[[], DataLoader[Any]], str]] = {
    "its own batches": (lambda: DataLoader(DATA, batch_sampler=[[1, 2], [3]]), "batch_sampler=list"),
    "whole batches": (lambda: DataLoader(DATA, batch_size=None), "batch_size=None"),
    "out of order": (lambda: DataLoader(DATA, 4, num_workers=1, in_order=False), "in_order=False"),
    "another iteration": (lambda: Own(DATA, 4), "a Own with an __iter__"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_taken_over_is_named(case: str) -> None:
    make, said = REFUSED[case]
    with uneven.Session() as session, pytest.raises(DataError, match=f"cannot take over .*{said}"):
        session.loader(make())


def test_a_keyword_is_suggested_from_both() -> None:
    with uneven.Session() as session:
        for wrong, right in (("costs", "cost"), ("num_worker", "num_workers"), ("min_batches", "min_batch")):
            with pytest.raises(UnknownNameError, match=f"unknown keyword of session.loader.*did you mean '{right}'"):
                session.loader(DATA, 4, **{wrong: 1})
        with pytest.raises(UnknownNameError, match=r"session\.evaluate.*did you mean 'collate_fn'"):
            session.evaluate(len, DATA, 4, collate=1)  # type: ignore[call-overload]
        with pytest.raises(DataError, match="in_order cannot be given"):
            session.loader(DATA, 4, in_order=False)  # type: ignore[call-arg]


@pytest.mark.parametrize(("data", "planned"), [(DATA, 3 * -(-N // 8)), (Stream(), None)], ids=["known", "unknown"])
def test_the_planned_epochs_are_told_if_their_length_is_known(data: Any, planned: int | None, tmp_path: Path) -> None:
    with uneven.Session(run_dir=tmp_path) as session:
        assert sum(1 for _ in session.loader(data, 8, epochs=3)) == -(-N // 8)
    events = [one for one in read(tmp_path).records() if isinstance(one, EventRecord)]
    assert [found for one in events if (found := planned_iterations(one))] == [planned] * (planned is not None)


def test_a_plain_random_sampler_draws_each_sample_once() -> None:
    assert len(alone(DataLoader(range(6), 2, sampler=RandomSampler(range(6), num_samples=4)))) == 2
