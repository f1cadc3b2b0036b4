"""A search that is begun again, with the same code or another; and what a trial's process may start."""

from __future__ import annotations

import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import search_functions as functions
from uneven import search
from uneven.errors import CheckpointError


def test_a_search_that_has_finished_says_so_and_is_not_that_of_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)

    def searched(factor: float, **given: Any) -> search.SearchResult:
        asked = {"metric": "score", "devices": 1, "progress": False, **given}
        return search.run(partial(functions.scaled, factor=factor), {"x": search.uniform(0, 1)}, **asked)

    first = searched(1.0)
    assert scores(searched(1.0, devices=2)) == scores(first)
    assert re.search(r"the search in \S+runs/scaled finished on 20.*its result", caplog.text)
    caplog.clear()
    with pytest.raises(CheckpointError, match=r"finished on 20.*its code has changed since \(train\)"):
        searched(2.0, directory="runs/scaled")
    other = searched(2.0)
    assert other.directory == tmp_path / "runs" / "scaled-2"
    assert other.best.metric == 2 * first.best.metric
    assert "runs/scaled finished on" in caplog.text
    assert scores(searched(1.0)) == scores(first)


def scores(result: search.SearchResult) -> list[float]:
    return [row.metric for row in result.rows]


def test_a_trial_reads_with_workers_that_end_with_it(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    result = search.run(
        functions.loads, {"noted_in": str(noted)}, metric="score", max_failures=1, devices=1, progress=False,
        directory=tmp_path / "run",
    )  # fmt: skip
    assert (result.best.status, result.best.metric) == ("terminated", sum(range(8))), result.best.why
    workers = [int(pid) for pid in noted.read_text().split()]
    assert len(workers) == 2
    while any(map(runs, workers)):
        signal.sigtimedwait([], 0.005)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
