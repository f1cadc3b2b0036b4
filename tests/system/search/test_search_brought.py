"""Searches as users of Optuna, Ray Tune, FLAML and Syne Tune write them: as there, or refused by name."""

from __future__ import annotations

import importlib.util
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest

import search_peers as peers
from brought import brought, refusal
from uneven import search
from uneven.errors import ConfigError
from uneven.search import search_file
from uneven.search.search_events import read_events

optuna.logging.set_verbosity(optuna.logging.ERROR)
TWO = {"x": search.uniform(0, 1), "n": search.integer(0, 9)}
POINTS = [{"x": 0.5}, {"n": 5, "x": 0.25}]


def run(train: Any, directory: Path, space: dict[str, Any] | None = None, **given: Any) -> search.SearchResult:
    asked = {"metric": "score", "trials": 4, "devices": 1, "progress": False, "searcher": "optuna:tpe", **given}
    return search.run(train, space or {}, directory=directory, **asked)


def real(objective: Any, trials: int = 4, points: list[dict[str, Any]] | None = None, **given: Any) -> optuna.Study:
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0), **given)
    for point in points or []:
        study.enqueue_trial(point)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ranges that their steps do not divide
        study.optimize(objective, n_trials=trials)
    return study


def outcome(result: search.SearchResult) -> list[tuple[float, dict[str, Any]]]:
    return [(row.metric, dict(row.params)) for row in sorted(result.rows, key=lambda row: row.number)]


def optuna_outcome(study: optuna.Study) -> list[tuple[float | None, dict[str, Any]]]:
    return [(one.value, one.params) for one in study.trials]


@pytest.mark.parametrize("objective", [
    pytest.param(peers.returns, marks=brought("searches", "Optuna", "an objective that returns a number")),
    pytest.param(peers.steps_of_a_float, marks=brought("searches", "Optuna", "`suggest_float(…, step=0.3)`")),
    pytest.param(peers.steps_of_an_int, marks=brought("searches", "Optuna", "`suggest_int(…, step=3)`, `log=True`")),
    pytest.param(peers.equal_ends, marks=brought("searches", "Optuna", "`suggest_float(\"x\", 1, 1)`")),
    pytest.param(peers.ranges_differ, marks=brought("searches", "Optuna", "ranges that differ between trials")),
    pytest.param(peers.conditional, marks=brought("searches", "Optuna", "conditional settings")),
    pytest.param(peers.folds, marks=brought(
        "searches", "Optuna", "`report(value, step)`, `should_prune()`, and another number returned")),
    pytest.param(peers.by_name, marks=brought("searches", "Optuna", "`report(value=…, step=…)` with gaps")),
    pytest.param(peers.a_step_twice, marks=brought("searches", "Optuna", "the same step reported twice")),
    pytest.param(partial(peers.scaled, factor=3.0), marks=brought("searches", "Optuna", "`functools.partial`")),
    pytest.param(peers.Objective(3.0), marks=brought("searches", "Optuna", "an object with `__call__`")),
    pytest.param(peers.Objective(3.0).method, marks=brought("searches", "Optuna", "a method of an object")),
    pytest.param(peers.Objective.static, marks=brought("searches", "Optuna", "a static method")),
])  # fmt: skip
def test_an_objective_of_optuna_has_the_trials_of_optuna(objective: Any, tmp_path: Path) -> None:
    result = run(objective, tmp_path)
    assert outcome(result) == optuna_outcome(real(objective))
    result.report(tmp_path / "page.html")
    exported = result.optuna()
    assert optuna_outcome(exported) == outcome(result)
    assert [one.state for one in exported.trials] == [optuna.trial.TrialState.COMPLETE] * 4


@brought("searches", "Optuna", "`optuna.TrialPruned` raised by the objective")
def test_an_objective_may_prune_its_trial_itself(tmp_path: Path) -> None:
    result = run(peers.gives_up, tmp_path)
    known = real(peers.gives_up)
    assert [row.metric == row.metric for row in sorted(result.rows, key=lambda row: row.number)] == [
        one.value is not None for one in known.trials
    ]
    assert not result.failed
    assert [one.state for one in result.optuna().trials] == [one.state for one in known.trials]


@pytest.mark.parametrize(("name", "pruner"), [
    ("median", optuna.pruners.MedianPruner), ("halving", optuna.pruners.SuccessiveHalvingPruner),
])  # fmt: skip
@brought("searches", "Optuna", "pruners, with `report(value, step)`")
def test_a_pruner_stops_the_trials_that_it_stops_in_optuna(name: str, pruner: Any, tmp_path: Path) -> None:
    result = run(peers.climbs, tmp_path, trials=10, scheduler=f"optuna:{name}")
    known = real(peers.climbs, 10, pruner=pruner())
    reports = Counter(event["trial"] for event in result.events() if event["event"] == "report")
    assert [reports[trial] for trial in range(10)] == [len(one.intermediate_values) for one in known.trials]
    assert min(reports.values()) < 9 == max(reports.values())
    exported = result.optuna()
    assert [(one.state, one.intermediate_values) for one in exported.trials] == [
        (one.state, one.intermediate_values) for one in known.trials
    ]


@pytest.mark.parametrize(("train", "space"), [
    pytest.param(peers.two, None, marks=brought("searches", "Optuna", "`enqueue_trial`, as `points_to_evaluate=[…]`")),
    pytest.param(peers.takes_two, TWO, marks=brought("searches", "Ray Tune, FLAML, Syne Tune", "`points_to_evaluate`")),
])  # fmt: skip
def test_known_settings_are_tried_first(train: Any, space: dict[str, Any], tmp_path: Path) -> None:
    asked = {"points_to_evaluate": POINTS, "scheduler": "fifo"}
    first = run(train, tmp_path, space, **asked)
    assert outcome(first) == optuna_outcome(real(peers.two, points=POINTS))
    more = run(train, tmp_path, space, **asked, trials=6)  # it goes on with what was learnt
    assert outcome(more) == optuna_outcome(real(peers.two, 6, points=POINTS))


def test_a_grid_begins_after_the_known_settings(tmp_path: Path) -> None:
    space = {"x": search.grid([1, 2]), "n": search.grid(3, 4)}
    result = run(peers.takes_two, tmp_path, space, trials=9, searcher="grid", points_to_evaluate=[{"x": 2, "n": 4}])
    assert [metric for metric, _ in outcome(result)] == [6, 4, 5, 5, 6]


@pytest.mark.parametrize("train", [
    pytest.param(peers.reports_a_mapping, marks=brought("searches", "Ray Tune", "`report({\"score\": …})`")),
    pytest.param(peers.returns_a_mapping, marks=brought("searches", "Ray Tune", "a function that returns a mapping")),
])  # fmt: skip
def test_metrics_come_in_a_mapping(train: Any, tmp_path: Path) -> None:
    result = run(train, tmp_path, {"x": search.choice([1, 2])}, trials=2, searcher="grid")
    last = 2 if train is peers.reports_a_mapping else 1
    assert outcome(result) == [(last, {"x": 1}), (2 * last, {"x": 2})]
    assert {event["metrics"]["loss"] for event in result.events() if "metric" in event} == {1.0}
    assert result.track(Written()) == 4 * (3 if train is peers.reports_a_mapping else 1)


class Written:
    """A tool that keeps curves; nothing of them is needed here."""

    def begin(self, name: str, params: Any, *, group: str) -> Written:
        return self

    def add(self, values: Any) -> None:
        pass

    def end(self, summary: Any) -> None:
        pass


@brought("searches", "Ray Tune, Syne Tune", "`choice([…])` and `grid_search([…])`, with one list")
def test_a_list_of_choices_is_the_choices() -> None:
    assert search.choice([1, 2]) == search.choice((1, 2)) == search.choice(1, 2)
    assert search.grid(range(3)) == search.grid(0, 1, 2)


@brought("searches", "Ray Tune, FLAML", "`time_budget_s`")
def test_a_search_ends_with_its_time(tmp_path: Path) -> None:
    result = run(peers.forever, tmp_path / "run", trials=5, time_budget_s=0.2)
    assert [row.why for row in result.rows] == ["ended with the search"]
    (tmp_path / "file.toml").write_text(
        '[search]\ntrain = "search_peers:forever"\nmetric = "score"\ntime_budget_s = 9\n'
        "points_to_evaluate = [{ x = 0.5 }]\n[space]\nx = { choice = [0.5, 1] }\n"
    )
    given = search_file.read(tmp_path / "file.toml")
    assert (given["time_budget_s"], given["points_to_evaluate"]) == (9.0, ({"x": 0.5},))


@brought("searches", "Optuna", 'a storage: `result.optuna("sqlite:///…")`, `warm_start="sqlite:///…"`')
def test_a_storage_of_optuna_is_written_and_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    result = run(peers.two, tmp_path / "run", trials=12)
    written = result.optuna(url)
    loaded = optuna.load_study(study_name="run", storage=url)
    assert optuna_outcome(loaded) == outcome(result)
    assert (loaded.best_value, loaded.best_params) == (result.best.metric, result.best.params)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.add_trials(loaded.trials)
    study.optimize(peers.two, n_trials=2)
    for name, source in (("url", url), ("study", written)):
        warm = run(peers.takes_two, tmp_path / name, TWO, trials=2, warm_start=source)
        assert outcome(warm) == optuna_outcome(study)[12:], "Optuna would have gone on so"
    with pytest.raises(ConfigError, match="cannot make the study 'run'"):
        result.optuna(url)
    same = run(peers.takes_two, tmp_path / "url", TWO, trials=3, warm_start=url)
    assert len(same.rows) == 3


@pytest.mark.parametrize(("source", "why"), [
    ("sqlite:///no.db", "no file no.db"),
    ("sqlite:///file.db", "cannot be read .*not a database"),
    ("mysql://me:secret@host/x", r"mysql://host/x cannot be read"),
    (3, "give the directory of a search"),
    (optuna.create_study(), 'optimizes with minimize, but this search with mode="max"'),
    (optuna.create_study(directions=["maximize", "minimize"]), "optimizes with maximize, minimize"),
])  # fmt: skip
@brought("searches", "Optuna", "a storage that cannot be read, or optimizes in another direction", refused=True)
def test_a_storage_that_cannot_be_used_is_refused(
    source: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.db").write_text("words")
    with refusal(why):
        run(peers.takes_two, tmp_path / "run", TWO, warm_start=source)
    assert not Path("no.db").exists()


@pytest.mark.parametrize(("objective", "why"), [
    pytest.param(peers.a_tuple, "give one number", marks=brought(
        "searches", "Optuna", "several objectives: a tuple returned", refused=True)),
    pytest.param(peers.nothing, "never reported 'score'.*return it", marks=brought(
        "searches", "Optuna", "an objective that returns `None`", refused=True)),
    pytest.param(peers.a_word, "give a number", marks=brought(
        "searches", "Optuna", "a string returned", refused=True)),
    pytest.param(peers.a_tensor, r"give float\(score\)", marks=brought(
        "searches", "Optuna", "a tensor returned", refused=True)),
    pytest.param(peers.another_metric, "returned loss, but not 'score'", marks=brought(
        "searches", "Ray Tune", "a mapping without the metric", refused=True)),
    pytest.param(peers.yields, "is a generator", marks=brought(
        "searches", "Ray Tune", "a function that yields", refused=True)),
    pytest.param(peers.lists, "map texts to objects", marks=brought(
        "searches", "Optuna", "`suggest_categorical` of lists", refused=True)),
    pytest.param(peers.dictionaries, "map texts to objects", marks=brought(
        "searches", "Optuna", "`suggest_categorical` of dictionaries", refused=True)),
    pytest.param(peers.equals, "give each once", marks=brought(
        "searches", "Optuna", "`suggest_categorical` of equal values", refused=True)),
    pytest.param(peers.steps_and_log, "leave out step or log", marks=brought(
        "searches", "Optuna", "`step` together with `log=True`", refused=True)),
    pytest.param(peers.a_negative_step, "whole numbers from 0 on", marks=brought(
        "searches", "Optuna", "`report(value, -1)`", refused=True)),
    pytest.param(peers.no_value, "give a number", marks=brought(
        "searches", "Optuna", "`report(None, step)`", refused=True)),
    pytest.param(peers.user_attribute, r"trial.set_user_attr .*trial\.report", marks=brought(
        "searches", "Optuna", "`set_user_attr`, `trial.study`", refused=True)),
    pytest.param(peers.old_range, r"suggest_float\(…\), with log=True", marks=brought(
        "searches", "Optuna", "`suggest_uniform`, `suggest_loguniform`, `suggest_discrete_uniform`", refused=True)),
    pytest.param(peers.by_get, "trial.params is the dictionary", marks=brought(
        "searches", "Ray Tune", "`config.get(…)`, `config.items()`", refused=True)),
    pytest.param(peers.by_stars, "trial.params is the dictionary", marks=brought(
        "searches", "Ray Tune", "`**config`", refused=True)),
    pytest.param(lambda trial: 1.0, "at the top level of a module", marks=brought(
        "searches", "Optuna", "a `lambda`", refused=True)),
    pytest.param(partial(lambda trial, k: k, k=1.0), "at the top level of a module", marks=brought(
        "searches", "Optuna", "`functools.partial` of a `lambda`", refused=True)),
])  # fmt: skip
def test_what_a_search_cannot_take_is_refused(objective: Any, why: str, tmp_path: Path) -> None:
    with refusal(why):
        run(objective, tmp_path, trials=1).best  # noqa: B018


@pytest.mark.skipif(importlib.util.find_spec("cmaes") is not None, reason="cmaes is installed")
def test_a_sampler_without_its_package_is_refused(tmp_path: Path) -> None:
    with refusal("pip install cmaes"):
        run(peers.takes_two, tmp_path / "run", TWO, searcher="optuna:cmaes")
    assert not read_events(tmp_path / "run")


@brought("searches", "Optuna", "choices that differ between trials, under `optuna:tpe`", refused=True)
def test_choices_that_differ_fail_their_trials_and_not_the_search(tmp_path: Path) -> None:
    result = run(peers.choices_differ, tmp_path / "tpe")
    assert [row.status for row in sorted(result.rows, key=lambda row: row.number)] == ["terminated", "error"] * 2
    assert all("use the same choices" in row.why and 'searcher="random"' in row.why for row in result.failed)
    again = run(peers.choices_differ, tmp_path / "tpe", trials=6)  # what was refused leaves no trace
    assert [row.status for row in again.rows].count("terminated") == 3
    with refusal("use the same choices"):
        raise ConfigError(result.failed[0].why)


@brought("searches", "Ray Tune", "choices that differ between trials, under `random`")
def test_choices_may_differ_where_no_searcher_learns(tmp_path: Path) -> None:
    result = run(peers.choices_differ, tmp_path, searcher="random")
    assert not result.failed
    kinds = [one.distributions.get("x") for one in result.optuna().trials]
    assert len(set(map(str, kinds))) == 2, "Optuna keeps one kind of choice a study, and the others as attributes"


@pytest.mark.parametrize(("given", "why"), [
    ({"points_to_evaluate": {"x": 1}}, "give a list of settings"),
    ({"points_to_evaluate": [{"x": 2}]}, "x=2 is not in the space"),
    ({"points_to_evaluate": [{"z": 2}]}, "no setting 'z'"),
    ({"points_to_evaluate": [{"x": 0.5}] * 5}, "give at least as many trials"),
    ({"time_budget_s": 0}, "give a number of seconds above 0"),
    ({"time_budget_s": "1m"}, "give a number of seconds above 0"),
    ({"n_trials": 3}, "write trials="),
    ({"num_samples": 3}, "write trials="),
    ({"direction": "minimize"}, 'write mode="min"'),
    ({"timeout": 3}, "write time_budget_s="),
    ({"evaluated_rewards": [1]}, "write warm_start="),
])  # fmt: skip
@brought(
    "searches", "Optuna, Ray Tune, FLAML", "arguments with the other tool's name, or of another type", refused=True
)
def test_an_argument_that_cannot_be_meant_is_refused(given: dict[str, Any], why: str, tmp_path: Path) -> None:
    with refusal(why):
        run(peers.takes_two, tmp_path / "run", TWO, **given)
    assert not read_events(tmp_path / "run")
