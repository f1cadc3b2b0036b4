"""Answers in JSON are alone on the standard output; ``uneven runs`` and ``uneven init``."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from jsonschema import Draft7Validator

from uneven.cli import answer, main
from uneven.runtime import rundir


def called(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(str(ended.value.code))


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """The only line on the standard output."""
    capsys.readouterr()
    assert called(*words, "--format", "json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A simulated run in ``./runs``."""
    monkeypatch.chdir(tmp_path)
    found = answered(capsys, "simulate", "demo4", "--iterations", "20", "--compare", "--run-dir", "runs/one")
    assert (found["cluster"], found["balance"], found["run_dir"]) == ("demo4", "lb-bsp", "runs/one")
    assert found["samples_per_s"] > found["even_bsp"]["samples_per_s"] > 0
    assert [worker["node"] for worker in found["workers"]] == [f"node{rank}" for rank in range(4)]
    return Path("runs/one")


def test_commands_about_a_run_answer_in_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = answered(capsys, "watch", "--once")
    assert (now["run"], now["state"], now["iteration"]) == (str(run), "finished", 20)
    assert len(now["total"]["workers"]) == len(now["shares"]) == 4
    pytest.importorskip("plotly")
    page = answered(capsys, "report", str(run))
    assert page["report"] == f"{run}/report.html"
    assert [summary["iterations"] for summary in page["runs"].values()] == [now["total"]["iterations"]]
    assert page["advice"]


def test_watch_once_prints_the_run_and_ends(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert called("watch", str(run), "--once") == 0
    assert "rank" in capsys.readouterr().out
    for words, why in (
        (("--format", "json"), "--format json needs --once"),
        (("--once", "--web"), "--once with --web"),
    ):
        assert called("watch", str(run), *words) == 2
        assert why in capsys.readouterr().err
    assert called("watch", "nowhere", "--once", "--format", "json") == 2
    assert "no run directory nowhere" in capsys.readouterr().err


def test_runs_are_listed_with_the_next_command(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rundir.create(Path("runs/begun"), {})
    rundir.create(Path("runs/damaged"), {})
    (Path("runs/damaged/journal")).mkdir()
    (Path("runs/damaged/journal/rank00000.jsonl")).write_text('{"kind": "step"}\n')
    Path("runs/tried").mkdir()
    Path("runs/tried/events.jsonl").touch()
    Path("runs/no run").mkdir()
    rows = {row["name"]: row for row in answered(capsys, "runs")}
    assert set(rows) == {"one", "begun", "damaged", "tried"}
    one = rows["one"]
    assert (one["workers"], one["iterations"], one["state"]) == (4, 20, "finished")
    assert one["next"] == "uneven report runs/one"
    assert (rows["begun"]["state"], rows["begun"]["next"]) == ("waiting", "uneven watch runs/begun")
    assert (rows["damaged"]["state"], rows["damaged"]["next"]) == ("damaged", "")
    assert rows["tried"]["next"] == "uneven search show runs/tried"
    assert called("runs") == 0
    text = capsys.readouterr().out
    assert all(row["next"] in text and name in text for name, row in rows.items())
    assert called("runs", "runs/no run") == 0
    assert capsys.readouterr().out == "no run in runs/no run\n"
    assert called("runs", "nowhere") == 2
    assert "nowhere is not a folder" in capsys.readouterr().err


def test_a_settings_file_has_all_keys_and_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert called("init", "--balance", "static:shares=3/1", "--sync", "local:every=8", "--timeout", "60") == 0
    assert "next: uneven run SCRIPT" in capsys.readouterr().out
    text = Path("uneven.toml").read_text()
    given = {"balance": "static:shares=3/1", "sync": "local:every=8", "timeout_s": 60.0}
    assert rundir.file_layer(None) == {"uneven.toml": given}
    schema = json.loads((resources.files("uneven") / "schemas" / "uneven.schema.json").read_text())
    # With every default in force as well, both the schema and the reader accept it.
    keys = list(schema["properties"]["run"]["properties"])
    Path("all.toml").write_text(
        "".join(line.removeprefix("# ") if line.split(" = ")[0] in {f"# {key}" for key in keys} else line
                for line in text.splitlines(keepends=True))
    )  # fmt: skip
    every = tomllib.loads(Path("all.toml").read_text())
    assert list(every["run"]) == keys
    Draft7Validator(schema).validate(every)
    assert rundir.file_layer(Path("all.toml"))["all.toml"] == every["run"]
    assert called("init") == 2
    assert "uneven.toml exists: edit it" in capsys.readouterr().err
    assert called("init", "--config", "b.toml", "--sync", "locl") == 2
    assert "did you mean 'local'?" in capsys.readouterr().err
    assert not Path("b.toml").exists()


def test_a_terminal_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    answers = iter(["", "ssp:staleness=3", 7])
    monkeypatch.setattr("typer.prompt", lambda text, default, **_: next(answers) or default)
    assert called("init", "--config", "asked.toml") == 0
    assert rundir.file_layer(Path("asked.toml"))["asked.toml"] == {
        "balance": "lb-bsp",
        "sync": "ssp:staleness=3",
        "seed": 7,
    }
    assert "--config asked.toml SCRIPT" in capsys.readouterr().out


@dataclass
class Held:
    path: Path
    values: tuple[float, ...]


class Pair(NamedTuple):
    first: int
    second: object


def test_values_become_plain() -> None:
    held = Held(Path("a/b"), (1.0, math.nan, math.inf))
    assert answer.plain(Pair(1, {2: held})) == {
        "first": 1, "second": {"2": {"path": "a/b", "values": [1.0, None, None]}},
    }  # fmt: skip
    assert answer.plain([np.int64(3), answer.Form.JSON, True, None]) == [3, "json", True, None]
