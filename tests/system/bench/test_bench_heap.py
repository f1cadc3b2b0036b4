"""Two processes that train in turns, and what is made of their times."""

from __future__ import annotations

import os

import psutil
import pytest

from uneven.errors import LaunchError
from uneven_bench.heap import bench as heap


def test_a_process_trains_a_turn_at_a_time_and_its_death_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_SAMPLES", 128)
    with heap._child("kept", 64, "digits") as turn:
        first, *others = [turn() for _ in range(4)]
        assert first["step_s"] > 0.0
        assert min(one["faults"] for one in others) < first["faults"] / 10, "memory of the first turn serves the others"
        (child,) = (one for one in psutil.Process().children() if heap._CHILD in one.cmdline())
        assert os.getpgid(child.pid) != os.getpgrp(), "it would hear a Ctrl-C that is for the bench"
        child.suspend()
        monkeypatch.setattr(heap, "_LONGEST_S", 0.3)
        with pytest.raises(LaunchError, match=r"batches of 64 has said nothing for 0\.3 s"):
            turn()
        child.kill()
        with pytest.raises(LaunchError, match="that trains 'kept' with batches of 64 has died"):
            turn()
    assert not child.is_running()


def test_times_are_compared_within_a_round() -> None:
    plain = [{"step_s": seconds, "faults": 1000.0} for seconds in (1.0, 2.0, 4.0)]
    kept = [{"step_s": seconds, "faults": 1.0} for seconds in (0.5, 1.5, 3.2)]
    found = heap._summary({"plain": plain, "kept": kept})
    assert found["step_s"] == {"plain": 2.0, "kept": 1.5}
    assert found["faults"] == {"plain": 1000.0, "kept": 1.0}
    assert found["of_plain"] == pytest.approx([0.75, 0.625, 0.775])
    (table,) = heap.tables({"cases": {"64": found}, "rounds": 3})
    assert [list(column.cells) for column in table.columns] == [
        ["64"], ["2000.0"], ["1500.0"], ["0.75 [0.62 … 0.78]"], ["1,000"], ["1"],
    ]  # fmt: skip
