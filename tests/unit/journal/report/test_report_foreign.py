"""Names that others chose reach a terminal without a command in them, and a page as text, Plotly's labels too."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text
from sample_runs import START_S, SampleRun

import uneven
from uneven.cli import main
from uneven.cluster.emulate.emulation import say
from uneven.errors import JournalError
from uneven.journal import Writer, rank_path
from uneven.journal.report import html
from uneven.journal.report.console import Console
from uneven.journal.report.page import Page
from uneven.journal.report.terminal import watch
from uneven.policy.core.printable import printable
from uneven.policy.core.records import EventRecord, RunRecord, ScalarRecord, SplitRecord, StepRecord

BAD = "\x1b]0;owned\x07\x1b[31m\x9b2J[bold]<b>&amp;</b>\u202eabc\udc80"
SEEN = "]0;owned[31m2J[bold]<b>&amp;</b>abc\ufffd"
COMMANDS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")
SOURCES = Path(uneven.__file__).parent


def hostile(run: Path) -> Path:
    """A run in which every text is bad."""
    SampleRun(speeds_per_s=(600.0, 400.0), iterations=8).write(run, end=False)
    with Writer(rank_path(run, 0)) as writer:
        settings = {"balance": BAD, "sync": BAD}
        writer.write(
            RunRecord(run=BAD, rank=0, world_size=2, host=BAD, pid=2**22, started_at_s=START_S + 99, world="simulated",
                      settings=settings),
            ScalarRecord(rank=0, iteration=8, at_s=START_S + 99, name=BAD, value=1.0),
            EventRecord(rank=0, iteration=8, at_s=START_S + 99, event=BAD, message=BAD),
            EventRecord(rank=0, iteration=8, at_s=START_S + 99, event="slow", message=BAD),
            SplitRecord(decided_at=8, iteration=9, shares=(256, 256), speeds_per_s=(1.0, 1.0),
                        predicted_per_s=(1.0, 1.0), reason=BAD),
            StepRecord(rank=0, iteration=8, epoch=0, batch=512, global_batch=512, data_s=0.1, compute_s=0.1,
                       exchange_s=0.1, control_s=0.0, ended_at_s=START_S + 100),
            EventRecord(rank=0, iteration=9, at_s=START_S + 101, event="end", message=BAD),
        )  # fmt: skip
    return run


def test_a_watched_run_does_not_command_the_terminal(tmp_path: Path) -> None:
    text = io.StringIO()
    watch(hostile(tmp_path / "run[bold]\x1b[2J"), console=Console(file=text, width=200))
    assert not COMMANDS.search(text.getvalue())
    assert SEEN in text.getvalue()
    assert "run[bold][2J" in text.getvalue()  # what Rich would take for a style is shown as well


def test_styles_and_live_views_still_reach_it() -> None:
    text = io.StringIO()
    console = Console(file=text, width=40, force_terminal=True, color_system="standard")
    table = Table("a", title=BAD)
    table.add_row(Text(BAD, "red"))
    console.print(table, BAD, Text("fine", "bold"))
    console.show_cursor(False)
    assert "\x1b[1mfine\x1b[0m" in text.getvalue()
    assert "\x1b[?25l" in text.getvalue()
    left = re.sub("\x1b\\[[0-9;]*m|\x1b\\[\\?25l", "", text.getvalue())
    assert not COMMANDS.search(left)


def test_a_page_shows_it_as_text_and_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[str] = []
    seen = Page.figure
    monkeypatch.setattr(Page, "figure", lambda page, *args: (seen(page, *args), figures.append(page.parts[-1].html)))
    page = html.report(hostile(tmp_path / "run"))
    html.write(page, tmp_path / "page.html")
    assert "<b>&amp;" not in page
    pictures = [json.loads(found) for one in figures for found in re.findall('application/json">(.*?)</script>', one)]
    texts = [text for picture in pictures for text in strings(picture) if "owned" in text]
    assert texts
    assert {re.sub(r"^slow: |^rank 0 · ", "", text) for text in texts} == {
        SEEN.replace("&", "&amp;").replace("<", "&lt;")
    }


def strings(value: object) -> list[str]:
    """All texts inside."""
    if isinstance(value, dict):
        return [text for one in value.values() for text in strings(one)]
    if isinstance(value, list):
        return [text for one in value for text in strings(one)]
    return [value] if isinstance(value, str) else []


BAD_NAME = r'"a\u001b[31m[bold]\u009b2J"'


@pytest.mark.parametrize("words", [("simulate", "--no-journal"), ("plan", "--balance", "even", "--sync", "bsp")])
def test_a_cluster_file_does_not_command_the_terminal(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.toml"
    demo = (SOURCES / "cluster" / "shipped" / "demo4.toml").read_text()
    path.write_text(demo.replace('"demo4"', BAD_NAME).replace('"node0"', BAD_NAME))
    with pytest.raises(SystemExit):  # played or refused, it is named
        main([words[0], str(path), *words[1:], "--iterations", "5"])
    told = capsys.readouterr()
    assert not COMMANDS.search(told.out + told.err)
    assert "31m" in told.out + told.err


def test_errors_and_lines_do_not_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="uneven")
    say(f"node {BAD} is slow")
    with pytest.raises(SystemExit):
        main(["watch", str(tmp_path / BAD)])
    for told in (caplog.messages[0], capsys.readouterr().err):
        assert not COMMANDS.search(told)
        assert told.count(SEEN) == 1


def test_nobody_writes_to_a_terminal_past_it() -> None:
    """Rich's own console is made here and where only numbers are shown, in a package that knows no reports."""

    def users(pattern: str) -> set[str]:
        found = re.compile(pattern)
        return {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if found.search(path.read_text())}

    made = users(r"rich\.console import [^\n]*\bConsole\b|rich import [^\n]*(console|print)")
    assert made == {"journal/report/console.py", "run/reports/profiling.py"}
    assert not users(r"\[/?bold\b|from_markup|rich\.markup")


def test_what_is_printable_is_left_alone() -> None:
    for text in ("", "rank 0 · ≥ 3 µs", "two\nlines\tand a tab", "名前 ñ"):
        assert printable(text) == text
    with pytest.raises(JournalError):
        watch(Path("/nonexistent"))
