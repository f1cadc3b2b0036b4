"""What an earlier search is good for: a warm start, a forecast, TensorBoard; no process is started."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from uneven.cli import main
from uneven.cli.search_forecast import speeds_of
from uneven.cluster import files
from uneven.errors import CheckpointError, ConfigError, UnknownNameError
from uneven.search.engine import SearchSnapshot
from uneven.search.pure.core import SearchCore
from uneven.search.pure.schedulers import schedulers
from uneven.search.pure.searchers import searchers
from uneven.search.pure.simulated_search import SearchForecast, cheapest, counts, recorded, simulate
from uneven.search.pure.space import Domain, Plain, Space, choice, loguniform
from uneven.search.pure.trial_records import SearchTerms, TrialRecord, TrialStatus
from uneven.search.search_events import EVENTS, kept, read_events
from uneven.search.search_result import SearchResult, stretches
from uneven.search.search_run import view
from uneven.search.warm_start import reopened, results_of

SPACE: dict[str, Domain | Plain] = {"rate": loguniform(1e-4, 1e-1), "width": choice(32, 64), "fixed": "yes"}


def quality(trial: TrialRecord, t: float) -> float:
    return (1 - abs(math.log10(float(trial.params["rate"])) + 2) / 4) * (1 - 0.5**t)  # type: ignore[arg-type]


def cost_s(trial: TrialRecord) -> float:
    return float(trial.params["width"]) / 32  # type: ignore[arg-type]


def searched(
    directory: Path, *, scheduler: str = "asha-promote:max_t=9,reduction_factor=3", searcher: str = "random",
    trials: int = 12, speeds: tuple[float, ...] = (1.0, 1.0), ends: Callable[[TrialRecord], float] | None = None,
    space: dict[str, Domain | Plain] = SPACE, **terms: Any,
) -> SearchCore:  # fmt: skip
    """A search as it lies on disk, played in virtual time."""
    asked = SearchTerms(metric="accuracy", trials=trials, **terms)
    core = SearchCore(asked, Space(space), schedulers.resolve(scheduler), searchers.resolve(searcher))
    said = asked.kept() | {"scheduler": scheduler, "searcher": searcher, "space": core.space.to_plain()}
    with kept(directory, said, core):
        simulate(core, quality, speeds=speeds, costs=cost_s, **({"ends": ends} if ends else {}))
    return core


# -------------------------------------------------------------------- reopened
def test_a_directory_holds_all_that_was_asked_and_decided(tmp_path: Path) -> None:
    core = searched(tmp_path)
    earlier = reopened(tmp_path)
    assert repr(earlier.core.trials) == repr(core.trials)
    assert len(earlier.new_core(5).trials) == 0


def test_a_directory_that_holds_no_search_or_another_versions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no search in"):
        reopened(tmp_path)
    searched(tmp_path)
    path = tmp_path / "search.json"
    asked = json.loads(path.read_text())
    path.write_text(json.dumps({**asked, "scheduler": "MyScheduler"}))
    with pytest.raises(UnknownNameError, match="MyScheduler"):
        reopened(tmp_path)
    del asked["space"]
    path.write_text(json.dumps(asked))
    with pytest.raises(CheckpointError, match="has no 'space'"):
        reopened(tmp_path)


def test_what_was_asked_is_bound_to_only_once_something_has_happened(tmp_path: Path) -> None:
    core = SearchCore(
        SearchTerms(metric="x", mode="max"), Space({}), schedulers.resolve("fifo"), searchers.resolve("random")
    )
    for seed in (0, 1):
        with kept(tmp_path, {"seed": seed}, core) as new:
            assert new
    with kept(tmp_path, {"seed": 1}, core):
        core.start()
    with pytest.raises(CheckpointError, match="seed=1, but 2"), kept(tmp_path, {"seed": 2}, core):
        pass


# -------------------------------------------------------------------- warm start
def warm(
    directory: Path, searcher: str = "optuna:tpe", space: dict[str, Domain | Plain] = SPACE, *, learn: bool = True
) -> tuple[SearchCore, list[dict[str, Any]]]:
    terms = SearchTerms(metric="accuracy", trials=12)
    events: list[dict[str, Any]] = []
    core = SearchCore(
        terms, Space(space), schedulers.resolve("fifo"), searchers.resolve(searcher),
        lambda event: events.append(json.loads(json.dumps(event))),
    )  # fmt: skip
    if learn:
        core.learn(results_of([directory], terms, core.space))
    return core, events


def test_a_searcher_that_has_learnt_begins_near_what_was_good(tmp_path: Path) -> None:
    searched(tmp_path, scheduler="fifo", trials=40, max_t=4)
    gaps = []
    for core, _ in (warm(tmp_path), warm(tmp_path, "limit:max_concurrent=3:optuna:tpe")):
        assert core.learnt == 40
        first = [core.start() for _ in range(3)]
        gaps += [abs(math.log10(float(one.params["rate"])) + 2) for one in first if one is not None]  # type: ignore[arg-type]
        assert all(one is not None and one.params["fixed"] == "yes" for one in first)
    assert sum(gaps) / len(gaps) < 0.5  # at random it would be 0.8


def test_a_search_with_a_warm_start_comes_back_from_its_own_events(tmp_path: Path) -> None:
    searched(tmp_path)
    first, events = warm(tmp_path)
    (tmp_path / EVENTS).unlink()  # the earlier search need not be there any more
    for _ in range(3):
        first.start()
    again, _ = warm(tmp_path, learn=False)
    for event in events:
        again.apply(event)
    assert again.learnt == first.learnt > 0
    assert repr(again.trials) == repr(first.trials)


def test_what_cannot_be_a_warm_start_is_refused(tmp_path: Path) -> None:
    searched(tmp_path / "run")
    with pytest.raises(ConfigError, match="does not use results"):
        warm(tmp_path / "run", "random")
    with pytest.raises(ConfigError, match=r"is in the space; trial 0 of .* has rate="):
        warm(tmp_path / "run", space={"rate": loguniform(1, 2)})
    with pytest.raises(ConfigError, match="no search in"):
        warm(tmp_path / "nowhere")
    searched(tmp_path / "min", mode="min")
    with pytest.raises(ConfigError, match="mode 'min'"):
        warm(tmp_path / "min")


# -------------------------------------------------------------------- forecast
@pytest.mark.parametrize(
    "scheduler", ["asha:max_t=9,reduction_factor=3", "asha-promote:max_t=9,reduction_factor=3", "hyperband:max_t=9"]
)
def test_a_search_is_forecast_as_it_went(tmp_path: Path, scheduler: str) -> None:
    core = searched(tmp_path, scheduler=scheduler, speeds=(1.0, 0.5))
    earlier = reopened(tmp_path)
    record = recorded(earlier.events)
    again = record.play(earlier.new_core(12), (1.0, 0.5))
    played = simulate(earlier.new_core(12), quality, speeds=(1.0, 0.5), costs=cost_s)
    assert abs(again.end_s / played.end_s - 1) < 0.1  # how slow the second device is, it has to find out
    assert again.units == played.units
    twice = record.play(earlier.new_core(24), (1.0, 0.5))
    assert 1.5 < twice.units / again.units < 3
    assert core.best is not None


def test_trials_that_return_by_themselves_do_so_in_the_forecast(tmp_path: Path) -> None:
    searched(tmp_path, scheduler="fifo", trials=4, ends=lambda trial: 3.0 + trial.number)
    earlier = reopened(tmp_path)
    assert recorded(earlier.events).play(earlier.new_core(4), (1.0,)).units == 3 + 4 + 5 + 6
    events = [event for event in earlier.events if event["event"] != "end"]
    with pytest.raises(ConfigError, match="no recorded trial has ended"):
        recorded(events).play(earlier.new_core(4), (1.0,))
    with pytest.raises(ConfigError, match="no reports yet"):
        recorded(events[:2])


def test_the_cheapest_number_of_devices_is_the_quickest_of_those_that_cost_nearly_the_same() -> None:
    made = [SearchForecast(n, 100 / n * (1 + waste), 100 * (1 + waste), 1, 1, 1) for n, waste in
            ((1, 0.0), (2, 0.03), (4, 0.3))]  # fmt: skip
    assert cheapest(made).devices == 2
    assert counts(1) == [1]
    assert counts(10) == [1, 2, 3, 4, 6, 8, 10]


def test_nodes_are_as_fast_as_their_cores_or_their_costs_say() -> None:
    assert speeds_of(files.load("demo4")) == pytest.approx([0.6, 0.4, 0.2, 0.1])
    assert max(speeds_of(files.load("lb_bsp_gpu16"))) == 1.0


def test_the_command_says_how_long_a_search_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    searched(tmp_path, trials=27)
    forecast = ["search", "forecast", str(tmp_path), "demo4"]
    with pytest.raises(SystemExit) as ended:
        main(forecast)
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "27 trials" in printed
    assert [words[0] for line in printed.splitlines() if (words := line.split()) and words[0].isdecimal()][-4:] == [
        *"1234"
    ]
    assert "Cheapest with" in printed
    assert "Quickest with 4" in printed
    with pytest.raises(SystemExit):
        main([*forecast, "--trials", "54"])
    assert "54 trials" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*forecast, "--format", "json"])
    told = json.loads(capsys.readouterr().out)
    assert ([row["devices"] for row in told["rows"]], told["quickest"]) == ([1, 2, 3, 4], 4)
    for asked, why in (
        (forecast[:3], "Missing argument 'CLUSTER'"),
        ([*forecast, "--trials", "0"], "--trials 0: "),
        ([*forecast, "--devices", "2"], "No such option: --devices"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(asked)
        assert ended.value.code == 2
        assert why in " ".join(capsys.readouterr().err.split())


# -------------------------------------------------------------------- its page
def test_the_page_shows_orders_of_magnitude_and_words(tmp_path: Path) -> None:
    core = searched(tmp_path, space={**SPACE, "kind": choice("plain", "odd")})
    SearchResult(core, tmp_path).report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"tickvals":[-4,-3,-2,-1],"ticktext":["0.0001","0.001","0.01","0.1"]' in page
    assert re.search(
        r'"label":"kind","values":[^a-z]*"tickvals":[^a-z]*"ticktext":\["(plain","odd|odd","plain)"\]', page
    )


def test_what_is_seen_while_it_runs_has_a_line_for_each_trial_however_narrow_the_terminal(tmp_path: Path) -> None:
    searched(tmp_path)
    earlier = reopened(tmp_path)
    curves: dict[int, list[tuple[float, float]]] = {}
    for event in earlier.events:
        if event["event"] == "report":
            curves.setdefault(event["trial"], []).append((event["t"], event["metric"]))
    earlier.core.learnt = 7
    earlier.core.trials[5].status = TrialStatus.RUNNING  # and it has no device
    moment = SearchSnapshot(earlier.core, ("cpu",), {3: (0,)}, curves, {3: 0.5}, 0, 2.0)
    for width in (80, 120):
        console = Console(width=width, record=True, file=StringIO())
        console.print(view(moment))
        text = console.export_text()
        assert "1 terminated, 1 held of 12 trials" in text
        assert "7 earlier results known" in text
        best = earlier.core.best
        assert best is not None
        rows = [line for line in text.splitlines() if re.match(r" *\d+  +0\.\d{4}", line)]
        assert len(rows) == 12
        assert f"{best.number}  {best.best:>8.5g}" in text
        assert max(map(len, text.splitlines())) <= width


def test_stretches_begin_when_training_does() -> None:
    events = [
        {"event": "start", "trial": 0, "at_s": 0.0},
        {"event": "report", "trial": 0, "at_s": 12.0, "seconds": 2.0, "device": 0, "move": "continue"},
        {"event": "report", "trial": 0, "at_s": 13.0, "seconds": 1.0, "device": 0, "move": "pause"},
    ]
    assert [(span.start_s, span.end_s) for span in stretches(events)] == [(0.0, 3.0)]


# -------------------------------------------------------------------- TensorBoard
def test_tensorboard_shows_curves_and_settings(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    core = searched(tmp_path / "run", space={**SPACE, "nothing": None})
    result = SearchResult(core, tmp_path / "run")
    reports = [event for event in read_events(tmp_path / "run") if event["event"] == "report"]
    for _ in range(2):  # the second replaces the first
        assert result.tensorboard(tmp_path / "board") == len(reports)
    best = result.best
    board = accumulator.EventAccumulator(str(tmp_path / "board" / f"trial-{best.number:05d}")).Reload()
    assert [(row.step, pytest.approx(row.value)) for row in board.Scalars("accuracy")] == [
        (event["t"], event["metric"]) for event in reports if event["trial"] == best.number
    ]
    assert board.Scalars("best/accuracy")[0].value == pytest.approx(best.metric)
    plugin = board.summary_metadata["_hparams_/session_start_info"].plugin_data
    assert b"rate" in plugin.content
    assert b"none" in plugin.content
