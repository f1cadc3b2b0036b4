"""The tables of all benches: each figure of a result is in one of them."""

from __future__ import annotations

import io
from typing import Any

from rich.table import Table

from uneven.journal.report.console import Console
from uneven_bench.harness.tables import tables


def printed(result: dict[str, Any], **bars: str) -> str:
    console = Console(width=112, file=io.StringIO(), record=True)
    for table in tables(result, bars):
        console.print(table)
    return console.export_text()


def cells(table: Table) -> list[list[str]]:
    return [list(map(str, row)) for row in zip(*(column.cells for column in table.columns), strict=True)]


def test_rows_in_the_same_place_are_one_table() -> None:
    arms = {"ddp": {"step_s": 0.25, "lost": 0, "ratio": [1.0, 0.9, 1.1]}, "ours": {"step_s": 2.0, "lost": 1234}}
    found = tables({"cases": {"steady": {"arms": arms}}, "seeds": 3})
    assert [str(one.title) for one in found] == ["cases, steady, arms", ""]
    assert cells(found[0]) == [["ddp", "250 ms", "0", "1 [0.9 … 1.1]"], ["ours", "2.0 s", "1,234", ""]]
    assert cells(found[1]) == [["seeds", "3"]]


def test_mappings_with_the_same_keys_are_one_table() -> None:
    (one,) = tables({"speed": {"a": 1.0, "b": 2.0}, "waits": {"a": 0.5, "b": None}})
    assert cells(one) == [["speed", "1", "2"], ["waits", "0.5", "–"]]


def test_long_tables_are_divided_and_long_lists_are_counted() -> None:
    rows = {f"case {n}": {f"arm {k}": {"x": 1.0, "y": 2.0} for k in range(10)} for n in range(3)}
    found = tables({"cases": rows, "all": [1.0] * 100, "kills": [{"kind": "run"}] * 30})
    assert [one.row_count for one in found] == [10, 10, 10, 2]
    assert cells(found[-1]) == [["all", "100 values"], ["kills", "30 values"]]


def test_a_list_of_rows_is_a_table_and_a_figure_has_its_bar() -> None:
    text = printed({"wrong": [{"case": "17", "wrong": ["too late", "too loud"], "said": "…"}], "gain": 1.5}, gain="≥ 1")
    assert "too late" in text
    assert "too loud" in text
    assert "said" not in text
    assert "≥ 1" in text
