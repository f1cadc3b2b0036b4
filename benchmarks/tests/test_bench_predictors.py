"""``uneven bench predictors``: its reckoning on numbers with a known answer, and a short run of the whole."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from uneven.errors import DataError, JournalError
from uneven.journal import Writer, rank_path
from uneven.policy.core.records import StepRecord
from uneven.policy.predict import Last, Predictor
from uneven_bench.predictors import bench
from uneven_bench.predictors.cases import PredictorCase, announced, case_of, drift, spikes, steps, synthetic
from uneven_bench.predictors.page import snapshot
from uneven_bench.predictors.play import iteration_s, limit_s, play, rmse, spike_followed, step_delays
from uneven_bench.predictors.traces import STRETCH, of_use, real, recorded


def two() -> PredictorCase:
    return case_of("two", "synthetic", np.array([[10.0, 20.0, 10.0, 30.0], [10.0, 10.0, 30.0, 30.0]]))


def silent(phase: str, state: str, done: float) -> None:
    assert 0.0 <= done <= 1.0


def test_last_predicts_the_last_and_the_one_ahead() -> None:
    next_one, later = play(two(), Last, ahead=2)
    assert next_one[0].tolist()[1:] == [10.0, 20.0, 10.0]
    assert math.isnan(next_one[0, 0])
    assert later[0].tolist()[2:] == [10.0, 20.0]


def test_errors_are_in_units_of_the_mean_speed() -> None:
    told = np.array([[0.0, 0.0, 20.0, 30.0], [0.0, 0.0, 30.0, 60.0]])
    # Off by 10 of 20, 0, 0 and 30 of 30.
    assert rmse(two(), told) == pytest.approx(math.sqrt((0.25 + 1.0) / 4))


def test_the_slowest_decides_the_time() -> None:
    told = np.array([[0.0, 0.0, 20.0, 30.0], [0.0, 0.0, 20.0, 30.0]])
    # Half of 128 samples each: 64/10 and then 64/30 seconds.
    assert iteration_s(two(), told) == pytest.approx((6.4 + 64 / 30) / 2)
    assert limit_s(two()) == pytest.approx((128 / 40 + 128 / 60) / 2)


def test_what_is_scored_is_told_before_it_is_seen() -> None:
    class Peeks(Predictor):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def observe(self, seen: object) -> None:
            self.seen.append(len(self.seen))

        def predict(self, ahead: int = 1) -> float:
            return float(len(self.seen)) or math.nan

    next_one, later = play(two(), Peeks, ahead=1)
    assert next_one[0].tolist()[1:] == [1.0, 2.0, 3.0]
    assert later[0].tolist()[2:] == [2.0, 3.0]


def test_made_up_cases_are_what_they_say() -> None:
    for case in synthetic(200).values():
        assert case.levels_per_s is not None
        assert case.scored_from == 100
        noise = np.log(case.speeds_per_s / case.levels_per_s)
        assert noise.std() == pytest.approx(0.03, rel=0.1)
    assert (np.diff(steps(200).levels_per_s) != 0).sum() >= 4
    lone = spikes(200).levels_per_s[0] < 50
    assert lone.sum() == 4
    assert not (lone[1:] & lone[:-1]).any()
    case = announced(400)
    others = 1.0 - case.levels_per_s / case.levels_per_s.max(axis=1, keepdims=True)
    changed = np.flatnonzero(np.diff(others[0]) != 0)
    assert np.abs(case.cpu[0, changed] - others[0, changed + 1]).max() < 0.1, "the reading before shows it"
    assert np.isnan(drift(200).cpu).all()
    assert (synthetic(200)["drift"].speeds_per_s == synthetic(200)["drift"].speeds_per_s).all()


def test_a_spike_moves_the_memoryless_and_not_the_steady() -> None:
    assert spike_followed("last", 260) > 0.6
    assert 0.05 < spike_followed("ema", 260) < 0.2
    assert spike_followed("steady", 260) < 0.005
    assert spike_followed("narx", 260) < 0.005


def test_delays_count_from_the_first_slow_iteration() -> None:
    case = announced(400)
    assert case.levels_per_s is not None
    assert set(step_delays("", case.levels_per_s, case)) == {0}
    late = np.concatenate([case.levels_per_s[:, :2], case.levels_per_s[:, :-2]], axis=1)
    assert set(step_delays("", late, case)) == {2}
    never = np.repeat(case.levels_per_s[:, :1], 400, axis=1)
    assert max(step_delays("", never, case)) > 20
    with pytest.raises(ValueError, match="levels"):
        step_delays("", late, two())


def test_use_becomes_speed() -> None:
    case = of_use("made", np.array([[0.0, 0.5, 0.25, 0.9]]).repeat(21, axis=1))
    assert case.iterations == int(84 * STRETCH)
    assert case.speeds_per_s[0, 5:80].mean() == pytest.approx(120.0, rel=0.02)
    assert case.speeds_per_s[0, 95:175].mean() == pytest.approx(60.0, rel=0.02)
    assert case.cpu[0, 95:175].mean() == pytest.approx(0.5, abs=0.02)
    mixed = int(21 * STRETCH)  # three tenths of it before the change
    assert case.speeds_per_s[0, mixed] == pytest.approx(0.3 * 120 + 0.7 * 60, rel=0.1)


def test_the_shipped_trace_serves_where_no_data_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("UNEVEN_DATA", raising=False)
    (case,) = real().values()
    assert (case.workers, case.iterations) == (4, int(240 * STRETCH))
    assert np.isfinite(case.cpu).all()
    monkeypatch.setenv("UNEVEN_DATA", str(tmp_path))
    with pytest.raises(DataError, match="set UNEVEN_DATA to a folder with traces/"):
        real()


def journalled(run: Path, iterations: int) -> None:
    for rank in range(2):
        with Writer(rank_path(run, rank)) as writer:
            for k in range(iterations + rank):
                step = StepRecord(
                    rank=rank, iteration=k, epoch=0, batch=30, global_batch=60, data_s=0.1, compute_s=0.3 + k,
                    exchange_s=1.0, control_s=0.0, ended_at_s=0.0, transfer_s=0.1,
                )  # fmt: skip
                writer.write(step)


def test_a_recorded_run_becomes_a_case(tmp_path: Path) -> None:
    journalled(tmp_path / "run", 24)
    case = recorded(tmp_path / "run")
    assert (case.name, case.workers, case.iterations) == ("run", 2, 24)
    assert case.speeds_per_s[1, 2] == pytest.approx(30 / 2.5)
    assert np.isnan([case.cpu, case.memory]).all()
    journalled(tmp_path / "short", 19)
    with pytest.raises(JournalError, match="19 iterations"):
        recorded(tmp_path / "short")


def test_a_picture_shows_the_liveliest_worker() -> None:
    case = two()
    figure = snapshot(case, {"last": play(case, Last)[0]})
    assert [line["name"] for line in figure["data"]] == ["measured", "last"]
    assert figure["data"][0]["y"] == [10.0, 30.0]


def test_all_keys_are_there() -> None:
    cases = synthetic(60)
    result, told = bench.score(cases, ("last", "ema", "auto"), silent, spiked_in=206, stepped_in=120)
    assert set(result["rmse"]["auto"]) == set(result["iteration_s"]["last"]) == set(cases)
    assert result["best_single"]["spikes"] == "ema"
    assert result["auto_regret"] == max(
        result["iteration_s"]["auto"][case] / result["iteration_s"][result["best_single"][case]][case] for case in cases
    )
    assert result["spike_followed"]["last"] > result["spike_followed"]["ema"]
    assert result["step_delay_iterations"]["last"] == 1 < result["step_delay_iterations"]["ema"]
    assert told["ema"]["drift"].shape == (4, 60)
