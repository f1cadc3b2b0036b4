"""Control groups: which tree is taken, what is written into which file.

The files are real ones in a folder that looks like what the kernel shows; tests/system/emulate/test_emulate.py
uses the kernel's.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from uneven.cluster.emulate import cgroup
from uneven.cluster.emulate.cgroup import ControlGroups, Trees, quota_us
from uneven.cluster.emulate.pure import names
from uneven.errors import LaunchError


def mounted(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "mountinfo"
    file.write_text("\n".join(lines) + "\n")
    return file


def belongs(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "cgroup"
    file.write_text("\n".join(lines) + "\n")
    return file


def v2(tmp_path: Path, controllers: str = "cpuset cpu io memory pids") -> Path:
    top = tmp_path / "unified"
    top.mkdir()
    (top / "cgroup.controllers").write_text(controllers + "\n")
    (top / "cgroup.subtree_control").write_text("memory\n")
    return top


def line(place: Path, kind: str, options: str, root: str = "/") -> str:
    return f"30 20 0:26 {root} {place} rw,nosuid - {kind} cgroup rw,{options}"


def test_version_2_is_taken_where_it_has_the_controllers(tmp_path: Path) -> None:
    top = v2(tmp_path)
    found = cgroup.find(mounted(tmp_path, line(top, "cgroup2", "nsdelegate")), belongs(tmp_path, "0::/user.slice"))
    assert found == Trees(version=2, cpu=top, memory=top)


def test_version_2_without_memory(tmp_path: Path) -> None:
    top = v2(tmp_path, "cpu pids")
    found = cgroup.find(mounted(tmp_path, line(top, "cgroup2", "x")), belongs(tmp_path, "0::/"))
    assert found == Trees(version=2, cpu=top, memory=None)


def test_version_1_beside_an_empty_version_2_below_ones_own_group(tmp_path: Path) -> None:
    top = v2(tmp_path, "")
    for name in ("cpu,cpuacct", "memory/inside/mine"):
        (tmp_path / name).mkdir(parents=True)
    mounts = mounted(
        tmp_path,
        "25 1 0:5 / /proc rw - proc proc rw",
        line(top, "cgroup2", "x"),
        line(tmp_path / "cpu,cpuacct", "cgroup", "cpu,cpuacct"),
        line(tmp_path / "memory", "cgroup", "memory"),
    )
    found = cgroup.find(mounts, belongs(tmp_path, "4:memory:/inside/mine", "2:cpu,cpuacct:/", "0::/"))
    assert found == Trees(version=1, cpu=tmp_path / "cpu,cpuacct", memory=tmp_path / "memory" / "inside" / "mine")


def test_in_a_container_only_a_part_of_the_tree_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "cpu" / "job").mkdir(parents=True)
    mounts = mounted(tmp_path, line(tmp_path / "cpu", "cgroup", "cpu", root="/docker/abc"))
    inside = cgroup.find(mounts, belongs(tmp_path, "2:cpu:/docker/abc/job"))
    assert inside == Trees(version=1, cpu=tmp_path / "cpu" / "job", memory=None)
    outside = cgroup.find(mounts, belongs(tmp_path, "2:cpu:/elsewhere"))
    assert outside == Trees(version=1, cpu=tmp_path / "cpu", memory=None)


def test_without_any_there_is_a_reason(tmp_path: Path) -> None:
    assert cgroup.find(tmp_path / "none", tmp_path / "none") == "no control group with the cpu controller is mounted"


@pytest.mark.parametrize(
    ("cores", "quota", "period"),
    [(0.6, 6000, 10_000), (4, 40_000, 10_000), (0.1, 1000, 10_000), (0.05, 1000, 20_000), (0, 1000, 1_000_000)],
)
def test_quotas_keep_to_the_kernels_least(cores: float, quota: int, period: int) -> None:
    assert quota_us(cores) == (quota, period)


def test_what_version_2_is_told(tmp_path: Path) -> None:
    top = v2(tmp_path)
    groups = ControlGroups(Trees(version=2, cpu=top, memory=top), "0123abcd", 2, memory=True)
    run = top / "uneven-0123abcd"
    assert (top / "cgroup.subtree_control").read_text() == "+cpu"  # memory was there
    assert (run / "cgroup.subtree_control").read_text() == "+cpu +memory"
    assert (run / "cpu.weight").read_text() == "200"
    assert groups.of(1) == (run / "node1",)
    groups.limit_cores(0, 0.25)
    assert (run / "node0" / "cpu.max").read_text() == "2500 10000"
    groups.limit_cores(0, None)
    assert (run / "node0" / "cpu.max").read_text().startswith("max ")
    (run / "node1" / "memory.swap.max").touch()
    groups.limit_memory(1, 2**30)
    assert (run / "node1" / "memory.max").read_text() == str(2**30)
    assert (run / "node1" / "memory.swap.max").read_text() == "0"
    (run / "node1" / "memory.events").write_text("low 0\noom 1\noom_kill 0\n")
    assert not groups.killed_for_memory(1)
    (run / "node1" / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    assert groups.killed_for_memory(1)


def test_what_version_1_is_told(tmp_path: Path) -> None:
    cpu, memory = tmp_path / "cpu", tmp_path / "memory"
    cpu.mkdir()
    memory.mkdir()
    groups = ControlGroups(Trees(version=1, cpu=cpu, memory=memory), "0123abcd", 1, memory=True)
    (node, other) = groups.of(0)
    assert (node, other) == (cpu / "uneven-0123abcd" / "node0", memory / "uneven-0123abcd" / "node0")
    groups.limit_cores(0, 0.3)
    assert [(node / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")] == ["3000", "10000"]
    groups.limit_cores(0, None)
    assert (node / "cpu.cfs_quota_us").read_text() == "-1"
    groups.limit_memory(0, 2**28)
    assert (other / "memory.limit_in_bytes").read_text() == str(2**28)
    (other / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert groups.killed_for_memory(0)


def test_without_a_limit_memory_has_no_group(tmp_path: Path) -> None:
    cpu, memory = tmp_path / "cpu", tmp_path / "memory"
    cpu.mkdir()
    memory.mkdir()
    groups = ControlGroups(Trees(version=1, cpu=cpu, memory=memory), "0123abcd", 1, memory=False)
    assert groups.of(0) == (cpu / "uneven-0123abcd" / "node0",)
    assert list(memory.iterdir()) == []
    assert not groups.killed_for_memory(0)


def test_a_refusal_of_the_kernel_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"cannot make the control group .*/gone/uneven-0123abcd: No such file"):
        ControlGroups(Trees(version=1, cpu=tmp_path / "gone", memory=None), "0123abcd", 1, memory=False)
    top = v2(tmp_path)
    (top / "cgroup.subtree_control").unlink()
    (top / "cgroup.subtree_control").mkdir()  # cannot be written, as for the kernel's own reasons
    with pytest.raises((LaunchError, IsADirectoryError)):
        ControlGroups(Trees(version=2, cpu=top, memory=top), "0123abcd", 1, memory=False)


def test_removing_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    assert cgroup.remove(tmp_path / "uneven-0123abcd") == 0
    (tmp_path / "uneven-0123abcd" / "node0").mkdir(parents=True)
    assert cgroup.remove(tmp_path / "uneven-0123abcd") == 0
    assert not (tmp_path / "uneven-0123abcd").exists()


def test_version_1_may_keep_accounts_in_a_tree_of_its_own(tmp_path: Path) -> None:
    for name in ("cpu", "cpuacct"):
        (tmp_path / name).mkdir()
    mounts = mounted(tmp_path, *(line(tmp_path / name, "cgroup", name) for name in ("cpu", "cpuacct")))
    found = cgroup.find(mounts, belongs(tmp_path, "2:cpuacct:/", "1:cpu:/"))
    assert found == Trees(version=1, cpu=tmp_path / "cpu", memory=None, accounts=tmp_path / "cpuacct")
    assert found.groups("0123abcd", memory=False) == tuple(
        tmp_path / name / names.group("0123abcd") for name in ("cpu", "cpuacct")
    )
