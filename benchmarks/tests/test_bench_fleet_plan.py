"""``uneven bench fleet-plan``: its ensembles are what the page says, and a short run of it."""

import html
import itertools
import json
import math
import re
from pathlib import Path

import pytest

from uneven_bench.fleet_plan import bench as fleet_plan
from uneven_bench.fleet_plan.cases import (
    DEVICES,
    EPOCHS,
    KINDS,
    LONGEST_S,
    PAPER,
    PAPER_ROUNDS,
    SAMPLES,
    curve,
    ensemble,
    single_rates,
)


def test_the_members_are_as_the_paper_tells_of_them() -> None:
    alone = single_rates(100)
    assert (min(alone), max(alone)) == pytest.approx((21, 176))
    assert sum(rate < 60 for rate in alone) == 60
    assert (curve(21.0, 8)[-1], curve(176.0, 8)[-1]) == pytest.approx((150, 1030))
    per_device = [rate / count for count, rate in enumerate(curve(60.0, 160), 1)]
    assert all(after < before for before, after in itertools.pairwise(per_device))


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_and_the_longest_training(kind: str) -> None:
    work, believed = ensemble(KINDS[kind], 20, seed=3)
    assert EPOCHS[0] <= min(work.epochs.values()) <= max(work.epochs.values()) <= EPOCHS[1]
    longest = max(SAMPLES * epochs / work.rates.per_s(name, 1) for name, epochs in work.epochs.items())
    assert (longest <= LONGEST_S) == (KINDS[kind].longest_s < math.inf)
    assert believed.table[:, :9].tolist() == work.rates.table[:, :9].tolist()  # what was profiled is known
    assert (believed.table[:, 15] < work.rates.table[:, 15]).all()  # what was not is underestimated


def test_the_figures_of_the_paper_are_those_of_all_devices() -> None:
    assert {len(row) for row in (*PAPER.values(), PAPER_ROUNDS)} == {len(DEVICES)}


def test_a_short_run(tmp_path: Path) -> None:
    done: list[float] = []
    pictures = tmp_path / "new" / "plans.html"
    result = fleet_plan.run(True, lambda phase, state, share: done.append(share), report=pictures)
    again = json.loads(json.dumps(result))
    rows = again["kinds"]["paper"]["80"]
    assert set(rows) == set(fleet_plan.METHODS)
    wanted = {"wall_s", "wait_share", "rounds", "scheduling_share", "speedup_vs_baseline", "speedup_vs_homogeneous"}
    assert all(wanted <= set(row) for row in rows.values())
    assert rows["fleet-g"]["speedup_vs_baseline"] > 1 > rows["homogeneous"]["speedup_vs_baseline"]
    assert rows["fleet-g"]["wait_share"] < rows["homogeneous"]["wait_share"]
    assert all(
        row["gap_to_bound"] >= 0 for kind in again["kinds"].values() for one in kind.values() for row in one.values()
    )
    assert set(again["plan_gap_to_optimal"]) == set(fleet_plan.METHODS)
    assert again["greedy_gap"]["worst"] >= again["greedy_gap"]["median"] >= -1e-9  # nothing is below the best
    for rows in again["profile_error"]["0.3"].values():
        assert 0 < rows["learning"] < rows["once"]
    assert again["planning"]["in_flotilla"] > 1
    titles = re.findall(r"<h2>(.*?)</h2>", pictures.read_text())
    assert titles == [html.escape(fleet_plan.NAMES[name]) for name in fleet_plan.SHOWN]
    assert set(again["paper"]) == set(again["kinds"]["paper"])
    assert max(done) == 1.0
