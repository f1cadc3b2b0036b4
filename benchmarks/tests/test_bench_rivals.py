"""``uneven bench rivals``: its loops and its reckoning, where the answer is known."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from uneven.policy.balance import balancers
from uneven_bench.balancers.rivals import RIVALS
from uneven_bench.rivals import bench as rivals
from uneven_bench.rivals.cases import CHANGE, HELD, ITERATIONS, SETTLING, RivalCase, cases
from uneven_bench.rivals.inside import accumulating, backup, flexrr
from uneven_bench.rivals.loops import RivalOutcome, SettledTotals, foreseen, oracle, ours, rival


def quiet(speeds: tuple[float, ...], total: int, moved_s: float = 0.0) -> RivalCase:
    """Workers without noise or overheads."""
    n = len(speeds)
    ones, moves_s = np.ones((ITERATIONS, n)), np.full((ITERATIONS, n), moved_s)
    return RivalCase(
        name="quiet", global_batch=total, step_s=(0.0,) * n, launch_s=(0.0,) * n,
        per_sample_s=tuple(1.0 / v for v in speeds), slow=ones, level=ones, transfer_s=moves_s,
    )  # fmt: skip


def test_the_oracle_and_everybody_else_on_workers_without_noise() -> None:
    case = quiet((1.0, 3.0), 400)
    limit = oracle(case)
    assert limit.iteration_s == pytest.approx(100.0)
    assert limit.waiting == pytest.approx(0.0)
    assert foreseen(case) == limit
    even = ours(case, balancers.resolve("even"))
    assert (even.iteration_s, even.waiting) == (pytest.approx(200.0), pytest.approx(1 / 3))
    for outcome in (ours(case, balancers.resolve("lb-bsp")), rival(case, "dbs", 0), rival(case, "lbb", 0)):
        assert outcome.iteration_s == pytest.approx(100.0, rel=0.02)
    # The controller's upper bound is three times the mean share, so it gets there; its dead band stops it before.
    assert rival(case, "omnilearn", 0).iteration_s < 125.0


def test_those_that_act_inside_an_iteration() -> None:
    case = quiet((1.0, 3.0), 96)
    stolen = flexrr(case)
    assert 24.0 <= stolen.iteration_s < 48.0
    assert stolen.samples == 1.0
    more = accumulating(case)
    assert more.samples >= 1.0
    assert more.batch_s == more.iteration_s / more.samples
    # One spare of two: every update is the fast worker's, who takes all 96 samples; half of the time is thrown away.
    first = backup(case)
    assert first.iteration_s == pytest.approx(32.0)
    assert (first.lost, first.waiting, first.best) == (pytest.approx(0.5), pytest.approx(0.0), "1 spare")


def test_a_slow_link_counts_as_busy_not_as_waiting() -> None:
    assert oracle(quiet((1.0, 1.0), 20, moved_s=5.0)).waiting == pytest.approx(0.0)


def test_iterations_count_after_settling() -> None:
    totals = SettledTotals(2)
    totals.add(SETTLING - 1, took_s=99.0, busy_s=0.0)
    totals.add(SETTLING, took_s=2.0, busy_s=3.0, lost_s=0.5, samples=1.5)
    outcome = totals.outcome("x")
    assert outcome == RivalOutcome(2.0, 0.125, 0.125, 1.5, "x")
    assert outcome.batch_s == pytest.approx(4 / 3)


def made_up(name: str) -> None:
    """No recordings on this machine."""


def test_the_cases_are_those_of_the_claim() -> None:
    found = {case.name: case for case in cases(made_up, 0)}
    assert list(found) == [
        "steady shares", "step change", "noise and spikes", "made-up job times", "made-up machine use", "bandwidth cut",
        "equal workers", "8 workers",
    ]  # fmt: skip
    for case in found.values():
        assert case.slow.shape == case.level.shape == case.transfer_s.shape == (ITERATIONS, case.workers)
        assert (case.slow > 0).all()
    cut = found["bandwidth cut"]
    assert cut.transfer_s[CHANGE - 1, 1] < cut.transfer_s[CHANGE, 1]
    assert np.array_equal(cases(made_up, 0)[0].slow, found["steady shares"].slow), "the same in every run"
    assert not np.array_equal(cases(made_up, 1)[0].slow, found["steady shares"].slow)


def test_recordings_are_played_where_there_are_some() -> None:
    jobs = np.tile(np.linspace(50.0, 200.0, 300)[:, None], (1, 10))
    use = np.full((288, 8), 0.5)
    found = {case.name: case for case in cases({"jobs": jobs, "use": use}.get, 0)}
    assert found["real machine use"].level.tolist() == [[2.0] * 8] * ITERATIONS
    level = found["real job times"].level
    assert (level[:HELD] == level[0]).all()
    assert (level[HELD] > level[0]).all()


def test_recordings_are_looked_for_where_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("UNEVEN_DATA", raising=False)
    assert rivals.recordings() == {}
    monkeypatch.setenv("UNEVEN_DATA", str(tmp_path))
    assert rivals.recordings() == {}
    (tmp_path / "traces").mkdir()
    worker = np.tile(np.arange(10), 5)
    times = np.arange(50)
    np.savez(tmp_path / "traces" / "alibaba2020_minibatch_time.npz", job4_worker=worker, job4_batch_time_norm=times)
    np.savez(tmp_path / "traces" / "google2011_vm_cpu_mem.npz", cpu_percent=np.full((1600, 288), 25, np.uint8))
    found = rivals.recordings()
    assert found["jobs"].shape == (5, 10)
    assert found["jobs"][1, 3] == 13.0
    assert found["use"].shape == (288, 8)
    assert (found["use"] == 0.25).all()


def test_gains_are_over_the_best_that_is_not_ours() -> None:
    limits = [RivalOutcome(1.0, 0.0), RivalOutcome(2.0, 0.0)]
    assert rivals.summary([RivalOutcome(2.0, 0.5), RivalOutcome(2.0, 0.25)], limits) == {
        "of_limit": 0.75, "iteration_s": 2.0, "waiting": 0.375, "lost": 0.0, "samples": 1.0, "best": "",
    }  # fmt: skip
    rows = {name: {"of_limit": share} for name, share in {"oracle": 1.0, "lb-bsp": 0.9, "dbs": 0.8, "lbb": 0.7}.items()}
    assert rivals.best_rival(rows) == "dbs"


def test_every_rival_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(RIVALS) | {"even", "static", "flexrr", "backup", "accumulate", "lb-bsp"} <= set(rivals.methods())
    monkeypatch.delenv("UNEVEN_DATA", raising=False)
    monkeypatch.setattr(rivals, "cases", lambda recorded, seed: (dataclasses.replace(quiet((1.0, 2.0), 48)),))
    said = []
    result = rivals.run(True, lambda phase, state, done: said.append(done))
    assert said == sorted(said)
    assert result["gain_over_best_rival"]["quiet"] > 0.9


def test_the_bench_plays_made_up_loads_without_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNEVEN_DATA", raising=False)
    (use,) = rivals.uses(None).values()
    found = rivals.flickering(use, seeds=2)
    assert found["2"]["together"] > found["2"]["lb-bsp"]
