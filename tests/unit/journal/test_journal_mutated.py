"""Lines of valid JSON in which something is wrong are refused by file, line and field, or shown as what they say."""

from __future__ import annotations

import io
import json
import operator
import random
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sample_runs import START_S, SampleRun

from damaged import damaged
from uneven.errors import JournalError
from uneven.journal import Writer, rank_path, read
from uneven.journal.report import html, perfetto
from uneven.journal.report.page import Page
from uneven.journal.report.pure.chart_series import run_data
from uneven.journal.report.pure.points import PointStream
from uneven.journal.report.screen import final, live
from uneven.journal.report.terminal import WatchedRun, plain_line
from uneven.policy.core.records import (
    EventRecord,
    ExchangeRecord,
    ForecastRecord,
    ProfileRecord,
    Record,
    StepRecord,
    from_json,
    to_json,
)

CASES = 400

MORE: tuple[Record, ...] = (
    ProfileRecord(rank=0, at_s=START_S, sizes=(1, 8, 64), seconds=(0.1, 0.2, 0.9), saturation=8, most=64, failed=128),
    ForecastRecord(rank=1, iteration=3, predicted_per_s=400.0, doubt=0.1),
    ExchangeRecord(rank=0, iteration=4, at_s=START_S + 4, moment="step", members=2, samples=64, gap=4, late=1,
                   took_s=0.01, sent_bytes=4096, distance=0.1, dropped=1, threads=2),
    EventRecord(rank=1, iteration=5, at_s=START_S + 5, event="cut_link", message="m60 has 100 Mbit/s left"),
    StepRecord(rank=1, iteration=8, epoch=0, batch=64, global_batch=512, data_s=0.1, compute_s=0.1, exchange_s=0.1,
               control_s=0.0, ended_at_s=START_S + 9, others=0.5, memory=None, thread=1, threads=2),
)  # fmt: skip


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """A small run with a record of every kind, rank → lines."""
    run = SampleRun(speeds_per_s=(600.0, 400.0), iterations=8, settle=3).write(tmp_path_factory.mktemp("whole"))
    with Writer(rank_path(run, 1)) as writer:
        writer.write(*MORE)
    return {rank: rank_path(run, rank).read_text().splitlines() for rank in (0, 1)}


def everything_shown(run: Path) -> None:
    """What watch, report and the exports make of it."""
    watched = WatchedRun(run)
    state = watched.update()
    console = Console(file=io.StringIO(), width=100)
    for what in (live(state, run.name, 100, 30), final(state, run.name, 100), plain_line(state)):
        console.print(what)
    data = run_data(read(run))
    html.report(run)
    json.dumps(list(perfetto.events(data)))
    PointStream().feed(read(run).records(), final=True)


@pytest.mark.rest
def test_every_damaged_line_is_refused_by_name_or_shown(
    lines: dict[int, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    html_of = operator.attrgetter("html")  # of a part: all but Plotly's own megabytes
    monkeypatch.setattr(Page, "html", lambda page: "".join(map(html_of, page.parts)))
    dice, refused, unnamed = random.Random(28), 0, 0
    for case in range(CASES):
        run = tmp_path / f"run{case}"
        rank = dice.randrange(2)
        place = dice.randrange(len(lines[rank]))
        line = json.dumps(next(damaged(json.loads(lines[rank][place]), case)))
        (run / "journal").mkdir(parents=True)
        for other in (0, 1):
            text = list(lines[other])
            text[place : place + 1] = [line] if other == rank else text[place : place + 1]
            rank_path(run, other).write_text("\n".join(text) + "\n")
        try:
            everything_shown(run)
        except JournalError as error:
            refused += f"rank0000{rank}.jsonl, line {place + 1}" in str(error)
            unnamed += f"rank0000{rank}.jsonl, line {place + 1}" not in str(error)
        except Exception as error:
            raise AssertionError(f"case {case}: {lines[rank][place]} became {line}") from error
    assert CASES / 3 < refused < CASES
    assert not unnamed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rank": "0"}, "rank is '0', expected a whole number"),
        ({"rank": True}, "rank is True, expected a whole number"),
        ({"rank": 10**15}, "rank is 1000000000000000, expected a whole number, from 0 to 1048576"),
        ({"threads": 0}, "threads is 0, expected a whole number, from 1"),
        ({"compute_s": [0.1]}, r"compute_s is \[0.1\], expected a number"),
        ({"compute_s": 10**400}, "compute_s is 1000.*, expected a number"),
        ({"others": {}}, "others is {}, expected a number"),
        ({"kind": "stride"}, "unknown kind 'stride'"),
    ],
)
def test_the_field_is_named(change: dict[str, Any], said: str) -> None:
    row = json.loads(to_json(MORE[-1]))
    with pytest.raises(JournalError, match=said):
        from_json(json.dumps(row | change))
    del row["epoch"]
    with pytest.raises(JournalError, match="epoch is missing"):
        from_json(json.dumps(row))


def test_a_list_as_long_as_another_one_is_named() -> None:
    row = json.loads(to_json(MORE[0])) | {"seconds": [0.1, 0.2]}
    with pytest.raises(JournalError, match=r"seconds is \(0.1, 0.2\), expected a list of 3, as many as sizes"):
        from_json(json.dumps(row))
    with pytest.raises(JournalError, match=r"seconds\[1\] is None, expected a number"):
        from_json(json.dumps(row | {"seconds": [0.1, None, 3]}))


def test_what_is_nested_too_deeply_is_no_record(tmp_path: Path) -> None:
    rank_path(tmp_path, 0).parent.mkdir()
    rank_path(tmp_path, 0).write_text("[" * 200_000 + "]" * 200_000 + "\n")
    with pytest.raises(JournalError, match="line 1"):
        read(tmp_path)
