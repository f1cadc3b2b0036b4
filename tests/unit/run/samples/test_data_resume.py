"""Stopping in the middle of an epoch and going on, also with other workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Numbers, NumberStream, crew, flat
from hypothesis import given, settings
from hypothesis import strategies as st

from uneven.errors import CheckpointError
from uneven.policy.samples.order import epoch_order


@settings(max_examples=40)
@given(
    length=st.integers(13, 80), first=st.integers(1, 5), second=st.integers(1, 5), most=st.integers(1, 9),
    batch_size=st.integers(5, 20), stream=st.booleans(),
)  # fmt: skip
def test_resuming_goes_on_with_exactly_the_samples_not_yet_seen(
    length: int, first: int, second: int, most: int, batch_size: int, stream: bool
) -> None:
    dataset = NumberStream(length) if stream else Numbers(length)
    whole = crew(dataset)
    epochs = [flat(whole.epoch()) for _ in range(3)]
    before = crew(dataset, world_size=first)
    used = flat(before.epoch()) + flat(before.epoch(most=most))
    states = [loader.state_dict() for loader in before.loaders]
    assert all(state == states[0] for state in states)

    after = crew(dataset, world_size=second, batch_size=batch_size, state=states[0], split_seed=9)
    for _ in range(after.loaders[0].epoch, 3):  # of the second one perhaps nothing is left
        used += flat(after.epoch())
    assert used == epochs[0] + epochs[1] + epochs[2]


@pytest.mark.parametrize("dataset", [Numbers(60), NumberStream(60)])
@pytest.mark.parametrize("persistent", [False, True])
def test_what_was_only_read_ahead_is_not_lost(dataset: Any, persistent: bool) -> None:
    options = {"num_workers": 1, "prefetch_factor": 4, "persistent_workers": persistent}
    before = crew(dataset, world_size=1, **options)
    used = []
    for part, (batch,) in before.iterations():
        used += batch.tolist()
        state = before.loaders[0].state_dict()  # in the loop, with the batch in hand
        assert state["cursor"] == part.end
        if part.iteration == 1:
            break
    after = crew(dataset, world_size=2, state=state, **options)
    used += flat(after.epoch())
    assert used == flat(crew(dataset, world_size=1).epoch())
    assert after.parts[0][0].iteration == 2
    assert len(flat(after.epoch())) == 60


def test_a_state_between_epochs_starts_the_next_one() -> None:
    before = crew(Numbers(30))
    before.epoch()
    after = crew(Numbers(30), state=before.loaders[0].state_dict())
    assert (after.loaders[0].epoch, after.loaders[0].iteration) == (1, 3)
    assert flat(after.epoch()) == epoch_order(length=30, seed=5, epoch=1).tolist()


@pytest.mark.parametrize("dataset", [Numbers(30), NumberStream(30)])
def test_a_state_from_the_last_iteration_leaves_its_epoch_with_nothing(dataset: Any) -> None:
    """What the script does after its loop is still to come, and belongs to that epoch."""
    before = crew(dataset, world_size=1)
    for _ in before.iterations():
        state = before.loaders[0].state_dict()
    after = crew(dataset, world_size=1, state=state)
    assert after.loaders[0].epoch == 0
    assert flat(after.epoch()) == []
    assert after.loaders[0].epoch == 1
    assert len(flat(after.epoch())) == 30
    assert after.parts[0][0].epoch == 1


@pytest.mark.parametrize(("again", "counted"), [(4, []), (6, [12]), (13, [12])])
def test_drop_last_drops_lost_samples_that_make_no_whole_batch(again: int, counted: list[int]) -> None:
    passes: list[int] = []

    def settle() -> None:
        passes.append(1)
        assert len(passes) < 9, "the epoch does not end"

    made = {"world_size": 1, "drop_last": True, "settle": settle}
    state = crew(Numbers(30), **made).loaders[0].state_dict() | {"cursor": 24, "iteration": 2, "again": [[0, again]]}
    after = crew(Numbers(30), state=state, **made)
    assert [len(batch) for batch in after.epoch()] == counted
    state = after.loaders[0].state_dict()
    assert (state["epoch"], state["cursor"], state["again"]) == (1, 0, [])
    passes.clear()
    assert flat(after.epoch()) == epoch_order(length=30, seed=5, epoch=1).tolist()[:24]


def test_a_state_survives_json_and_torch_save(tmp_path: Path) -> None:
    ranks = crew(Numbers(30))
    ranks.epoch(most=2)
    state = ranks.loaders[0].state_dict()
    torch.save(state, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == state
    assert json.loads(json.dumps(state)) == state
    assert state == {
        "schema": 1, "seed": 5, "shuffle": True, "length": 30, "batch_size": 12, "epoch": 0, "cursor": 24,
        "iteration": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema 2, this is 1"),
        ({"length": 31}, "data set length of the checkpoint is 31, of this run 30"),
        ({"length": None}, r"unknown \(a stream\), of this run 30"),
        ({"seed": 6}, "seed of the checkpoint is 6, of this run 5"),
        ({"shuffle": False}, "shuffle of the checkpoint is False, of this run True"),
        ({"cursor": 31}, "cursor 31 is beyond the 30 samples"),
        ({"cursor": -1}, "cursor = -1"),
        ({"epoch": "1"}, "epoch = '1'"),
        ({"iteration": None}, "iteration = None"),
        ({"reached": -1}, "reached = -1"),
    ],
)
def test_a_state_of_another_run_is_refused(change: dict[str, Any], said: str) -> None:
    loader = crew(Numbers(30), world_size=1).loaders[0]
    with pytest.raises(CheckpointError, match=said):
        loader.load_state_dict({**loader.state_dict(), **change})
    assert len(list(loader)) == 3  # and has changed nothing


def test_a_state_with_a_key_missing_is_refused() -> None:
    loader = crew(Numbers(30), world_size=1).loaders[0]
    state = loader.state_dict()
    del state["length"]
    with pytest.raises(CheckpointError, match="no 'length'"):
        loader.load_state_dict(state)
    with pytest.raises(CheckpointError, match="schema None"):
        loader.load_state_dict({})


def test_loading_inside_the_loop_is_refused() -> None:
    loader = crew(Numbers(30), world_size=1).loaders[0]
    state = loader.state_dict()
    for _ in loader:
        with pytest.raises(CheckpointError, match="inside a loop"):
            loader.load_state_dict(state)
    loader.load_state_dict(state)
