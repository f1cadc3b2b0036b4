"""``uneven watch`` does not wait for ever where there is nothing to wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from uneven.cli import main


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
