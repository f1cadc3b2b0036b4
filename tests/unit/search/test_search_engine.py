"""Searches with real processes: both styles, crashes, kills, a person's word; the same in the end."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import search_functions as functions
from uneven import search
from uneven.cli import main
from uneven.errors import CheckpointError, ConfigError, DataError, TrainingError, UnevenError, UnknownNameError
from uneven.fleet.engine.fleet_state import locked
from uneven.runtime.jobs.processes import import_path
from uneven.search import engine, search_file
from uneven.search.control import SearchControl, tell
from uneven.search.search_events import EVENTS, read_events
from uneven.search.search_result import stretches
from uneven_bench.forked.scripts import Script

RATE = {"rate": search.loguniform(1e-3, 0.3)}


def run(
    train: Callable[..., object], directory: Path, space: dict[str, Any] | None = None, **given: Any
) -> search.SearchResult:
    asked = {"metric": "score", "devices": 2, "directory": directory, "progress": False, **given}
    return search.run(train, space or {}, **asked)


def climb(
    directory: Path, noted: Path | None = None, pause_s: float | None = None, **given: Any
) -> search.SearchResult:
    space: dict[str, Any] = dict(RATE)
    if noted is not None:
        space["noted_in"] = str(noted)
    if pause_s is not None:
        space["pause_s"] = pause_s
    asked = {"metric": "loss", "mode": "min", "trials": 9, "scheduler": "asha-promote:max_t=9,reduction_factor=3"}
    return run(functions.climbs, directory, space, **{**asked, **given})


def outcome(result: search.SearchResult) -> list[tuple[int, float, float, str]]:
    return sorted((row.number, row.metric, row.t, row.status) for row in result.rows)


def test_paused_trials_go_on_where_they_were(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    result = climb(tmp_path / "halved", noted, devices=1)
    assert [row.t for row in result.rows].count(9) >= 1
    assert Counter(noted.read_text().split("\n"))[""] == 1
    steps = Counter(noted.read_text().splitlines())
    assert set(steps.values()) == {1}  # nobody took a step twice
    best = result.best
    whole = climb(tmp_path / "whole", scheduler="fifo", max_t=best.t, devices=1)
    same = next(row for row in whole.rows if row.number == best.number)
    assert (same.metric, same.best_t) == (best.metric, best.best_t)  # to the bit: paused, and not
    assert best.checkpoint is not None
    assert torch.load(best.checkpoint, weights_only=True)["t"] == best.best_t


def test_a_class_is_stepped_and_a_population_clones(tmp_path: Path) -> None:
    result = run(
        functions.Counts, tmp_path, {"x": search.uniform(0, 1)}, trials=4,
        scheduler="pbt:perturbation_interval=2,synch=true,max_t=8",
    )  # fmt: skip
    assert [row.t for row in result.rows] == [8] * 4
    assert "continues from trial" in json.dumps(result.events())


def test_who_crashes_is_tried_again_from_its_last_state_and_who_diverges_is_not(tmp_path: Path) -> None:
    result = run(functions.crashes, tmp_path, trials=4, max_failures=1)
    rows = {row.number: row for row in result.rows}
    assert (rows[0].status, rows[0].t, rows[3].t) == ("terminated", 5, 5)
    assert rows[1].status == "error"
    assert rows[1].why == "its process was killed by SIGKILL"
    assert rows[2].why == "diverged: score is not finite at 2"
    assert {row.number for row in result.failed} == {1, 2}
    told = str(result).splitlines()[-3:]
    assert told[0] == "2 of 4 trials failed:"
    assert "  trial 2: diverged: score is not finite at 2" in told
    fails = Counter(event["trial"] for event in result.events() if event["event"] == "fail")
    assert fails == {0: 1, 1: 2}
    assert list(result.frame()["trial"]) == [row.number for row in result.rows]
    result.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "diverged: score is not finite at 2" in page
    assert "Devices over time" in page
    again = run(functions.crashes, tmp_path, trials=4, max_failures=1)  # it is over: nothing is trained
    assert outcome(again) == outcome(result)


def test_settings_are_asked_for_while_training(tmp_path: Path) -> None:
    result = run(functions.asks, tmp_path, trials=3)
    assert all({"momentum", "layers", "kind"} == set(row.params) for row in result.rows)
    assert len({row.params["momentum"] for row in result.rows}) == 3


def read(directory: Path, **given: Any) -> search.SearchResult:
    return run(
        functions.reads, directory, {"batch": search.grid(7, 16, 40, 90)}, trials=4, validate=functions.Numbers(20),
        **{"data": functions.Numbers(90), "transform": functions.jitter, "chunk": 16, **given},
    )  # fmt: skip


def test_trials_read_what_was_prepared_once_for_all(tmp_path: Path) -> None:
    shared, narrow, apart = (
        read(tmp_path / "shared"),
        read(tmp_path / "narrow", data_bytes=700),  # room for 3 chunks of 16 · 12 bytes: they are made again
        read(tmp_path / "apart", share=False),
    )
    assert [row.status for row in shared.rows] == ["terminated"] * 4, shared.rows[0].why
    assert outcome(shared) == outcome(narrow) == outcome(apart)  # to the bit: who prepared does not matter
    (end,) = (event for event in shared.events() if event["event"] == "data")
    assert end["prepared"] == 3 * 6 + 2  # each epoch of 90 samples in 6 chunks, and the validation set, once
    assert end["read"] == 4 * 3 * (6 + 2)
    (end,) = (event for event in narrow.events() if event["event"] == "data")
    assert end["prepared"] > 3 * 6 + 2


def learn(directory: Path, how: str = "", **given: Any) -> search.SearchResult:
    return run(
        functions.learns, directory, {"how": how, "noted_in": str(directory / "noted")}, metric="loss", mode="min",
        data=functions.Numbers(90), transform=functions.jitter, validate=functions.Numbers(20), chunk=16, **given,
    )  # fmt: skip


def test_a_trial_on_several_devices_learns_what_it_does_on_one(tmp_path: Path) -> None:
    alone = learn(tmp_path / "alone")
    together = learn(tmp_path / "together", "kill", placing="flotillas", max_failures=1)
    seen = [(event["device"], *event.get("beside", ())) for event in together.events() if event["event"] == "report"]
    assert seen[:2] == [(0,), (0, 1)]  # measured on one device, then on both, as long as that is faster
    assert [event["why"] for event in together.events() if event["event"] == "fail"] == [
        "its process was killed by SIGKILL"
    ]
    curve, same = (
        [event["metric"] for event in one.events() if event["event"] == "report"] for one in (alone, together)
    )
    assert same == pytest.approx(curve, rel=1e-5)
    assert (0, 1) in [span.devices for span in stretches(together.events())]


def test_a_trial_that_cannot_be_trained_on_several_devices_is_trained_on_one(tmp_path: Path) -> None:
    result = learn(tmp_path, "alone", placing="flotillas")
    fails = [event for event in result.events() if event["event"] == "fail"]
    assert [(event["why"].splitlines()[-1], event["lost"]) for event in fails] == [("ValueError: not in company", True)]
    assert (result.best.status, result.best.t) == ("terminated", 4)
    with pytest.raises(ConfigError, match="give data"):
        run(functions.waits, tmp_path / "no", placing="flotillas")


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"data": functions.Numbers(90, broken=0)}, DataError, "sample 0 of the training set"),
        ({"data": functions.Numbers(90, broken=37)}, DataError, "sample 37 of the training set"),
        ({"data_bytes": 100}, ConfigError, "data_bytes="),
        ({"data": None}, ConfigError, "give data"),
    ],
)
def test_data_that_cannot_be_read(tmp_path: Path, given: dict[str, Any], kind: type[UnevenError], said: str) -> None:
    with pytest.raises(kind, match=said):
        read(tmp_path, **given)


def test_a_search_without_data_has_no_epochs(tmp_path: Path) -> None:
    result = run(functions.reads, tmp_path, {"batch": 3})
    assert "the search has no data" in result.rows[0].why


KILLED = """
import sys
sys.path.insert(0, {tests!r})
import test_search_engine as here
from pathlib import Path
from uneven_bench.forked.run import fork_workers
if __name__ == "__main__":
    fork_workers()
    here.climb(Path({directory!r}), Path({noted!r}), 0.03, devices=1)
"""


def test_a_search_that_is_killed_ends_as_the_undisturbed_one(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    undisturbed = climb(tmp_path / "whole", tmp_path / "noted too", 0.0, devices=1)
    directory = tmp_path / "killed"
    here = Path(__file__).parent
    script = tmp_path / "search.py"
    script.write_text(KILLED.format(tests=str(here), directory=str(directory), noted=str(noted)))
    path = os.pathsep.join([str(here), str(here.parents[1]), import_path()])
    with Script([str(script)], env={**os.environ, "PYTHONPATH": path}) as child:
        _wait(lambda: _reports(directory) >= 8)
        family = psutil.Process(child.pid).children(recursive=True)
        child.kill()
        psutil.wait_procs(family, timeout=30)
    with (directory / EVENTS).open("a") as file:
        file.write('{"event":"repo')  # and what was being written was cut off
    result = climb(directory, noted, 0.03, devices=1)
    ours, theirs = ([row[1:] for row in outcome(one)] for one in (result, undisturbed))
    assert ours == theirs
    steps = Counter(noted.read_text().splitlines())
    assert sum(steps.values()) <= len(steps) + 3  # what was trained since the last state that was kept


def _reports(directory: Path) -> int:
    path = directory / EVENTS
    return path.read_text().count('"event":"report"') if path.exists() else 0


def _wait(ready: Callable[[], bool], within_s: float = 100) -> None:
    until_s = time.monotonic() + within_s
    while not ready():
        assert time.monotonic() < until_s, "it never came"
        time.sleep(0.01)


def test_a_person_stops_resumes_and_clones_at_another_terminal(tmp_path: Path) -> None:
    said: list[str] = []
    refused: list[str] = []

    def person() -> None:
        _wait(lambda: _reports(tmp_path) >= 6)
        said.append(tell(tmp_path, "clone", 0, {"x": 3}))
        said.append(tell(tmp_path, "stop", 0))
        _wait(lambda: _count(tmp_path, "halt", 0) == 1)
        before = _count(tmp_path, "report", 0)
        said.append(tell(tmp_path, "resume", 0))
        said.append(tell(tmp_path, "stop", 1))
        for verb, trial, changes in (("stop", 77, {}), ("clone", 0, {"y": 1}), ("clone", 0, {"x": 9}), ("sing", 0, {})):
            try:
                tell(tmp_path, verb, trial, changes)
            except ConfigError as error:
                refused.append(str(error))
        strange = tmp_path / "control" / "1.note"
        strange.write_text('{"verb": "stop", "trial": 2}')
        if os.geteuid() == 0:
            os.chown(strange, 12345, 12345)
        _wait(lambda: strange.with_suffix(".answer").exists())
        refused.append(strange.with_suffix(".answer").read_text())
        _wait(lambda: _count(tmp_path, "report", 0) >= before + 2 and _count(tmp_path, "report", 2) >= 1)
        said.append(tell(tmp_path, "stop", 0))
        said.append(tell(tmp_path, "stop", 2))

    talk = threading.Thread(target=person)
    talk.start()
    result = run(functions.waits, tmp_path, {"x": search.choice(1, 2, 3)}, trials=2)
    talk.join()
    assert re.match(r"trial 2 continues from trial 0 at \d+", said[0])
    stops = "trial {} stops at its next report".format
    assert said[1:] == [stops(0), "trial 0 is next", stops(1), stops(0), stops(2)]
    steps = [event["metric"] for event in result.events() if event["event"] == "report" and event["trial"] == 0]
    assert steps == list(range(len(steps)))  # resumed where it was stopped: no step twice, none left out
    rows = {row.number: row for row in result.rows}
    assert rows[2].params == {"x": 3}
    assert {row.why for row in rows.values()} == {"stopped by hand"}
    assert "trial" in refused[0]
    assert "no setting 'y'" in refused[1]
    assert "not in the space" in refused[2]
    assert "stop, resume, clone" in refused[3]
    if os.geteuid() == 0:
        assert "only the user" in refused[4]
    with pytest.raises(ConfigError, match="no search runs in"):
        tell(tmp_path, "stop", 0)


def test_a_search_that_begins_is_waited_for(tmp_path: Path) -> None:
    with locked(tmp_path):
        with pytest.raises(ConfigError, match="start to listen"):
            tell(tmp_path, "stop", 0, within_s=0.1)
        later = threading.Timer(0.2, lambda: SearchControl(tmp_path, lambda note: "heard"))
        later.start()
        with pytest.raises(ConfigError, match="did not answer"):
            tell(tmp_path, "stop", 0, within_s=0.6)
        later.join()


def _count(directory: Path, event: str, trial: int) -> int:
    return sum(one["event"] == event and one["trial"] == trial for one in read_events(directory))


@pytest.mark.parametrize(
    ("train", "given", "kind", "said"),
    [
        (functions.reports_something_else, {}, TrainingError, "never reported 'score'"),
        (functions.waits, {"metric": "loss"}, TrainingError, "never reported 'loss', the search's metric, but score"),
        (functions.waits, {"metric": "loss", "max_t": 2}, TrainingError, "trial 0 never reported"),
        (lambda trial: None, {}, ConfigError, "cannot be sent"),
        (3, {}, ConfigError, "give a function"),
        (int, {}, ConfigError, "derive it from search.Trainable"),
        (functions.trivial, {"placing": "best"}, ConfigError, "placing"),
        (functions.trivial, {"placing": "flotillas"}, ConfigError, "give data"),
        (functions.trivial, {"placing": "flotillas", "engine": "ray", "data": [1]}, ConfigError, "one device each"),
        (functions.trivial, {"timeout_s": 0}, ConfigError, "timeout_s"),
        (functions.trivial, {"trails": 3}, UnknownNameError, "trials"),
        (functions.trivial, {"engine": "slurm"}, UnknownNameError, "engine"),
        (functions.trivial, {"scheduler": "asha:max_t=1,grace_period=2"}, ConfigError, "grace_period"),
        (functions.trivial, {"searcher": "optuna:tpo"}, UnknownNameError, "tpe"),
        (functions.trivial, {"scheduler": "optuna:mean"}, UnknownNameError, "median"),
    ],
)
def test_bad_input_is_refused(
    tmp_path: Path, train: Any, given: dict[str, Any], kind: type[UnevenError], said: str
) -> None:
    with pytest.raises(kind, match=re.escape(said)):
        run(train, tmp_path / "run", {"x": search.uniform(0, 1)}, **given)
    started = [event for event in read_events(tmp_path / "run") if event["event"] == "start"]
    assert bool(started) == (kind is TrainingError)


@pytest.mark.parametrize(
    ("how", "said"), [("text", "give a number"), ("twice", "called twice"), ("part", "no state_dict")]
)
def test_what_a_trial_cannot_take_is_said_in_its_row(tmp_path: Path, how: str, said: str) -> None:
    result = run(functions.misuses, tmp_path, {"how": how})
    assert said in result.rows[0].why
    assert result.rows[0].status == "error"


def test_a_directory_holds_one_search(tmp_path: Path) -> None:
    space = {"x": search.uniform(0, 1)}
    first = run(functions.trivial, tmp_path, space, trials=3)
    more = run(functions.trivial, tmp_path, space, trials=5, devices=3)  # more trials, on more devices
    assert {row.number for row in first.rows} < {row.number for row in more.rows}
    assert [more.rows[i].metric for i in range(5)] == sorted((row.metric for row in more.rows), reverse=True)
    for changed in ({"seed": 1}, {"scheduler": "median"}, {"mode": "min"}):
        with pytest.raises(CheckpointError, match=next(iter(changed))):
            run(functions.trivial, tmp_path, space, **changed)
    events = list(read_events(tmp_path))
    (tmp_path / EVENTS).write_text("[]\n")
    with pytest.raises(CheckpointError, match="is not an event"):
        run(functions.trivial, tmp_path, space, trials=3)
    for one in events:
        if one["event"] == "end":
            del one["trial"]
    lines = map(json.dumps, events)
    (tmp_path / EVENTS).write_text("\n".join([*lines, ""]))
    with pytest.raises(CheckpointError, match=r"does not follow.*'trial'"):
        run(functions.trivial, tmp_path, space, trials=3)


def test_a_trial_that_hangs_has_failed(tmp_path: Path) -> None:
    result = run(functions.climbs, tmp_path, {"rate": 0.1, "pause_s": 60.0}, timeout_s=1.0, metric="loss")
    assert "for 1 s" in result.rows[0].why


def test_a_hang_at_the_start_is_reported_with_the_limit_of_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LOOK_S", 0.0)
    monkeypatch.setattr(engine, "START_S", 1e-6)
    with pytest.raises(TrainingError, match=r"trial \d+ sent nothing for 1e-06 s"):
        run(functions.silent, tmp_path, {"x": search.uniform(0, 1)}, timeout_s=1e-7, trials=4)


def test_from_a_file_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "search.toml").write_text(
        '[search]\ntrain = "search_functions:trivial"\nmetric = "score"\ntrials = 4\nsearcher = "optuna:tpe"\n'
        '[space]\nx = { uniform = [0, 1] }\nkind = { choice = ["a", "b"] }\n'
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["search", "run", "search.toml", "--devices", "1", "--report", "page.html", "--trials", "5"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) == 6
    assert (tmp_path / "page.html").exists()
    with pytest.raises(SystemExit) as ended:
        main(["search", "show", "runs/search", "--format", "json"])
    assert ended.value.code == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["metric"], shown["failed"], len(shown["trials"])) == ("score", 0, 5)
    asked = json.loads((tmp_path / "runs" / "search" / "search.json").read_text())
    assert asked["searcher"] == "optuna:tpe"
    again = ["search", "run", "search.toml", "--devices", "1", "--run-dir", "warm", "--warm-start", "runs/search"]
    for trials in ("2", "3"):  # the second goes on with what was learnt, and the earlier search need not be there
        with pytest.raises(SystemExit) as ended:
            main([*again, "--trials", trials, "--log-to", "tensorboard:board"])
        assert ended.value.code == 0
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    first, *rest = read_events(tmp_path / "warm")
    assert len(first["results"]) == 5
    assert [event["event"] for event in (first, *rest)].count("learn") == 1
    assert len(list((tmp_path / "board").glob("trial-*/events.*"))) == 3
    with pytest.raises(SystemExit):
        main([*again[:6], "warm"])
    assert "has a search with warm_start=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (["run", "nowhere.toml"], "no file nowhere.toml"),
        (["nowhere.toml"], "unknown command of uneven search 'nowhere.toml' (known: clone, forecast,"),
        (["stop", "runs/x"], "Missing argument 'TRIAL' (see `uneven search stop --help`)"),
        (["show", "runs/x"], "runs/x"),
        (["stop", "runs/x", "3"], "no search runs in"),
        (["stop", "runs/x", "3", "lr=1"], "unexpected extra argument"),
        (["clone", "runs/x", "3", "lr"], "KEY=VALUE"),
    ],
)
def test_what_cannot_be_meant_on_the_command_line(
    tmp_path: Path, said: list[str], why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["search", *said])
    assert ended.value.code == 2
    assert why in " ".join(capsys.readouterr().err.split())


def test_data_are_named_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "search.toml"
    path.write_text(
        '[search]\ntrain = "search_functions:reads"\nmetric = "score"\ndata = "search_functions:ninety"\n'
        'transform = "search_functions:jitter"\nshare = false\n'
    )
    given = search_file.read(path)
    assert (len(given["data"]), given["transform"], given["share"]) == (90, functions.jitter, False)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[search]\nmetric = "a"', "'train' is missing"),
        ('[serach]\nmetric = "a"', "search"),
        ('[search]\ntrain = "search_functions:nobody"\nmetric = "a"', "has no"),
        (
            '[search]\ntrain = "search_functions:trivial"\nmetric = "a"\n[space]\nx = { loguniform = [1] }',
            "list of two numbers",
        ),
        ('[search]\ntrain = "search_functions:trivial"\nmetric = "a"\n[space]\nx = { lag = [1, 2] }', "log"),
        ('[search]\ntrain = "search_functions:trivial"\nmetric = "a"\n[space]\nx = { }', "one kind"),
        ('[search]\ntrain = "search_functions:trivial"\nmetric = "a"\ndevices = 2', "give --devices"),
    ],
)
def test_a_file_that_cannot_be_meant(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "search.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        search_file.read(path)
