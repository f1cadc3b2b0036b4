"""``uneven simulate --train`` from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from uneven.cli import main
from uneven.cli.learning import curve
from uneven.cluster.virtual import Point
from uneven.journal import read
from uneven.journal.report import html
from uneven.policy.core.records import EventRecord, ScalarRecord


def typed(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *words])
    return int(str(ended.value.code))


def test_it_learns_until_it_is_good_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    words = ("demo4", "--train", "digits", "--accuracy", "0.9", "--compare", "--run-dir", str(run))
    assert typed(*words) == 0
    text = capsys.readouterr().out
    for word in ("90 % is reached after", "global batches)", "to the goal"):
        assert word in text
    records = list(read(run).records())
    scalars = [record for record in records if isinstance(record, ScalarRecord)]
    assert {record.name for record in scalars} == {"loss", "accuracy"}
    accuracies = [record.value for record in scalars if record.name == "accuracy"]
    assert accuracies[-1] >= 0.9 > max(accuracies[:-1])
    assert [record.event for record in records if isinstance(record, EventRecord)].count("end") == 4
    assert "accuracy" in html.report(run)


def test_a_goal_out_of_reach_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("demo4", "--train", "digits", "--accuracy", "1.0", "--iterations", "5", "--no-journal")
    assert typed(*words) == 0
    assert "100 % is not reached: the best is" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "told"), [
    (("--accuracy", "0.9"), "add --train digits"),
    (("--train", "digit"), "did you mean 'digits'?"),
    (("--train", "digits:depth=3"), "unknown key for training task 'digits': 'depth'"),
    (("--train", "digits", "--accuracy", "90"), "above 0 and at most 1"),
])  # fmt: skip
def test_a_mistake_is_named(words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("demo4", "--no-journal", *words) == 2
    assert told in capsys.readouterr().err


def test_a_curve_is_even_in_time() -> None:
    points = (Point(1.0, 1, 0.0, 0.0), Point(2.0, 2, 0.0, 0.5), Point(8.0, 3, 0.0, 1.0))
    assert curve(points, width=8) == "▁▅▅▅▅▅▅█"
    assert curve(points[1:2], width=4) == "   ▅"
    assert curve(()) == ""
