"""``uneven bench fleet`` on few samples: every method trains everybody, and the figures are there."""

from __future__ import annotations

import math

import pytest
from rich.console import Console

from uneven.bench import fleet as bench
from uneven.bench import fleet_tune
from uneven.bench.fleet_cases import CASES, WIDTHS, ensemble, member
from uneven.bench.workload import images

METHODS = ("baseline", "homogeneous", "sequential", "fleet-g", "together")
"""Those that differ in how they are carried; the others are these with other options."""


def test_every_method_trains_every_member() -> None:
    said: list[str] = []
    result = bench.measure(
        "digits", lambda phase, state, done: said.append(state), rates={name: [1e3, 1e3] for name in WIDTHS},
        repeats=1, samples=40, epochs=1, cases=("preprocessing-light",), methods=METHODS,
    )  # fmt: skip
    for case in result["cases"].values():
        assert set(case["methods"]) == set(METHODS) <= set(bench.METHODS)
        assert case["speedup_vs_baseline"]["baseline"] == case["speedup_vs_homogeneous"]["homogeneous"] == 1.0
        assert case["preprocess_saving"]["baseline"] == 1.0
        sharing = {name: one["sharing"] for name, one in case["methods"].items()}
        assert sharing["baseline"] == sharing["sequential"] == 1.0
        assert (sharing["homogeneous"], sharing["together"]) == (bench.SLOTS, len(WIDTHS))
        assert case["speedup_vs_ray_tune"] == {}  # not asked for
        for one in case["methods"].values():
            assert one["wall_s"] > 0.0
            assert 0.0 <= one["wait_share"] <= 1.0
            assert 0.0 < one["accuracy"] <= 1.0
        rounds = {name: one["rounds"] for name, one in case["methods"].items()}
        assert rounds["baseline"] == rounds["sequential"] == len(WIDTHS)
        assert (rounds["homogeneous"], rounds["together"]) == (len(WIDTHS) / bench.SLOTS, 1)
    assert "preprocessing-light: fleet-g" in said
    console = Console(width=160)
    with console.capture() as shown:
        for table in bench.tables(result):
            console.print(table)
    assert all(name in shown.get() for name in METHODS)


def test_a_trial_of_ray_tune_trains_its_member() -> None:
    asked = ensemble("digits", "preprocessing-light", ("tiny",), samples=40, epochs=1)
    told = fleet_tune.trial({"member": "tiny"}, asked)
    assert 0.0 <= told["accuracy"] <= 1.0
    assert told["cpu_s"] > 0.0
    assert 0.0 <= told["waited_s"] <= told["took_s"]


def test_the_gap_of_a_plan() -> None:
    even = {"a": [100.0, 190.0], "b": [100.0, 190.0]}
    assert bench.plan_gap(even, 100, 2) == pytest.approx(0.0)
    apart = {"a": [100.0, 199.0], "b": [30.0, 59.0]}
    assert bench.plan_gap(apart, 100, 2) >= 0.0


@pytest.mark.parametrize("case", CASES)
def test_augmentation_keeps_the_shape_and_draws_anew(case: str) -> None:
    data = images("digits")
    sample = data.train[0]
    one, other = CASES[case](sample), CASES[case](sample)
    assert one[0].shape == sample[0].shape
    assert one[1] == sample[1]
    assert math.isfinite(float(one[0].sum()))
    drawn = [CASES[case](sample)[0] for _ in range(8)]
    assert any(not drawn[0].equal(each) for each in drawn) or not one[0].equal(other[0])


def test_members_are_unlike() -> None:
    sizes = [sum(p.numel() for p in member(*WIDTHS[name], 8).model.parameters()) for name in WIDTHS]
    assert len(set(sizes)) == len(WIDTHS) >= 6
    asked = ensemble("digits", "preprocessing-light", ("tiny", "large"), samples=40, epochs=1)
    assert (list(asked.members), len(asked.dataset), len(asked.validate)) == (["tiny", "large"], 40, 10)
