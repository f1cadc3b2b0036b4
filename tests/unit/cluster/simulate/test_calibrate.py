"""The achieved part of links, from measured steps with a known answer."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from uneven.cli import main
from uneven.cluster import files
from uneven.cluster.pure.describe.spec import ClusterSpec, Node, Workload, steady
from uneven.cluster.pure.simulate.calibrate import MeasuredStep, calibrated, step_s
from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.core.cost import Affine

LINK = steady(10e9)


def cluster(achieved: float | None = None, count: int = 4) -> ClusterSpec:
    nodes = tuple(
        Node(name=f"n{rank}", up_bit_per_s=LINK, down_bit_per_s=LINK, cost=Affine(0.0, 0.001), achieved=achieved)
        for rank in range(count)
    )
    return ClusterSpec(name="c", nodes=nodes, workload=Workload(global_batch=40 * count, gradient_bytes=100_000_000))


def measured(spec: ClusterSpec, **keys: object) -> MeasuredStep:
    sync = str(keys.get("sync", "bsp"))
    return MeasuredStep(seconds=step_s(spec, sync), **keys)  # type: ignore[arg-type]


def test_the_part_with_which_steps_were_made_comes_out() -> None:
    slow = cluster(0.13)
    two = replace(cluster(0.13, 2), workload=replace(cluster(0.13, 2).workload, global_batch=20))
    steps = [measured(slow), measured(slow, sync="local:every=4"), measured(two, nodes=2, batch=10)]
    sold = replace(cluster(), nodes=tuple(replace(node, network="ethernet") for node in cluster().nodes))
    found = calibrated(sold, steps)
    assert found.achieved == pytest.approx(0.13, rel=0.01)
    assert found.spec == replace(cluster(found.achieved))
    assert found.worst < 0.01 < found.before
    assert "calibrated with 3 points" in str(found)


def test_one_odd_point_of_three_does_not_count() -> None:
    step = measured(cluster(0.2))
    found = calibrated(cluster(), [step, step, replace(step, seconds=step.seconds * 3)])
    assert found.achieved == pytest.approx(0.2, rel=0.01)
    assert found.worst == pytest.approx(2.0, rel=0.05)


def test_nothing_to_fit_is_said() -> None:
    with pytest.raises(ConfigError, match="give at least one"):
        calibrated(cluster(), [])
    with pytest.raises(ConfigError, match="nodes = 5; cluster 'c' has 4"):
        calibrated(cluster(), [MeasuredStep(seconds=1.0, nodes=5)])
    free = replace(cluster(), nodes=tuple(Node(name=f"n{rank}") for rank in range(2)))
    with pytest.raises(ConfigError, match="its links do not change the measured steps"):
        calibrated(free, [MeasuredStep(seconds=1.0)])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("seconds\nsoon\n", r"line 2: seconds = 'soon': give a number"),
        ("seconds,nodes\n1,2\n1,two\n", r"line 3: nodes = 'two': give a number"),
        ("seconds\n0\n", "seconds must be a positive number"),
        ("sync\nbsp\n", "seconds must be a positive number"),
        ("second\n1\n", "unknown column 'second'; did you mean 'seconds'"),
    ],
)
def test_mistakes_in_points_are_named_with_file_and_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "points.csv").write_text(text)
    with pytest.raises((ConfigError, UnknownNameError), match=complaint):
        files.measured_steps(tmp_path / "points.csv")


def test_the_command_says_that_figures_are_calibrated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "points.csv").write_text(f"seconds,nodes\n{step_s(cluster(0.2), 'bsp')},\n")
    toml = """
        name = "c"
        workload = { global_batch = 160, gradient_bytes = 100_000_000 }
        nodes = [{ name = "n", count = 4, up_bit_per_s = 10e9, down_bit_per_s = 10e9, cost = 0.04 }]
    """
    (tmp_path / "c.toml").write_text(toml)
    words = ["simulate", str(tmp_path / "c.toml"), "--calibrate", str(tmp_path / "points.csv"), "--no-journal"]
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--iterations", "4"])
    assert "achieved = 0.2, calibrated with 1 point" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--iterations", "4", "--format", "json"])
    assert json.loads(capsys.readouterr().out)["calibrated"]["achieved"] == pytest.approx(0.2, rel=0.01)
