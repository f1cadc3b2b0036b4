"""``uneven watch`` does not wait for ever where there is nothing to wait for."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from sample_runs import SampleRun

from uneven.cli import main, why_live
from uneven.journal.report.console import Console


def refusal(run: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(run), *words])
    assert ended.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "not a run directory: it holds no journal and no run.toml" in refusal(tmp_path, capsys)


def test_the_folder_above_the_runs_is_refused_and_one_of_them_offered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second"):
        (tmp_path / name / "journal").mkdir(parents=True)
        (tmp_path / name / "journal" / "rank00000.jsonl").touch()
    assert refusal(tmp_path, capsys).endswith("it holds runs, for instance " + str(tmp_path / "second"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--once", "--prometheus", "0"), "--once with --prometheus: leave one out"),
        (("--once", "--web"), "--once with --web: leave one out"),
        (("--web", "--prometheus", "0"), "--web with --prometheus: start `uneven watch` twice"),
    ],
)
def test_two_ways_to_show_a_run_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "run.toml").touch()
    assert message in refusal(tmp_path, capsys, *words)


def test_the_page_has_the_explanation_and_simulates_remedies_once_per_slow_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = []
    original = why_live.with_remedies
    monkeypatch.setattr(why_live, "with_remedies", lambda *given: simulated.append(given) or original(*given))
    run = SampleRun(balanced=False).write(tmp_path / "lab")
    live = why_live.LiveExplanation(run)
    for _ in range(2):
        part = live.page(run).parts[1]
        assert part.title == "Who is slow, and why"
        assert "rank 3 (node0) is slow" in part.html
        assert "unequal shares" in part.html
    assert len(simulated) == 1


def test_an_explanation_is_printed_again_when_it_has_changed(tmp_path: Path) -> None:
    run = SampleRun(balanced=False).write(tmp_path / "lab")
    output = io.StringIO()
    ends = iter([False, False, True])
    why_live.follow(run, lambda within_s: next(ends), Console(file=output), in_place=False)
    assert output.getvalue().count("rank 3 (node0) is slow") == 1
    why_live.follow(tmp_path / "none", lambda within_s: True, Console(file=output), in_place=False)


def test_an_explanation_is_renewed_in_a_terminal_until_the_run_has_ended(tmp_path: Path) -> None:
    run = SampleRun(balanced=False).write(tmp_path / "lab")
    output = io.StringIO()
    ends = iter([False, True])
    why_live.follow(run, lambda within_s: next(ends), Console(file=output, force_terminal=True), in_place=True)
    assert "rank 3 (node0) is slow" in output.getvalue()
    why_live.watch(run)
