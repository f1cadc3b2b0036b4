"""What the bench of recommendation models says follows from what it measured."""

from __future__ import annotations

import pytest

from uneven_bench.recommendation.bench import CASES, QUICK, MeasuredTrainers, _measured, judged, tables


def measured(per_s: tuple[float, ...], trainer_us: float = 50.0) -> list[MeasuredTrainers]:
    return [MeasuredTrainers(tuple(rate * drift for rate in per_s), trainer_us, 5.0) for drift in (1.0, 0.5, 1.0)]


def test_ratios_are_of_the_same_round_and_medians() -> None:
    found = {name: measured((100.0,)) for name in QUICK}
    found |= {"4 at 0.2 core": measured((100.0, 100.0, 90.0, 90.0)), "unequal": measured((400.0, 200.0, 100.0, 80.0))}
    found |= {"two trainers": measured((120.0, 60.0)), "DDP, sparse": measured((5.0, 5.0))}
    found |= {"one trainer": measured((90.0,), 55.0)}
    result = judged(found)
    assert result["scaling"] == {"1": 1.0, "4": pytest.approx(0.95)}
    assert result["share_evenness"] == pytest.approx(0.8)
    assert result["vs_one_process"] == pytest.approx(1.8)
    assert result["vs_ddp_sparse"] == pytest.approx(18.0)
    assert result["trainer_cpu_ratio"] == pytest.approx(1.1)
    assert len(tables(result | {"rounds": 3, "window_s": 4.0})) == 2
    assert set(QUICK) <= set(CASES)


def test_only_the_time_in_which_all_trained_counts() -> None:
    fast = {"began_s": 10.0, "marks": [[at / 10, at / 20] for at in range(80, 160)]}
    slow = {"began_s": 10.5, "marks": [[at / 2, at / 4] for at in range(10, 31)]}
    found = _measured([fast, slow], batch=100, server_s=0.5)
    assert found.per_s == (pytest.approx(1000.0), pytest.approx(200.0))
    assert found.trainer_us == pytest.approx(1e6 * 4.5 / 5400)
    assert found.server_us == pytest.approx(1e6 * 0.5 / (100 * (55 + 10)))
