"""``uneven bench`` and ``uneven demo`` refuse what cannot be before a worker starts; the short bench is run."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest

import uneven as package
from uneven.cli import main, progress
from uneven_bench.balancers import bench as balancers
from uneven_bench.commands import app
from uneven_bench.faults import bench as faults
from uneven_bench.faults.play import PlayedFault
from uneven_bench.harness import faulty

BENCHES = [one.name for one in app.registered_commands if one.name]


def uneven(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_bench_prints_tables_and_one_json_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(balancers, "CASES", balancers.CASES[:1])
    assert uneven("bench", "balancers", "--quick", "--json") == 0
    printed = capsys.readouterr().out.splitlines()
    result = json.loads(printed[-1])
    assert set(result["of_best"]["equal"]) == set(balancers.NAMES)
    assert any("of best" in line for line in printed[:-1])


def test_the_help_says_what_every_bench_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert uneven("bench", "--help") == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in BENCHES)


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_says_how_long_it_takes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert uneven("bench", name, "--help") == 0
    printed = capsys.readouterr().out
    assert f"Usage: uneven bench {name} " in printed
    assert re.search("second|minute|hour", printed, re.IGNORECASE)
    assert {"--quick", "--json"} <= set(printed.split())


def test_both_packages_have_one_version() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "benchmarks" / "pyproject.toml").read_text())["project"]
    assert project["version"] == package.__version__
    assert project["dependencies"][0] == f"uneven=={package.__version__}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bench", "rivls"), "unknown bench 'rivls'; did you mean 'rivals'?"),
        (("bench", "lb-bsp", "--data", "digit"), "unknown data set 'digit'; did you mean 'digits'?"),
        (("bench", "lb-bsp", "--case", "trace"), "unknown case 'trace'; did you mean 'traces'?"),
        (("bench", "rivals", "--case", "traces"), "No such option: --case"),
        (("bench", "rivals", "--report", "a.html"), "No such option: --report"),
        (("bench", "rivals", "--seed", "1"), "No such option: --seed"),
        (("bench", "faults", "--only", "-1"), "--only -1: cases are numbered from 0"),
        (("bench", "rivals", "--record", "kept"), "No such option: --record"),
        (("bench", "predictors", "--record", "a", "--runs", "b"), "--record and --runs: give one"),
        (("bench", "predictors", "--runs", "kept"), "there are no recorded runs in kept"),
        (("demo", "--data", "digit"), "unknown data set 'digit'; did you mean 'digits'?"),
        (("demo", "--epochs", "1"), "give at least --epochs 4"),
        (("demo", "--data", "fashion-mnist"), "UNEVEN_DATA is not set: set it to a folder"),
    ],
)
def test_bad_input_is_refused_before_a_worker_starts(
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNEVEN_DATA", raising=False)
    assert uneven(*arguments) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_without_a_terminal_a_bench_says_in_lines_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = 0.0

    def lives(case: faults.FaultCase, folder: Path) -> Generator[None, None, PlayedFault]:
        """A run that takes four seconds, and every third one ends wrongly."""
        nonlocal now_s
        yield
        now_s += 4.0
        wrong = ("left behind: x",) if case.number % 3 == 0 else ()
        return PlayedFault(case=case, wrong=wrong, struck=True, resumed=False, took_s=4.0, said="")

    monkeypatch.setattr(faults, "play", lives)
    monkeypatch.setattr(faults, "FEW", 7)
    monkeypatch.setattr(faulty, "_side_by_side", lambda: 1)
    monkeypatch.setattr(progress, "lines", partial(progress.lines, clock=lambda: now_s))
    assert uneven("bench", "faults", "--quick") == 0
    said = capsys.readouterr().err.splitlines()
    takes = "uneven: bench faults takes about a minute and a half"
    assert said == [takes, *(f"uneven: fault {done} of 7, {wrong} wrong" for done, wrong in ((3, 1), (6, 2), (7, 3)))]
