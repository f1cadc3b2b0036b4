"""The report of a training: who had which devices when, and every member's curves."""

from __future__ import annotations

from pathlib import Path

import pytest

import fleet_members as members
from uneven.errors import ConfigError
from uneven.fleet.engine.fleet_state import MemberState, RunState
from uneven.fleet.fleet_result import Result, stretches
from uneven.fleet.pure.converge import Epoch


def epoch(flotilla: int, began_s: float, ended_s: float, devices: int = 1, waited_s: float = 0.0) -> Epoch:
    took_s = ended_s - began_s
    at = {"flotilla": flotilla, "began_s": began_s, "ended_s": ended_s}
    return Epoch(1.0, 0.5, train_s=took_s, waited_s=waited_s, devices=devices, **at)


EPOCHS = {
    "small": [epoch(1, 0.0, 2.0), epoch(1, 2.0, 4.0, waited_s=2.0)],
    "wide": [epoch(1, 0.0, 2.0, 2), epoch(1, 2.0, 4.0, 2), epoch(2, 4.0, 6.0, 3)],
    "scheduled": [epoch(3, 6.0, 7.0)],
}


def test_devices_are_numbered_as_they_are_taken() -> None:
    spans = {(span.name, span.start_s): span for span in stretches(EPOCHS)}
    assert spans["small", 0.0].devices == (0,)
    assert spans["wide", 0.0].devices == (1, 2)
    assert (spans["wide", 0.0].end_s, spans["small", 0.0].computed) == (4.0, 0.5)
    assert spans["wide", 4.0].devices == (0, 1, 2)
    assert spans["scheduled", 6.0].devices == (0,)
    assert stretches({}) == stretches({"none": []}) == []


def test_the_page_shows_members_plan_and_curves(tmp_path: Path) -> None:
    states = {name: MemberState("trained", "converged", list(mine)) for name, mine in EPOCHS.items()}
    states["wide"].note = "not on 4 devices: no"
    state = RunState({}, members=states, plan=[(0, {"small": 1})])
    result = Result(members.ensemble(), state, tmp_path)
    result.report(tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text()
    with pytest.raises(ConfigError, match="cannot write the report"):
        result.report(tmp_path)
    for said in ("The plan over time", "accuracy over time", "Training loss by epoch", "3 of 3", "not on 4 devices"):
        assert said in html
    states = {name: MemberState("failed", "broken") for name in EPOCHS}
    Result(members.ensemble(), RunState({}, members=states), tmp_path).report(tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text()
    assert "broken" in html
    assert "The plan over time" not in html
