"""Trainings in which members take turns on the slots: all share one stream, and slots are asked about when it pays."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fleet_members as members
import uneven.fleet as fleet
from uneven.fleet.engine import fleet_run as engine
from uneven.fleet.engine.fleet_options import Options
from uneven.runtime.jobs.processes import usable_cores

OPTIONS = Options(together=True, buffer=256, chunk=32, preprocessors=1)
EVERYBODY = {name: members.ensemble().members[name] for name in ("small", "wide", "scheduled")}


@pytest.fixture(autouse=True)
def light_processes() -> Iterator[None]:
    """New processes import the script that was started, which is pytest here; they can do without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["__main__"], "__spec__", None)
        patch.delattr(sys.modules["__main__"], "__file__", raising=False)
        yield


def train(directory: Path, max_epochs: int, options: Options = OPTIONS, **given: object) -> fleet.Result:
    asked = members.ensemble(max_epochs, **given)
    return fleet.train(asked, devices=2, directory=directory, options=options, progress=False)


def test_all_share_one_stream_and_a_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    everybody = EVERYBODY | {"raises": members.raises}
    train(tmp_path / "parts", 1, members=everybody)
    parts = train(tmp_path / "parts", 2, members=EVERYBODY | {"raises": members.no_member})  # it never began
    whole = train(tmp_path / "whole", 2, members=everybody)
    state = whole.state
    assert [sorted(plan) for _, plan in state.plan] == [sorted(EVERYBODY)]  # three on two slots
    assert set(state.alone) == set(EVERYBODY)
    assert state.rates == {}  # nobody was asked about a second slot
    assert state.member_bytes > 0
    assert state.prepared == 2 * (400 + 100)  # once for everybody
    assert state.members["raises"].status == "failed"
    assert "this factory is broken" in state.members["raises"].why
    for name in EVERYBODY:
        one, other = whole.model(name).state_dict(), parts.model(name).state_dict()
        assert all(torch.equal(one[key], other[key]) for key in one), name


def test_fewer_members_than_slots_are_asked_what_they_gain_by_more_if_they_train_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = {"plain": members.plain}
    short = train(tmp_path / "short", 1, members=alone)
    assert [plan for _, plan in short.state.plan] == [{"plain": 1}]
    assert short.state.rates == {}
    monkeypatch.setattr(engine, "LONG_EPOCH_S", 0.0)
    long = train(tmp_path / "long", 1, replace(OPTIONS, together=True), members=alone)
    (rates,) = long.state.rates.values()
    assert len(rates) == min(2, usable_cores())
    assert long.table[0].epochs == 1
