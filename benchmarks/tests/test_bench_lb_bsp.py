"""``uneven bench lb-bsp``: its cases and its reckoning, where the answer is known."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch

from uneven.errors import UnknownNameError
from uneven_bench.harness.figures import Spread
from uneven_bench.harness.worker import tuples
from uneven_bench.lb_bsp import bench as lb_bsp
from uneven_bench.lb_bsp.arms import fillers
from uneven_bench.lb_bsp.cases import (
    AGAIN,
    FULL,
    LIMIT,
    MOST,
    OURS,
    RIVALS,
    LbBspCase,
    cases,
    corrected,
    oracle_costs,
    short,
    traces,
)
from uneven_bench.lb_bsp.table import of, reached, summarize, wait_share
from uneven_bench.workloads.svm import FEATURES, padded


def test_every_case_has_what_it_compares_with_and_room_on_two_cores() -> None:
    for case in (*cases(None).values(), *short()):
        assert OURS in case.arms
        assert case.limit in case.arms
        assert all(len(row) == case.workers for row in (*case.shares, *case.mbit_per_s))
        assert all(sum(row) <= MOST + 0.01 for row in case.shares)
        assert not case.changing or case.rounds in (len(case.shares), len(case.mbit_per_s))
        assert (case.limit == LIMIT) == bool(case.profile_s)
    assert set(RIVALS) < set(FULL)
    assert short()[1].global_batch == cases(None)["pair"].global_batch
    cut = cases(None)["cut"]  # for arms that look for their split, the round of the change begins with iteration 150
    assert (cut.settling + (cut.change or 0)) * cut.block == 150
    assert cut.mbit_at(1) != cut.mbit_at(2) == cut.mbit_at(99)


def test_traces_are_inverse_to_recorded_times_and_made_up_without_any() -> None:
    jobs = np.ones((9, 10))
    jobs[6, 4] = 2.0  # where times change is what is taken
    assert traces(jobs, 3) in (
        ((0.4,) * 4, (0.4,) * 4, (0.4, 0.2, 0.4, 0.4)),
        ((0.4,) * 4, (0.4, 0.2, 0.4, 0.4), (0.4,) * 4),
    )
    made_up = traces(None, 12)
    assert made_up == traces(None, 12)
    assert len({row[0] for row in made_up}) > 1


def test_the_oracle_knows_what_the_next_round_costs() -> None:
    costs = [{"overhead_s": 0.1, "per_sample_s": 0.01}, {"overhead_s": 0.2, "per_sample_s": 0.02}]
    assert oracle_costs(costs, (0.5, 0.4), (0.25, 0.4)) == ([0.2, 0.2], [0.02, 0.02])
    assert oracle_costs(costs, (), ()) == ([0.1, 0.2], [0.01, 0.02])


def test_the_oracle_learns_from_its_own_iterations_what_a_step_costs_in_place() -> None:
    cost = {"overhead_s": 0.1, "per_sample_s": 0.01}
    # Half a core that worked for 0.2 s took 0.4 s, of which 0.1 s went into ten samples; the rest counts by half.
    assert corrected(cost, 0.2, 10, 0.5) == {"overhead_s": pytest.approx(0.2), "per_sample_s": 0.01}
    assert corrected(cost, 0.0, 50, 0.5)["overhead_s"] == 0.0


def test_a_task_comes_back_as_it_was_written() -> None:
    some = list(cases(None).values())
    assert [LbBspCase(**tuples(json.loads(json.dumps(asdict(one))))) for one in some] == some


def test_rounds_that_are_alike_count_by_their_median_and_others_by_their_sum() -> None:
    case = LbBspCase(name="one", about="", shares=((0.5,) * 4,))
    above, below = {0: 2.0, 1: 2.0, 2: 2.0, 3: 99.0}, {0: 1.0, 1: 1.0, 2: 40.0}
    assert of(above, below, case) == 2.0
    changing = replace(case, shares=((0.5,) * 4,) * 3)
    assert of(above, below, changing) == pytest.approx(6.0 / 42.0)
    assert of(above, below, changing, first=2) == pytest.approx(2.0 / 40.0)
    assert math.isnan(of(above, {}, case))
    assert Spread.of([1.0]).pair == [1.0, 1.0]


def block(wall_s: float, *exposed_s: float, samples: float = 1.0) -> dict[str, Any]:
    return {"wall_s": wall_s, "exposed_s": list(exposed_s), "samples": samples}


def test_who_arrives_last_waits_for_nobody() -> None:
    ranks = [{"0": block(1.0, 0.5, 0.1)}, {"0": block(1.0, 0.1, 0.1)}]
    assert wait_share(ranks) == pytest.approx(0.4 / 4.0)


def test_time_to_the_target_counts_the_search_for_a_split() -> None:
    case = LbBspCase(name="one", about="", block=10)
    curve = {1: 0.2, 2: 0.8, 3: 0.95, 4: 0.9}
    assert reached(case, curve, 0.9, [2.0], {0: 1.0, 1: 1.0}) == {
        "iterations_to_target": 30, "time_to_target_s": pytest.approx(40.0),
    }  # fmt: skip
    # A block that was gone through when nobody was slowed down any more counts like the others.
    assert reached(case, curve, 0.9, [], {0: 1.0, 1: 3.0})["time_to_target_s"] == pytest.approx(60.0)
    assert reached(case, curve, 0.99, [], {0: 1.0})["iterations_to_target"] is None
    assert reached(case, curve, None, [], {0: 1.0})["iterations_to_target"] is None


def test_who_sat_out_the_search_is_counted_as_under_the_shares_of_that_time() -> None:
    shares = ((0.5,), (0.5,), (0.2,), (0.2,))
    case = LbBspCase(name="one", about="", block=10, settling=3, rounds=4, shares=shares, change=2)
    curve, seconds = {3: 0.5, 4: 0.95}, {0: 1.0, 1: 3.0, 2: 9.0, 3: 9.0}
    assert reached(case, curve, 0.9, [], seconds)["time_to_target_s"] == pytest.approx(10 * (3 * 2.0 + 1.0))
    assert reached(case, curve, 0.9, [5.0] * 3, seconds)["time_to_target_s"] == pytest.approx(10 * (15.0 + 1.0))


def test_a_larger_batch_takes_its_time() -> None:
    case = LbBspCase(name="steady", about="workers", shares=((0.5,) * 4,))
    result = a_result({"ddp": 4.0, "accumulate": 3.0, OURS: 1.0, LIMIT: 0.95})
    for rank in result["blocks"]["accumulate"]:
        for one in rank.values():
            one["samples"] = 1.5
    row = summarize(case, result)["methods"]["accumulate"]
    assert row["iteration_s"] == pytest.approx(2.0), "for X samples"
    assert row["time_to_target_s"] == pytest.approx(2 * 8 * 3.0)


def a_result(seconds: dict[str, float]) -> dict[str, Any]:
    blocks = {
        name: [{str(k): block(wall_s, 0.1, 0.1) for k in range(4)} for _ in range(4)]
        for name, wall_s in seconds.items()
    }
    return {
        "about": "a model", "blocks": blocks, "settled": {OURS: [1.0]}, "split": {OURS: [1, 1], LIMIT: [1, 1]},
        "costs": [{"overhead_s": 0.0, "per_sample_s": 0.5}] * 2, "control": [0.01, 0.03],
        "accuracy": {name: {"1": 0.5, "2": 0.9, **({"3": 0.95} if name == "together" else {})} for name in seconds},
    }  # fmt: skip


def test_the_best_rival_is_the_fastest_of_those_that_are_not_ours() -> None:
    case = LbBspCase(name="steady", about="workers", shares=((0.5,) * 4,))
    result = a_result({"ddp": 4.0, "lbb": 1.1, OURS: 1.0, "together": 0.9, LIMIT: 0.95})
    summary = summarize(case, result)
    assert summary["best_rival"] == "lbb"
    assert summary["gain_over_best_rival"] == pytest.approx(1.1)
    assert summary["methods"][OURS]["of_limit"] == pytest.approx(0.95)
    assert summary["target_accuracy"] == pytest.approx(0.9 * 0.98)
    assert summary["methods"]["ddp"]["time_to_target_s"] == pytest.approx(2 * 8 * 4.0)
    assert summary["methods"][OURS]["time_to_target_s"] == pytest.approx(8 * (1.0 + 1.0))
    assert summary["accuracy_at"] == 2 * 8  # though one was trained for longer
    assert {row["accuracy"] for row in summary["methods"].values()} == {0.9}
    old = lb_bsp.steady_keys(case, result)
    assert old["fraction_of_limit"] == pytest.approx(0.95)
    assert old["speedup_vs_ddp"] == pytest.approx(4.0)
    assert (old["control_share"], old["same_accuracy"][OURS]) == (pytest.approx(0.02), 0.9)
    found = {"cases": {"steady": summary, "equal": summary}, "left_out": ["cut"], **old}
    json.dumps(found)


def test_who_takes_more_than_the_global_batch_is_paid_for_it() -> None:
    result = a_result({"ddp": 1.0, OURS: 1.0, LIMIT: 1.0, "accumulate": 1.0})
    for ranks in result["blocks"]["accumulate"]:
        for one in ranks.values():
            one["samples"] = 1.25
    summary = summarize(LbBspCase(name="one", about="", shares=((0.5,) * 4,)), result)
    assert summary["best_rival"] == "accumulate"
    assert summary["gain_over_best_rival"] == pytest.approx(0.8)


def test_an_unknown_case_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="unknown case 'stedy'; did you mean 'steady'"):
        lb_bsp.run(True, "digits", lambda *_: None, case="stedy")


def test_sparse_rows_are_filled_up_and_cut_off() -> None:
    long = np.arange(FEATURES + 5)
    rows = padded(np.array([0, 2, 2, 2 + len(long)]), np.concatenate([[7, 3], long]), 999)
    assert rows.shape == (3, FEATURES)
    assert rows[0].tolist() == [7, 3, *[999] * (FEATURES - 2)]
    assert set(rows[1].tolist()) == {999}
    assert rows[2].tolist() == list(range(FEATURES))


def test_the_stand_ins_and_the_models_fit_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from uneven_bench.workloads.named import workload

    monkeypatch.delenv("UNEVEN_DATA", raising=False)
    with pytest.raises(UnknownNameError, match="unknown workload 'svn'; did you mean 'svm'"):
        workload("svn")
    for name, parameters in (("svm", 50_002), ("resnet", 464_154)):
        work = workload(name)
        assert "UNEVEN_DATA" in work.about
        model = work.make()
        assert sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad) == parameters
        x, y = (tensor[:4] for tensor in work.train.tensors)
        work.loss(model, x, y).backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert all(torch.isfinite(gradient).all() for gradient in gradients)
    workload.cache_clear()


def test_on_equal_workers_ours_is_compared_with_the_mean_of_two_arms_with_ddp() -> None:
    seconds = {"ddp": (1.0, 2.0), OURS: (1.2, 2.4), AGAIN: (1.4, 2.8)}
    assert list(short()[1].arms) == list(seconds)
    blocks = {
        name: [{str(number): {"wall_s": wall_s, "samples": 2.0} for number, wall_s in enumerate(each)}]
        for name, each in seconds.items()
    }
    found = lb_bsp.pair_keys(short()[1], {"blocks": blocks, "split": {OURS: (3, 1)}, "control": (0.1, 0.5)})
    assert found["equal_workers_ratio"] == pytest.approx(1.0)
    assert found["equal_workers_ddp_ratio"] == pytest.approx(1.4)
    assert found["equal_workers_iteration_s"] == pytest.approx({"ddp": 0.75, OURS: 0.9, AGAIN: 1.05})
    assert found["equal_workers_control_share"] == pytest.approx(0.2)


def test_memory_before_a_block_has_holes_of_sizes_that_differ_from_block_to_block() -> None:
    rng = np.random.default_rng(1)
    first, second = ([len(piece) for piece in fillers(rng)] for _ in range(2))
    assert first != second
    assert len(set(first)) == len(first) >= 8
    assert max(first + second) < 1 << 20
