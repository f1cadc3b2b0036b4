"""``uneven bench worlds`` on one small description: from words over real processes to both worlds' times."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulation import needs_root

from uneven import journal
from uneven.cluster.pure.describe.spec import ClusterSpec, Node, Workload
from uneven.policy.core.records import RunRecord, StepRecord
from uneven_bench.worlds.bench import Effort, WorldTraining, compare, measured
from uneven_bench.worlds.cases import GLOBAL_BATCH, WorldCase
from uneven_bench.worlds.compare import BALANCERS, summarize

pytestmark = needs_root  # not alone: how well both agree is for the bench to say

TINY = ClusterSpec(
    name="tiny",
    nodes=(Node(name="a", cores=0.6, period_s=0.01), Node(name="b", cores=0.2, period_s=0.01)),
    workload=Workload(global_batch=GLOBAL_BATCH, gradient_bytes=1_000_000),
)

TRAINING = WorldTraining("digits", 64)


def test_costs_come_from_an_emulated_run(tmp_path: Path) -> None:
    workload = measured(TINY, "static:shares=3/1", tmp_path, TRAINING, iterations=8)
    assert workload.per_sample_core_s > 0
    assert workload.exchange_core_s > 0
    assert workload.gradient_bytes == TINY.workload.gradient_bytes  # what was known is kept


def test_a_description_is_emulated_and_simulated_and_compared(tmp_path: Path) -> None:
    told: list[tuple[str, str, float]] = []
    effort = Effort(settled=8, iterations=40, repeats=1)  # the others are looked at after a second
    compared, races = compare({"tiny": WorldCase(TINY)}, tmp_path, TRAINING, effort, lambda *what: told.append(what))
    assert [what for _, what, _ in told] == ["tiny, even", "tiny, lb-bsp"]
    assert tuple(compared["tiny"]) == BALANCERS
    for balance, one in compared["tiny"].items():
        assert one["simulated_s"] > 0
        assert one["emulated_s"] > 0
        assert one["error"] == pytest.approx(abs(one["simulated_s"] / one["emulated_s"] - 1))
        records = list(journal.read(tmp_path / f"tiny-{balance}-0" / "run").records())
        steps = [step for step in records if isinstance(step, StepRecord)]
        assert len(steps) == 2 * effort.iterations
        runs = [run for run in records if isinstance(run, RunRecord)]
        assert {(run.world, run.settings["balance"]) for run in runs} == {("emulated", balance)}
        read = any(step.others is not None for step in steps)
        assert read is (balance != "even")  # what a predictor was shown of the others' load; nobody asks under even
        shares = {step.batch for step in steps}  # in some iteration: beside other work the last ones may be alike
        assert (len(shares) == 1) is (balance == "even")
    (race,) = races["tiny"]
    even, balanced = (compared["tiny"][balance]["emulated_s"] for balance in BALANCERS)
    assert race.emulated == pytest.approx(even / balanced)
    assert race.simulated > 1.1  # one node is a third as fast, and both balancers are simulated on the same processors
    assert {"cases", "median_error", "worst_error", "rank_agreement"} < set(summarize(compared, races))
