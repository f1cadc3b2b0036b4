"""The parts of ``uneven bench search`` that need no other program."""

from pathlib import Path

import pytest

from uneven.errors import DataError
from uneven_bench.search import decisions


def test_trials_go_through_the_core() -> None:
    assert decisions.core_s(50) > 0


def test_without_the_table_it_is_said_where_it_belongs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNEVEN_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"hpo/nasbench201_acc\.npz"):
        decisions.table()
