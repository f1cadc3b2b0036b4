"""Curves for tools that keep them, from finished runs and from one that goes on."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from sample_runs import SampleRun

from uneven.cli import main
from uneven.errors import ConfigError, UnknownNameError
from uneven.journal import read
from uneven.journal.report.pure.chart_series import run_data
from uneven.journal.report.pure.points import PointStream
from uneven.journal.report.terminal import WatchedRun
from uneven.journal.report.track import LoggedValue, Plain, TrackedRun, Tracker, tracker, tracking
from uneven.runtime.jobs.processes import import_path

SOURCE = Path(tracking.__file__).parents[3]


class Kept(Tracker):
    """A tool that keeps what it is told."""

    def __init__(self, where: str = "") -> None:
        self.runs: dict[str, Kept.Run] = {}

    class Run(TrackedRun):
        def __init__(self, settings: Any) -> None:
            self.settings, self.points, self.results = settings, list[LoggedValue](), None

        def add(self, points: Any) -> None:
            self.points += points

        def end(self, results: Any) -> None:
            assert self.results is None
            self.results = dict(results)

    def begin(self, name: str, settings: Any, *, group: str = "") -> TrackedRun:
        assert name not in self.runs
        self.runs[name] = Kept.Run(dict(settings))
        return self.runs[name]


def curve(points: list[LoggedValue], name: str) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in points if one.name == name]


def test_a_run_afterwards(tmp_path: Path) -> None:
    run, kept = SampleRun(iterations=12).write(tmp_path / "lab"), Kept()
    count = tracking.write(run, kept)
    (tracked,) = kept.runs.values()
    assert list(kept.runs) == ["lab"]
    assert len(tracked.points) == count
    data = run_data(read(run))
    assert curve(tracked.points, "user/loss") == [(row.iteration, row.value) for row in data.scalars["loss"]]
    assert curve(tracked.points, "rank 0/share") == [(i, SampleRun().shares(i)[0]) for i in range(12)]
    assert len(curve(tracked.points, "run/iteration_s")) == 11
    assert tracked.results is not None
    assert tracked.results["run/median_iteration_s"] == data.summary.iteration_s
    assert tracked.settings == data.runs[0].settings
    assert [one.step for one in tracked.points] == sorted(one.step for one in tracked.points)


def test_a_run_that_goes_on_gives_the_same_curves(tmp_path: Path) -> None:
    kept, live = Kept(), Kept()
    watched = WatchedRun(tmp_path / "lab", tracking.LiveTracking("lab", [live]))
    SampleRun(iterations=12).write(tmp_path / "lab")
    journals = {path: path.read_text().splitlines(keepends=True) for path in (tmp_path / "lab" / "journal").iterdir()}
    for path, lines in journals.items():
        path.write_text("".join(lines[: len(lines) // 2]))
    watched.update()
    early = len(live.runs["lab"].points)
    assert early > 0
    for path, lines in journals.items():
        with path.open("a") as file:
            file.writelines(lines[len(lines) // 2 :])
    watched.update()
    watched.end()
    tracking.write(tmp_path / "lab", kept)
    assert len(live.runs["lab"].points) > early
    assert sorted(live.runs["lab"].points) == sorted(kept.runs["lab"].points)
    assert live.runs["lab"].results == kept.runs["lab"].results


def test_what_a_resumed_run_repeats_stays_as_it_was_logged_first() -> None:
    stream = PointStream(after=7)
    assert stream.newest == 7


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("tensorbord:x", UnknownNameError, "'tensorbord'; did you mean 'tensorboard'"),
        ("mlflow", ConfigError, "--log-to mlflow: give a destination, for instance mlflow:curves"),
    ],
)
def test_tools_that_cannot_be(text: str, kind: type[ConfigError], message: str) -> None:
    with pytest.raises(kind, match=message):
        tracker(text)


LIBRARIES = {
    "wandb": "wandb",
    "mlflow": "mlflow",
    "tensorboard": "torch.utils.tensorboard.writer",
    "otel": "opentelemetry.context",
}


@pytest.mark.parametrize(("name", "library"), LIBRARIES.items())
def test_a_tool_that_is_missing_names_the_extra(name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"{tracking.__package__}.{name}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"{name} is not installed .*pip install '\.\[{name}\]'"):
        tracker(f"{name}:here")


def test_nobody_else_imports_these_tools() -> None:
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(
                name.split(".")[0] in ("wandb", "mlflow", "opentelemetry") or "tensorboard" in name.split(".")[2:3]
                for name in names
            ):
                found.add(path.relative_to(SOURCE).as_posix())
    assert found == {f"journal/report/track/{name}.py" for name in ("wandb", "mlflow", "tensorboard", "otel")}


SETTINGS: dict[str, Plain] = {"rate": 0.1, "kind": "sgd", "nothing": None}
POINTS = [
    LoggedValue("user/loss", 2.0, 0, 1.7e9),
    LoggedValue("rank 0/share", 3.0, 0, 1.7e9),
    LoggedValue("user/loss", 1.0, 1, 1.7e9 + 1),
]


def told(text: str) -> None:
    run = tracker(text).begin("one", SETTINGS, group="many")
    run.add(POINTS[:2])
    run.add(POINTS[2:])
    run.end({"best/loss": 1.0})


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_what_was_written(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    told(f"mlflow:{tmp_path / 'mlruns'}")
    told(f"mlflow:{tmp_path / 'mlruns'}")
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("many")
    runs = client.search_runs([experiment.experiment_id])
    assert [run.info.status for run in runs] == ["FINISHED", "FINISHED"]
    assert runs[0].data.params == {"rate": "0.1", "kind": "sgd", "nothing": "None"}
    assert runs[0].data.metrics == {"user/loss": 1.0, "rank 0/share": 3.0, "best/loss": 1.0}
    history = client.get_metric_history(runs[0].info.run_id, "user/loss")
    assert [(one.step, one.value) for one in history] == [(0, 2.0), (1, 1.0)]


@pytest.mark.skipif(find_spec("wandb") is None, reason="no wandb")
def test_wandb_keeps_a_run_offline(tmp_path: Path) -> None:
    # In a process of its own: importing it leaves folders behind, and using it a process.
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    env |= {"TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": import_path()}
    (tmp_path / "tmp").mkdir()
    run = SampleRun(iterations=4).write(tmp_path / "lab")
    command = [sys.executable, "-m", "uneven", "report", str(run), "--log-to", f"wandb:{tmp_path / 'curves'}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "curves").rglob("*.wandb")
    assert path.parent.name.startswith("offline-run-")
    kept = path.read_bytes()
    assert all(name in kept for name in (b"user/loss", b"rank 0/share", b"run/median_iteration_s", b"lb-bsp"))


def test_the_command_line_logs_to_several_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    run = SampleRun(iterations=4).write(tmp_path / "lab")
    monkeypatch.chdir(tmp_path)
    for command in ("report", "watch"):
        with pytest.raises(SystemExit) as ended:
            main([command, str(run), "--log-to", f"tensorboard:{command}", "--log-to", "tensorboard:more"])
        assert ended.value.code == 0
        assert list((tmp_path / command / "lab").glob("events.*"))
    assert len(list((tmp_path / "more" / "lab").glob("events.*"))) == 1, "the second replaces the first"
