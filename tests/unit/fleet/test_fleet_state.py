"""What a run keeps, what the terminal shows, and what a checkpoint may hold."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import uneven.fleet as fleet
from damaged import damaged
from uneven.errors import CheckpointError
from uneven.fleet.engine import fleet_state as engine_state
from uneven.fleet.engine.entry import page
from uneven.fleet.engine.fleet_options import RunSnapshot
from uneven.fleet.engine.fleet_state import MemberState, RunState
from uneven.fleet.member import member_checkpoint
from uneven.fleet.pure.converge import Epoch
from uneven.fleet.pure.ledger import Ledger

ASKED = {"members": ["a/b c", "two"], "samples": 5}


def linear(scheduler: Any = None) -> fleet.Member:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    return fleet.Member(model, optimizer, scheduler=scheduler and scheduler(optimizer))


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state = engine_state.load(tmp_path, ASKED)
    state.members["two"].epochs.append(Epoch(train_loss=1 / 3, metric=float("nan"), samples=5))
    state.plan.append((0, {"two": 1}))
    engine_state.save(tmp_path, state)
    again = engine_state.load(tmp_path, ASKED)
    assert repr(again) == repr(state)
    with pytest.raises(CheckpointError, match="samples = 5, but 6 was given"):
        engine_state.load(tmp_path, {**ASKED, "samples": 6})
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot read"):
        engine_state.load(tmp_path, ASKED)
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match="another version"):
        engine_state.load(tmp_path, ASKED)
    with pytest.raises(CheckpointError, match="cannot write"):
        engine_state.save(tmp_path / "nowhere", state)


def test_damaged_states_are_refused_by_field(tmp_path: Path) -> None:
    """Whatever is changed in it, it is refused by the name of the file and what is wrong, or can be gone on with."""
    state = engine_state.load(tmp_path, ASKED)
    state.members["two"].epochs.append(Epoch(train_loss=1 / 3, metric=0.5, samples=5, shares=(2, 3)))
    state.members["two"].status = "trained"
    state.rates, state.alone = {"two": [0.0, 5.0]}, {"two": 4.0}
    state.plan.append((0, {"two": 1}))
    state.running = {"a/b c": 1}
    engine_state.save(tmp_path, state)
    whole, refused = json.loads((tmp_path / "state.json").read_text()), 0
    for what in itertools.islice(damaged(whole, 28), 400):
        (tmp_path / "state.json").write_text(json.dumps(what))
        try:
            found = engine_state.load(tmp_path, ASKED)
        except CheckpointError as error:
            refused += "state.json" in str(error) or "holds a run with" in str(error)
            continue
        except Exception as error:
            raise AssertionError(str(what)) from error
        page(RunSnapshot(found, found.running, Ledger(slots=2, end=8), 1, 9, {}), "accuracy")
        assert all(one.history(True).best < len(one.epochs) for one in found.members.values() if one.epochs), what
    assert refused > 150
    (tmp_path / "state.json").write_text(json.dumps(whole | {"members": whole["members"] | {"two": {"deaths": -1}}}))
    with pytest.raises(CheckpointError, match=r"state.json is damaged: members\.two\.deaths is -1, expected a whole"):
        engine_state.load(tmp_path, ASKED)


def test_folders_fit_every_file_system_and_old_files_go(tmp_path: Path) -> None:
    folders = engine_state.folders(tmp_path, ["a/b c", "a_b_c"])
    assert [folder.name for folder in folders.values()] == ["00-a_b_c", "01-a_b_c"]
    folder = folders["a_b_c"]
    folder.mkdir(parents=True)
    for name in ("00001.pt", "00002.pt", "00003.pt", "00004.part"):
        (folder / name).touch()
    engine_state.tidy(folder, {1, 3})
    assert sorted(path.name for path in folder.iterdir()) == ["00001.pt", "00003.pt"]


def test_random_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    member = linear()
    path = tmp_path / "x" / "1.pt"
    member_checkpoint.FILES.write(path, member_checkpoint.capture("a", member, 1, []), verify=True)
    drawn = (random.random(), np.random.rand(), torch.rand(3).tolist())
    member_checkpoint.restore(member_checkpoint.FILES.read(path), "a", linear())
    assert (random.random(), np.random.rand(), torch.rand(3).tolist()) == drawn


def test_checkpoints_that_do_not_fit_or_cannot_be_read(tmp_path: Path) -> None:
    saved = member_checkpoint.capture("a", linear(), 1, [])
    other = nn.Linear(3, 1)
    with pytest.raises(CheckpointError, match="member 'a': its checkpoint does not fit"):
        member_checkpoint.restore(saved, "a", fleet.Member(other, torch.optim.Adam(other.parameters())))
    with pytest.raises(CheckpointError, match="disagree on a scheduler"):
        member_checkpoint.restore(saved, "a", linear(lambda it: torch.optim.lr_scheduler.StepLR(it, 1)))
    path = tmp_path / "1.pt"
    with pytest.raises(CheckpointError, match="more than tensors and plain data"):
        member_checkpoint.FILES.write(path, {**saved, "history": [Path("x")]}, verify=True)
    assert not path.exists()
    member_checkpoint.FILES.write(path, {**saved, "schema": 0})
    with pytest.raises(CheckpointError, match="has schema 0"):
        member_checkpoint.FILES.read(path)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot read"):
        member_checkpoint.FILES.read(path)


def test_the_terminal_says_who_waits_for_whom() -> None:
    book = Ledger(slots=2, end=8)
    for name in ("fast", "slow"):
        book.join(name)
    book.raise_floor(8)
    for number in range(2):
        assert book.assign("m") == number
        book.made("m")
    book.read("fast", 2)
    done = [Epoch(train_loss=1.0, metric=0.5, train_s=2.0, samples=8)]
    state = RunState(ASKED, members={
        "fast": MemberState(epochs=done), "slow": MemberState(), "late": MemberState(),
        "broken": MemberState("failed", "Traceback\nValueError: no"),
    })  # fmt: skip
    console = Console(width=120)
    with console.capture() as shown:
        console.print(page(RunSnapshot(state, {"fast": 1, "slow": 2}, book, 1, 10), "accuracy"))
    lines = shown.get().splitlines()
    assert lines[1].split() == ["fast", "1", "4", "1/10", "0.5000", "18", "s", "trains"]
    assert lines[2].endswith("trains; the others wait for it")
    assert lines[3].split()[-1] == "waits"
    assert "failed: ValueError: no" in lines[4]
    assert "buffer 100% full" in lines[5]
