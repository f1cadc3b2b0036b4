"""``uneven bench why --case rivals``: a rival that is not installed is left out by name."""

from __future__ import annotations

import pytest

from uneven.errors import UnknownNameError
from uneven_bench.why import bench, rivals


def test_a_rival_that_is_not_installed_is_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "FEW", ("data",))
    monkeypatch.setattr(rivals, "TRACEML", "no-such-package")
    result = bench.run(True, lambda *_: None, case="rivals")
    assert result["left_out"] == {"traceml": "no-such-package is not installed"}
    (row,) = result["tools"]
    assert "rank" in row["uneven"]["answer"]
    assert "traceml" not in row
    assert "left out" in [table.title for table in bench.tables(result)]


def test_an_unknown_case_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="rivals"):
        bench.run(True, lambda *_: None, case="rival")
