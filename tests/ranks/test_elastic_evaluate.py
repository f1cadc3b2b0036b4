"""A shared evaluation in which workers are lost: each sample counts once all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_elastic import HERE, run

from uneven.policy.samples.requeued import runs
from uneven.run.loops.over_all import positions_in, without


@pytest.mark.timeout(200)
def test_what_a_lost_worker_had_counted_is_counted_again(tmp_path: Path) -> None:
    with run(
        "--nproc", 3, "--elastic", "1:3", "--run-dir", tmp_path / "run", HERE / "elastic_evaluate.py", tmp_path
    ) as it:
        said = it.communicate(100)[1]
    assert it.returncode == 0, said
    assert len({(tmp_path / f"{one}.mean").read_text() for one in range(3)}) == 1, "batch norm's, in training"
    found: dict[str, Any] = json.loads((tmp_path / "0.json").read_text())
    assert found["workers"] == 1
    assert found["seen"] == [[1], [1]]
    assert len({*found["right"]}) == 1
    assert found["loss"] == pytest.approx([found["loss"][2]] * 3, rel=1e-12)


@given(st.sets(st.integers(0, 30)), st.data())
def test_what_nobody_has_counted_is_left(positions: set[int], data: st.DataObject) -> None:
    left = runs(sorted(positions))
    places = sorted(data.draw(st.sets(st.integers(0, max(0, len(positions) - 1))))) if positions else []
    counted = positions_in(left, places)
    assert counted == [sorted(positions)[one] for one in places]
    assert without(left, runs(places)) == runs(sorted(positions - {*counted}))
