"""``uneven bench worlds``: its reckoning, on numbers with a known answer."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Never

import pytest

from uneven.cluster.pure.describe.parse import from_toml
from uneven.cluster.pure.describe.spec import ClusterSpec, Node, Workload
from uneven.cluster.pure.describe.write import to_toml
from uneven.errors import ConfigError, LaunchError
from uneven.journal import Writer, rank_path
from uneven.policy.core.records import RunRecord, SplitRecord, StepRecord
from uneven_bench.recorded.runs import DESCRIPTION, RUN
from uneven_bench.worlds import keep
from uneven_bench.worlds.bench import many
from uneven_bench.worlds.cases import calibration, cases
from uneven_bench.worlds.compare import Pair, Race, close, iteration_s, summarize, summary, verdict
from uneven_bench.worlds.costs import as_in, own_sides, shape_of


def no_files(asked: object) -> Never:
    raise AssertionError(f"the description asks for a file: {asked}")


def step(
    rank: int, iteration: int, batch: int, cpu_s: float, local_s: float = 0.1, ended_at_s: float = 0.0
) -> StepRecord:
    return StepRecord(
        rank=rank, iteration=iteration, epoch=0, batch=batch, global_batch=256, data_s=0.0, compute_s=local_s,
        exchange_s=0.1, transfer_s=0.02, control_s=0.0, ended_at_s=ended_at_s, local_cpu_s=cpu_s, exchange_cpu_s=0.005,
    )  # fmt: skip


BATCHES = (102, 77, 51, 26)


def cpu_s(batch: int) -> float:
    return 0.002 + 0.0004 * batch


def test_the_shape_of_the_costs_comes_out_as_it_went_in() -> None:
    steps = [
        step(rank, iteration, batch, cpu_s(batch) if iteration >= 4 else 9.0)
        for rank, batch in enumerate(BATCHES)
        for iteration in range(20)
    ]
    found = shape_of(steps, Workload(gradient_bytes=7))
    assert found.overhead_core_s == pytest.approx(0.002)
    assert found.per_sample_core_s == pytest.approx(0.0004)
    assert found.exchange_core_s == pytest.approx(0.005)
    assert found.gradient_bytes == 7


def test_each_node_costs_what_it_did_in_the_run_and_is_as_noisy() -> None:
    spec, _ = calibration(Workload(overhead_core_s=0.002, per_sample_core_s=0.0004))
    rng = random.Random(1)
    steps = [
        step(rank, iteration, batch, (rank + 1) * cpu_s(batch) * (1.0 + 0.1 * rank * rng.gauss(0.0, 1.0)))
        for rank, batch in enumerate(BATCHES)
        for iteration in range(2000)
    ]
    steps[10] = step(0, 10, 102, 99.0)  # not settled yet
    found = as_in(spec, steps, since=50)
    for rank, node in enumerate(found.nodes):
        assert found.cost(node).seconds(50) * node.cores == pytest.approx((rank + 1) * cpu_s(50), rel=0.02)
        assert node.jitter == pytest.approx(0.1 * rank, rel=0.1, abs=1e-9)
    assert own_sides(spec, steps, since=50) == pytest.approx(dict.fromkeys(range(4), 0.005 / 0.25))


def test_what_changes_for_good_is_no_noise() -> None:
    spec, _ = calibration(Workload())
    steps = [step(rank, k, 64 if k < 100 else 32, 0.03 if k < 100 else 0.015) for rank in range(4) for k in range(200)]
    assert [node.jitter for node in as_in(spec, steps, since=0).nodes] == [0.0] * 4


def test_only_settled_iterations_count() -> None:
    ends_s = [0.0]
    for iteration in range(20 + 9):
        ends_s.append(ends_s[-1] + (5.0 if iteration < 20 else 0.1))
    steps = [step(rank, k, 64, 0.03, ended_at_s=end + rank) for rank in (1, 0) for k, end in enumerate(ends_s[1:])]
    assert iteration_s(list(steps), since=20) == pytest.approx(0.1)
    assert iteration_s(list(steps), since=0) == pytest.approx(5.0)


def case(simulated: tuple[float, float], emulated: tuple[float, float]) -> dict[str, dict[str, float]]:
    return {
        name: {"simulated_s": s, "emulated_s": e, "error": abs(s - e) / e}
        for name, s, e in zip(("even", "lb-bsp"), simulated, emulated, strict=True)
    }


def test_worlds_agree_or_not() -> None:
    compared = {"both gain": case((0.30, 0.10), (0.33, 0.11)), "opposite": case((0.10, 0.20), (0.20, 0.10))}
    races = {
        "both gain": [Race(3.0, 2.9)],
        "a tie in both": [Race(0.99, 1.01)],
        "a tie in one": [Race(1.0, 1.1)],
        "opposite": [Race(0.5, 2.0)],
        "on both sides of a tie's edge": [Race(1.029, 1.031)],
        "undecided": [Race(1.0, 0.95), Race(1.01, 0.93), Race(1.02, 1.06)],
        "decided": [Race(1.0, 0.95), Race(1.01, 0.93), Race(1.02, 0.96)],
    }
    found = summarize(compared, races)
    assert found["faster"] == {
        "both gain": {"simulated": "lb-bsp", "emulated": "lb-bsp"},
        "a tie in both": {"simulated": "neither", "emulated": "neither"},
        "a tie in one": {"simulated": "neither", "emulated": "lb-bsp"},
        "opposite": {"simulated": "even", "emulated": "lb-bsp"},
        "on both sides of a tie's edge": {"simulated": "neither", "emulated": "lb-bsp"},
        "undecided": {"simulated": "neither", "emulated": "neither"},
        "decided": {"simulated": "neither", "emulated": "even"},
    }
    assert found["rank_agreement"] == pytest.approx(4 / 7)
    assert found["worst_error"] == pytest.approx(1.0)
    assert found["gains"]["undecided"]["emulated"] == [0.95, 0.93, 1.06]


def test_two_races_do_not_tell_that_there_is_no_winner() -> None:
    assert verdict([0.9, 1.2]) == "lb-bsp"
    assert verdict([0.9, 1.2, 1.1]) == "neither"


def test_a_close_race_is_run_again() -> None:
    assert close([Race(1.02, 1.18)])
    assert close([Race(3.0, 1.05)])
    assert not close([Race(1.5, 1.45)])


def test_every_case_can_be_written_down_and_fits_a_laptop() -> None:
    found = cases(Workload())
    assert len(found) >= 6
    for one in found.values():
        assert from_toml(to_toml(one.spec), "case", no_files) == one.spec
        assert sum(node.cores for node in one.spec.nodes) <= 1.8
    assert sum(one.needs_root for one in found.values()) == 4


def test_the_middle_pair_tells_the_error() -> None:
    pairs = [Pair(0.10, 0.20), Pair(0.30, 0.30), Pair(0.22, 0.20)]
    found = summary(pairs)
    assert found["error"] == pytest.approx(0.0)  # of 0.5, 1.0 and 1.1
    assert (found["simulated_s"], found["emulated_s"]) == (0.22, 0.20)
    assert found["emulated_range_s"] == [0.20, 0.30]


def test_a_large_simulation_tells_its_speed_and_memory() -> None:
    found = many(workers=12, iterations=3)
    assert set(found) == {"took_s", "peak_bytes", "events_per_s"}
    assert all(value > 0 for value in found.values())
    with pytest.raises(LaunchError, match="many 0 3 … failed"):
        many(workers=0, iterations=3)


def recorded(place: Path, name: str) -> None:
    """A folder as an emulated run leaves it: two steps of two workers and a split."""
    run = place / name
    run.mkdir(parents=True)
    (run / DESCRIPTION).write_text(to_toml(ClusterSpec(name="two", nodes=(Node(name="a"), Node(name="b")))))
    for rank in range(2):
        with Writer(rank_path(run / RUN, rank)) as writer:
            writer.write(RunRecord(run="two", rank=rank, world_size=2, host="secret-host", pid=7, started_at_s=1000.0))
            writer.write(*(step(rank, iteration, 10, 0.05, ended_at_s=1001.5 + iteration) for iteration in range(2)))
            if rank == 0:
                writer.write(
                    SplitRecord(
                        decided_at=0, iteration=1, shares=(5, 15), speeds_per_s=(1.0, 3.0),
                        predicted_per_s=(1.0, 3.5), reason="faster",
                    )
                )  # fmt: skip


def test_kept_runs_are_a_data_set_without_hosts(tmp_path: Path) -> None:
    place, folder = tmp_path / "place", tmp_path / "kept"
    recorded(place, "two-even-0")
    recorded(place, "two-lb-bsp-0")
    keep.free(folder)
    keep.write(place, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["LICENSE", "README.md", "two-even-0", "two-lb-bsp-0"]
    with (folder / "two-even-0" / "steps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["rank"], row["iteration"], row["ended_at_s"]) for row in rows] == [
        ("0", "0", "1.5"), ("0", "1", "2.5"), ("1", "0", "1.5"), ("1", "1", "2.5"),
    ]  # fmt: skip
    with (folder / "two-lb-bsp-0" / "splits.csv").open(newline="") as file:
        assert [row["shares"] for row in csv.DictReader(file)] == ["5 15"]
    assert from_toml((folder / "two-even-0" / DESCRIPTION).read_text(), "kept", no_files).nodes[1].name == "b"
    readme = (folder / "README.md").read_text()
    assert readme.startswith("# Steps of unequal workers\n\n2 trainings")
    assert all(f"`{column}`" in readme for column in (*keep.STEP_COLUMNS, *keep.SPLIT_COLUMNS))
    assert "CC BY 4.0" in (folder / "LICENSE").read_text()
    assert not any("secret-host" in path.read_text() for path in folder.rglob("*") if path.is_file())
    with pytest.raises(ConfigError, match="it exists already: name a new folder"):
        keep.free(folder)
