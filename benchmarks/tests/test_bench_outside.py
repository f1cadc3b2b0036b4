"""``uneven bench worlds --case outside``: a small excerpt of the published measurements, and what follows from it.

The excerpt: four rows of Pollux's measurements (github.com/petuum/adaptdl, branch osdi21-artifact) and of
diloco-measured (github.com/Adnan082/diloco-measured), both Apache-2.0, reduced as their notes say.
"""

from pathlib import Path

import pytest

from uneven_bench.worlds.outside import bench, sources
from uneven_bench.worlds.outside.play import SourcePoint, summary

POLLUX = """\
application,nodes,local_batch,alone_s,measured_s
imagenet,2,20,0.14741,0.25749
imagenet,3,20,0.14741,0.23738
imagenet,4,20,0.14741,0.33392
cifar10,2,1024,0.70209,0.72198
"""
SEVERAL = """\
application,gpus_by_machine,gpus,local_batch,alone_s,measured_s
cifar10,12,3,1024,0.70209,0.77828
cifar10,2,2,1024,0.70209,0.83797
"""
DILOCO = """\
algorithm,every,bandwidth,repeat,measured_ms
ddp,1,1g,0,1993.91
diloco,1,1g,0,1533.2
localsgd,1,1g,0,1527.54
"""
SHAPED = """\
name = "shaped"
workload = { global_batch = 16, gradient_bytes = 123_386_880 }
defaults = { up_bit_per_s = 1e9, down_bit_per_s = 20e9 }
nodes = [{ name = "l40s-", count = 4, cost = 0.0252 }]
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNEVEN_DATA", str(tmp_path))
    for name, text in (
        ("pollux/points.csv", POLLUX),
        ("pollux/several_gpus.csv", SEVERAL),
        ("diloco_measured/points.csv", DILOCO),
        ("diloco_measured/shaped_1g.toml", SHAPED),
    ):
        path = tmp_path / "truth" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def quiet(phase: str, what: str, part: float) -> None:
    """Show no progress."""


def test_an_excerpt_is_near_to_the_measured_steps_and_calibration_points_are_not_compared(data: Path) -> None:
    found = bench.run(quiet)
    assert found["left_out"] == ["tensorflow_k80", "horovod"]
    assert {name: one["points"] for name, one in found["outside"].items()} == {
        "diloco_measured": 2, "diloco_ddp": 1, "pollux": 1, "pollux_several": 1, "pollux_sold": 1,
        "pollux_sold_group": 1, "onebit_ethernet": 6, "onebit_infiniband": 5,
    }  # fmt: skip
    median, worst = found["median_error"], found["worst_error"]
    assert worst["diloco_measured"] < 0.05
    assert worst["diloco_ddp"] < 0.12
    assert median["pollux"] < 0.07
    assert median["pollux_several"] < 0.1
    assert median["onebit_ethernet"] < 0.15
    assert median["onebit_infiniband"] < 0.2
    assert found["pairs_ordered"] == found["pairs"] == 2
    assert list(found["today"]) == ["1g"]
    assert "calibrated with 3 points" in found["calibrated"][1]


def test_without_data_each_source_is_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNEVEN_DATA", raising=False)
    found = bench.run(quiet)
    assert found["left_out"] == ["diloco_measured", "pollux", "tensorflow_k80", "horovod"]
    assert set(found["median_error"]) == {"onebit_ethernet", "onebit_infiniband"}
    assert "pairs" not in found


def test_errors_of_a_source_keep_their_sign_in_one_figure_only() -> None:
    points = [SourcePoint(what="", measured_s=1.0, simulated_s=simulated_s) for simulated_s in (0.9, 0.8, 1.5)]
    assert summary(points) == pytest.approx((3, 0.2, -0.1, 0.5))


def test_pairs_are_ordered_only_if_they_measured_apart() -> None:
    def row(algorithm: str, measured_ms: float, simulated_s: float) -> dict[str, str]:
        return {"algorithm": algorithm, "every": "1", "bandwidth": "1g", "measured_ms": str(measured_ms),
                "simulated_s": str(simulated_s)}  # fmt: skip

    rows = [row("a", 100, 1.0), row("b", 104, 0.5), row("c", 200, 0.7)]
    assert bench.ordered(rows) == {"pairs": 2, "pairs_ordered": 1}


def test_steps_of_a_run_are_those_of_its_telemetry() -> None:
    assert sources.steps_of({"algorithm": "ddp", "every": "1", "bandwidth": "50m"}) == 15
    assert sources.steps_of({"algorithm": "diloco", "every": "128", "bandwidth": "50m"}) == 200
