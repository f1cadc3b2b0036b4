"""What others take of the node's processors."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from uneven.run.measure import control_group
from uneven.run.measure.other_load import Others, SharedNode, find


class Scene:
    """A node of two cores on which time passes as told."""

    def __init__(self) -> None:
        self.time_s = self.used_s = self.own_s = 0.0
        self.quota: float | None = None
        group = SharedNode(lambda: self.quota, lambda: self.own_s + self.beside_s)
        machine = SharedNode(lambda: 2.0, lambda: self.used_s)
        self.beside_s = 0.0  # by others in the same group
        self.others = Others([group, machine], lambda: self.own_s, lambda: self.time_s)

    def go(self, time_s: float, own: float, others: float) -> None:
        """So many cores busy with this process and with others."""
        self.time_s += time_s
        self.own_s += own * time_s
        self.used_s += (own + others) * time_s


def test_own_work_does_not_count() -> None:
    scene = Scene()
    assert math.isnan(scene.others.sample())
    scene.go(1.0, own=1.5, others=0.5)
    assert scene.others.sample() == pytest.approx(0.25)
    scene.go(1.0, own=2.0, others=0.0)
    assert scene.others.sample() == pytest.approx(0.0)


def test_a_group_counts_as_soon_as_it_has_a_quota() -> None:
    scene = Scene()
    scene.go(1.0, own=0.5, others=1.0)
    assert scene.others.sample() == pytest.approx(0.5)
    scene.quota = 0.5
    scene.go(1.5, own=0.25, others=1.0)
    assert math.isnan(scene.others.sample())  # nothing was read there before
    scene.go(1.0, own=0.25, others=1.0)
    scene.beside_s += 0.25
    assert scene.others.sample() == pytest.approx(0.5)


def test_readings_that_are_too_close_are_not_taken() -> None:
    scene = Scene()
    scene.go(1.0, own=0.0, others=2.0)
    assert scene.others.sample() == 1.0
    scene.go(0.01, own=0.0, others=0.0)
    assert scene.others.sample() == 1.0


def test_counts_that_run_against_each_other_stay_in_range() -> None:
    scene = Scene()
    scene.go(0.1, own=1.0, others=-0.2)  # the node's count is coarser than the process's
    assert scene.others.sample() == 0.0


def test_where_nothing_can_be_known() -> None:
    assert math.isnan(Others([]).sample())


def test_a_group_of_version_2_with_a_quota_is_the_node(tmp_path: Path) -> None:
    own, group = tmp_path / "cgroup", tmp_path / "tree" / "a" / "b"
    group.mkdir(parents=True)
    own.write_text("0::/a/b\n")
    (group / "cpu.max").write_text("50000 100000\n")
    (group / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    node = find(own, tmp_path / "tree")[0]
    assert (node.cores(), node.used_s()) == (0.5, 2.5)
    (group / "cpu.stat").write_text("usage_usec 2500000\nthrottled_usec 1500000\n")
    found = control_group.find(own, tmp_path / "tree")
    assert found is not None
    assert (found.throttled_s(), found.number) == (1.5, group.stat().st_ino)
    (group / "cpu.max").write_text("max 100000\n")
    assert node.cores() is None


@pytest.mark.parametrize("accounts", ["/g", "/"])
def test_a_group_of_version_1_is_the_node_if_it_keeps_accounts_of_it(tmp_path: Path, accounts: str) -> None:
    own, tree = tmp_path / "cgroup", tmp_path / "tree"
    own.write_text(f"2:cpuacct:{accounts}\n1:cpu:/g\n0::/\n")
    for controller in ("cpu", "cpuacct"):
        (tree / controller / "g").mkdir(parents=True)
    (tree / "cpu" / "g" / "cpu.cfs_quota_us").write_text("4000\n")
    (tree / "cpu" / "g" / "cpu.cfs_period_us").write_text("10000\n")
    (tree / "cpu" / "g" / "cpu.stat").write_text("nr_periods 9\nnr_throttled 3\nthrottled_time 250000000\n")
    (tree / "cpuacct" / "g" / "cpuacct.usage").write_text("1500000000\n")
    (tree / "cpuacct" / "cpuacct.usage").write_text("9000000000\n")
    found = find(own, tree)
    machine = find(tmp_path / "none", tree)
    assert len(found) == len(machine) + (accounts == "/g")
    if accounts == "/g":
        assert (found[0].cores(), found[0].used_s()) == (0.4, 1.5)
        group = control_group.find(own, tree)
        assert group is not None
        assert group.throttled_s() == 0.25
        (tree / "cpu" / "g" / "cpu.cfs_quota_us").write_text("-1\n")
        assert found[0].cores() is None


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="needs Linux' /proc/stat")
def test_a_busy_process_is_seen() -> None:
    others = Others(find())
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.6)
        assert others.sample() > 0.02
    finally:
        busy.kill()
        busy.wait()


def test_a_file_of_the_kernel_is_closed_in_silence_when_the_program_is_torn_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then the modules that it needs may be gone."""
    unheard: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unheard.append)
    file = control_group.KernelFile(Path("/proc/self/cgroup"))
    monkeypatch.setattr(control_group, "os", None)
    del file
    assert unheard == []
