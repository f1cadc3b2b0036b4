"""Control groups of version 1 and 2: a quota of processor time and a memory limit for each node.

Version 1 as in the kernel's ``scheduler/sched-bwc`` and ``cgroup-v1/memory``, version 2 as in ``cgroup-v2``. Version 1
has one tree per controller, so a node has one group in each.
"""

import errno
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from uneven.cluster.emulate.pure import names
from uneven.errors import LaunchError, access

PERIOD_S = 0.01
LEAST_QUOTA_S = 0.001  # the kernel's minimum; a smaller share has a longer period
_LONGEST_PERIOD_S = 1.0
_END_WITHIN_S = 10.0
_SHARES, _MOST_SHARES = 1024, 262_144  # of version 1
_WEIGHT, _MOST_WEIGHT = 100, 10_000  # of version 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """The places in which this machine lets groups be made."""

    version: int
    cpu: Path  # group for new ones
    memory: Path | None  # the same for memory; None without that controller
    # the same for the accounting of processor time, if version 1 has a separate tree for it
    accounts: Path | None = None

    def groups(self, run: str, *, memory: bool) -> tuple[Path, ...]:
        """Return the groups of an emulation, which must be removed after it."""
        trees = [self.cpu]
        if self.accounts is not None:  # no limit, but lets a node's worker see the use by other processes
            trees.append(self.accounts)
        if memory and self.memory is not None and self.memory != self.cpu:
            trees.append(self.memory)
        return tuple(tree / names.group(run) for tree in trees)


def find(mounts: Path = Path("/proc/self/mountinfo"), own: Path = Path("/proc/self/cgroup")) -> Trees | str:
    """Return the trees of this machine, or the reason why there are none."""
    # Prefer version 2 if it has the cpu controller. Version 1 groups go below this process's own group, so its limits
    # still hold. Version 2 allows no processes next to groups with controllers except at the top, so groups go there.
    paths = _own_paths(own)
    v1: dict[str, Path] = {}
    for line in mounts.read_text().splitlines() if mounts.is_file() else []:
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, place = (_unescaped(text) for text in before.split(" ")[3:5])
        if kind == "cgroup2":
            controllers = _read(Path(place) / "cgroup.controllers").split()
            if "cpu" in controllers:
                return Trees(version=2, cpu=Path(place), memory=Path(place) if "memory" in controllers else None)
        if kind == "cgroup":
            for controller in {"cpu", "cpuacct", "memory"} & set(options.split(",")):
                v1[controller] = _below(Path(place), root, paths.get(controller, "/"))
    if "cpu" not in v1:
        return "no control group with the cpu controller is mounted"
    accounts = v1.get("cpuacct")
    return Trees(
        version=1, cpu=v1["cpu"], memory=v1.get("memory"), accounts=None if accounts == v1["cpu"] else accounts
    )


def _own_paths(own: Path) -> dict[str, str]:
    lines = own.read_text().splitlines() if own.is_file() else []
    split = [line.split(":", 2) for line in lines]
    return {controller: path for _, controllers, path in split for controller in controllers.split(",")}


def _below(place: Path, root: str, path: str) -> Path:
    """Return this process's group below the mount point of the tree (or of its part ``root``)."""
    inside = Path("/" + os.path.relpath(path, root)) if Path(path).is_relative_to(root) else Path("/")
    here = place.joinpath(*inside.parts[1:])
    return here if here.is_dir() else place


def _unescaped(text: str) -> str:
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\134", "\\")):
        text = text.replace(code, letter)
    return text


def quota_us(cores: float) -> tuple[int, int]:
    """Return quota and period in microseconds for a number of cores: 10 ms periods, longer ones below 0.1 core."""
    least = LEAST_QUOTA_S / _LONGEST_PERIOD_S
    period_s = max(PERIOD_S, LEAST_QUOTA_S / max(cores, least))
    return round(max(cores, least) * period_s * 1e6), round(period_s * 1e6)


class ControlGroups:
    """The control groups of an emulation's nodes. Raises LaunchError with the file if the kernel rejects a write."""

    def __init__(self, trees: Trees, run: str, count: int, *, memory: bool) -> None:
        self._v2 = trees.version == 2
        self._tops = trees.groups(run, memory=memory)
        self._memory_top = trees.memory / names.group(run) if memory and trees.memory else None
        if self._v2:
            self._delegate(trees.cpu, memory)
        for top in self._tops:
            _make(top)
        if self._v2:
            self._delegate(self._tops[0], memory)
        # Each node has the same weight against the rest of the machine as a separate process or group.
        if self._v2:
            _write(self._tops[0] / "cpu.weight", str(min(_WEIGHT * count, _MOST_WEIGHT)))
        else:
            _write(self._tops[0] / "cpu.shares", str(min(_SHARES * count, _MOST_SHARES)))
        for index in range(count):
            for group in self.of(index):
                _make(group)

    def of(self, index: int) -> tuple[Path, ...]:
        """Return a node's groups; its processes write themselves into ``cgroup.procs`` of each."""
        return tuple(top / names.node_group(index) for top in self._tops)

    def limit_cores(self, index: int, cores: float | None) -> None:
        """Limit a node to a number of cores; None removes the limit."""
        group = self.of(index)[0]
        quota, period = quota_us(1.0 if cores is None else cores)
        if self._v2:
            _write(group / "cpu.max", f"max {period}" if cores is None else f"{quota} {period}")
        elif cores is None:
            _write(group / "cpu.cfs_quota_us", "-1")
        else:
            _write(group / "cpu.cfs_period_us", str(period))
            _write(group / "cpu.cfs_quota_us", str(quota))

    def limit_memory(self, index: int, limit_bytes: int) -> None:
        """Limit a node's memory, without swap space; the kernel kills a process that needs more."""
        assert self._memory_top is not None
        group = self._memory_top / names.node_group(index)
        if self._v2:
            _write(group / "memory.max", str(limit_bytes))
            _write_if_there(group / "memory.swap.max", "0")
        else:
            _write_if_there(group / "memory.swappiness", "0")
            _write(group / "memory.limit_in_bytes", str(limit_bytes))

    def killed_for_memory(self, index: int) -> bool:
        """Return whether the kernel has killed a process of this node for its memory."""
        if self._memory_top is None:
            return False
        group = self._memory_top / names.node_group(index)
        text = _read(group / ("memory.events" if self._v2 else "memory.oom_control"))
        return any(line.split()[0] == "oom_kill" and line.split()[1] != "0" for line in text.splitlines())

    def kill(self, index: int) -> None:
        kill(self.of(index)[0])

    def _delegate(self, group: Path, memory: bool) -> None:
        wanted = ["cpu"] + (["memory"] if memory else [])
        missing = [name for name in wanted if name not in _read(group / "cgroup.subtree_control").split()]
        if missing:
            _write(group / "cgroup.subtree_control", " ".join(f"+{name}" for name in missing))


def processes(group: Path) -> list[int]:
    files = [group / "cgroup.procs", *group.glob("*/cgroup.procs")]
    return [int(line) for file in files for line in _read(file).split()]


def kill(group: Path) -> None:
    """Kill every process in a group and below, and wait for their ends. Raises LaunchError after ten seconds."""
    deadline_s = time.monotonic() + _END_WITHIN_S
    if processes(group):
        _write_if_there(group / "cgroup.kill", "1")  # version 2, since Linux 5.14: all at the same time
    while left := processes(group):
        if time.monotonic() > deadline_s:
            raise LaunchError(
                f"processes {', '.join(map(str, left))} in {group} still run after SIGKILL: end them by hand"
            )
        for pid in left:
            _kill_if_in(pid, group)
        time.sleep(0.01)


def remove(group: Path) -> int:
    """Kill a group's processes, remove it and those below it; return the number of killed processes."""
    if not group.is_dir():
        return 0
    found = len(processes(group))
    kill(group)
    for each in (*(path for path in group.iterdir() if path.is_dir()), group):
        _remove_empty(each)
    return found


def _kill_if_in(pid: int, group: Path) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # Checked after the descriptor is open, because the kernel may have reused the process id.
        if pid in processes(group):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def _remove_empty(group: Path) -> None:
    deadline_s = time.monotonic() + _END_WITHIN_S
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:  # busy for a moment after its last process has ended
            if time.monotonic() > deadline_s:
                raise LaunchError(f"cannot remove the control group {group}: {error.strerror}") from error
            time.sleep(0.01)
        else:
            return


def _make(group: Path) -> None:
    with access(f"make the control group {group}", LaunchError):
        group.mkdir()


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        hint = ""
        if file.name == "cgroup.subtree_control":
            hint = "; version 2 gives a group with processes in it no controllers: move them into a group below it"
        raise LaunchError(f"cannot write {text!r} to {file}: {error.strerror}{hint}") from error


def _write_if_there(file: Path, text: str) -> None:
    if file.exists():
        _write(file, text)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):  # not there, or removed while it was open
            return ""
        raise
