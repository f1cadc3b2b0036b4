"""``uneven bench worlds``: its reckoning, on numbers with a known answer."""

from __future__ import annotations

from typing import Never

import pytest

from uneven.bench.worlds import SETTLED, iteration_s, summarize, verdict
from uneven.bench.worlds_cases import calibration, cases
from uneven.bench.worlds_costs import workload_of
from uneven.cluster.parse import from_toml
from uneven.cluster.spec import Workload
from uneven.cluster.write import to_toml
from uneven.core.records import StepRecord


def no_files(asked: object) -> Never:
    raise AssertionError(f"the description asks for a file: {asked}")


def step(rank: int, iteration: int, batch: int, compute_s: float, ended_at_s: float = 0.0) -> StepRecord:
    return StepRecord(
        rank=rank, iteration=iteration, epoch=0, batch=batch, global_batch=256, data_s=0.0, compute_s=compute_s,
        exchange_s=0.1, transfer_s=0.02, control_s=0.0, ended_at_s=ended_at_s,
    )  # fmt: skip


def test_costs_come_out_as_they_went_in() -> None:
    spec, _ = calibration(Workload())
    steps = []
    for rank, (node, batch) in enumerate(zip(spec.nodes, (102, 77, 51, 26), strict=True)):
        ahead_s = node.period_s * (1.0 - node.cores)
        compute_s = (0.002 + 0.0004 * batch) / node.cores - ahead_s
        steps += [step(rank, iteration, batch, compute_s if iteration >= 4 else 9.0) for iteration in range(20)]
    found = workload_of(steps, spec)
    assert found.overhead_core_s == pytest.approx(0.002)
    assert found.per_sample_core_s == pytest.approx(0.0004)
    assert found.exchange_core_s == pytest.approx(0.02 * spec.nodes[0].cores)


def test_only_settled_iterations_count() -> None:
    ends_s = [0.0]
    for iteration in range(SETTLED + 9):
        ends_s.append(ends_s[-1] + (5.0 if iteration < SETTLED else 0.1))
    steps = [step(rank, k, 64, 0.1, ended_at_s=end + rank) for rank in (1, 0) for k, end in enumerate(ends_s[1:])]
    assert iteration_s(list(steps)) == pytest.approx(0.1)


def case(simulated: tuple[float, float], emulated: tuple[float, float]) -> dict[str, dict[str, float]]:
    return {
        name: {"simulated_s": s, "emulated_s": e, "error": abs(s - e) / e}
        for name, s, e in zip(("even", "lb-bsp"), simulated, emulated, strict=True)
    }


def test_worlds_agree_or_not() -> None:
    compared = {
        "both gain": case((0.30, 0.10), (0.33, 0.11)),
        "a tie in both": case((0.100, 0.101), (0.099, 0.100)),
        "a tie in one": case((0.100, 0.101), (0.110, 0.100)),
        "opposite": case((0.10, 0.20), (0.20, 0.10)),
    }
    assert [verdict(one, "simulated_s") for one in compared.values()] == ["lb-bsp", "neither", "neither", "even"]
    found = summarize(compared)
    assert found["rank_agreement"] == 0.5
    assert found["worst_error"] == pytest.approx(1.0)


def test_every_case_can_be_written_down_and_fits_a_laptop() -> None:
    found = cases(Workload())
    assert len(found) >= 6
    for one in found.values():
        assert from_toml(to_toml(one.spec), "case", no_files) == one.spec
        assert sum(node.cores for node in one.spec.nodes) <= 1.8
    assert sum(one.needs_root for one in found.values()) == 3
