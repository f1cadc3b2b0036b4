"""Recorded runs as cases of ``uneven bench predictors``: descriptions, steps at known moments, what journals say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from uneven.cluster.pure.describe.parse import from_toml
from uneven.cluster.pure.describe.spec import Trace, steady
from uneven.cluster.pure.describe.write import to_toml
from uneven.cluster.series import SeriesFiles
from uneven.errors import ConfigError
from uneven.journal import Writer, rank_path
from uneven.policy.core.records import StepRecord
from uneven.policy.core.views import Observation
from uneven.policy.predict import Last
from uneven_bench.predictors import bench as predictors
from uneven_bench.predictors.play import play
from uneven_bench.recorded import cases as recorded_cases
from uneven_bench.recorded import recording as recorded
from uneven_bench.recorded.steps import WITHIN, SpeedChange, changes_s, delay, find, response


def test_descriptions_fit_a_small_machine_and_survive_a_file() -> None:
    use = np.array([[0.0, 0.5, 0.99, 0.2]] * 4)
    for spec in (recorded_cases.announced(), recorded_cases.bursts(), recorded_cases.replayed("made", use)):
        assert sum(node.cores for node in spec.nodes) <= 1.7
        assert from_toml(to_toml(spec), "written", SeriesFiles(None)) == spec
        assert any(node.load.values != spec.nodes[0].load.values for node in spec.nodes) or spec.name == "made"


def test_a_replayed_use_leaves_the_worker_the_rest() -> None:
    node = recorded_cases.replayed("made", np.array([[0.0, 0.5, 0.75, 0.999]] * 4)).nodes[0]
    left = [node.available(1.5 * place + 0.1) for place in range(4)]
    assert left[:3] == pytest.approx([1.0, 0.5, 0.25])
    assert left[3] == pytest.approx(1 / 6)  # so many rivals as that would need are not started
    assert node.load.lasts_s == pytest.approx(1.5)


def test_bursts_are_short_and_rare() -> None:
    for node in recorded_cases.bursts().nodes:
        busy = np.array(node.load.values) > 0
        assert not (busy[1:] & busy[:-1]).any()
        assert 10 <= busy.sum() <= 16
        assert node.load.lasts_s == pytest.approx(0.15)


def test_moments_are_those_at_which_the_load_changes() -> None:
    trace = Trace(values=(0.0, 0.0, 2.0, 2.0, 1.0), step_s=1.0)
    assert changes_s(trace, 8.5) == [2.0, 4.0, 5.0, 7.0]  # from the start again after five seconds
    assert changes_s(steady(1.0), 8.5) == []


def stepped() -> tuple[np.ndarray, np.ndarray, list[Trace]]:
    """Two workers, 40 iterations of half a second; the first one's speed halves at 10.2 s, in iteration 20."""
    speeds = np.full((2, 40), 100.0)
    speeds[0, 20] = 90.0  # a part of it only
    speeds[0, 21:] = 50.0
    load = Trace(values=(0.0,) * 51 + (1.0,) * 60, step_s=0.2)
    return speeds, 0.5 * np.arange(1, 41), [load, steady(0.0)]


def test_a_step_begins_with_the_first_iteration_that_feels_half_of_it() -> None:
    (found,) = find(*stepped())
    assert found == SpeedChange(worker=0, first=21, end=40, before_per_s=100.0, after_per_s=50.0)


def test_what_is_no_step_is_left_out() -> None:
    speeds, ends_s, loads = stepped()
    slight = np.where(speeds < 100.0, 85.0, speeds)
    assert find(slight, ends_s, loads) == []
    late = Trace(values=(0.0,) * 97 + (1.0,) * 60, step_s=0.2)  # two iterations of the new level are too few to know it
    assert find(speeds, ends_s, [late, steady(0.0)]) == []


def test_the_response_counts_from_the_first_iteration_of_the_step() -> None:
    steps = [
        SpeedChange(0, 21, 40, 100.0, 50.0),
        SpeedChange(0, 21, 30, 100.0, 50.0),
        SpeedChange(1, 5, 12, 100.0, 80.0),
    ]
    told = np.full((2, 40), 100.0)
    told[0, 21] = 80.0
    told[0, 22:] = 54.0
    assert response(told, steps[:2])[:3] == pytest.approx([0.4, 0.92, 0.92])
    assert delay(response(told, steps[:2])) == 1
    assert response(told, steps)[:2] == pytest.approx([0.4, 0.92]), "the median of three: one is not followed"
    assert delay(response(np.full((2, 40), 100.0), steps)) == WITHIN + 1
    assert len(response(told, steps[2:])) == 7, "a level says nothing beyond its end"
    assert response(told, []) == []


def kept_run(place: Path, iterations: int = 40) -> None:
    """As :func:`uneven_bench.recorded.recording.record` leaves one, with the speeds of :func:`stepped`."""
    speeds, ends_s, _ = stepped()
    place.mkdir(parents=True)
    spec = recorded_cases.announced()
    spec = replace(spec, nodes=spec.nodes[:2])
    (place / "cluster.toml").write_text(to_toml(spec))
    for rank, row in enumerate(speeds):
        with Writer(rank_path(place / "run", rank)) as writer:
            for k in range(iterations):
                batch = 30 + k
                step = StepRecord(
                    rank=rank, iteration=k, epoch=0, batch=batch, global_batch=200, data_s=0.0,
                    compute_s=batch / row[k], exchange_s=0.5 - 0.25, control_s=0.0, ended_at_s=1000.0 + ends_s[k],
                    others=0.5 if k >= 20 and rank == 0 else 0.0, memory=None if k < 3 else 0.25,
                )  # fmt: skip
                writer.write(step)


def test_what_predictors_were_shown_is_read_from_the_journal(tmp_path: Path) -> None:
    kept_run(tmp_path / "runs" / "announced")
    (name,), (one,) = recorded.load(tmp_path / "runs").keys(), recorded.load(tmp_path / "runs").values()
    assert name == one.case.name == recorded_cases.ANNOUNCED
    assert one.case.speeds_per_s[0, 25] == pytest.approx(50.0)
    assert one.case.cpu[0, 19:21].tolist() == [0.0, 0.5]
    assert np.isnan(one.case.memory[0, :3]).all()
    assert (one.case.memory[:, 3:] == 0.25).all()
    assert one.iteration_s == pytest.approx(0.5)

    seen: list[int] = []

    class Watches(Last):
        def observe(self, observation: Observation) -> None:
            seen.append(observation.samples)
            super().observe(observation)

    play(one.case, Watches)
    assert seen == [30 + k for k in range(40)] * 2


def test_recorded_figures_say_how_long_the_windows_are(tmp_path: Path) -> None:
    kept_run(tmp_path / "announced")
    kept = recorded.load(tmp_path)
    case = kept[recorded_cases.ANNOUNCED].case
    told = {"last": {case.name: play(case, Last)[0]}}
    figures = predictors.recorded_figures(kept, told)
    said = figures["recorded"][case.name]
    assert (said["iterations"], said["scored_from"]) == (40, 20)
    assert said["lasted_s"] == pytest.approx(20.0, abs=1.0)
    some = kept[recorded_cases.ANNOUNCED]._replace(steps=[SpeedChange(0, 21, 40, 100.0, 50.0)])
    figures = predictors.recorded_figures({case.name: some}, told)
    assert figures["recorded_step_response"]["last"][:2] == pytest.approx([0.2, 1.0])
    assert figures["recorded_step_delay_iterations"] == {"last": 1}


def test_folders_are_looked_at_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNEVEN_DATA", raising=False)
    with pytest.raises(ConfigError, match="no recorded runs"):
        recorded.load(tmp_path)
    with pytest.raises(ConfigError, match="no recorded runs"):
        recorded.load(tmp_path / "none")
    if not recorded.why_not():
        (tmp_path / "bursts").mkdir()
        with pytest.raises(ConfigError, match="a run 'bursts' already"):
            recorded.record(tmp_path, "digits", lambda *_: None)
