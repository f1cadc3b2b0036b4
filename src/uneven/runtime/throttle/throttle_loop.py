"""The throttle's own process, so that only its own interpreter lock can delay it.

There are two processes, and each handles the other's death::

    user's process ──commands──▶ loop ──names of processes──▶ guard
                   ◀──answers───      ◀────(its end)────────

The loop stops and continues processes. The guard only waits: when the loop dies by any signal, it continues every
process. When the guard or the user's process dies, the loop continues every process and ends.
:class:`uneven.runtime.throttle.throttle.Throttle` runs it as ``python -m uneven.runtime.throttle.throttle_loop
PERIOD_S``.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

from uneven.errors import ConfigError
from uneven.runtime.jobs.processes import HeldProcess, Newborns, adopted, ancestors, descendants
from uneven.runtime.throttle.share_rule import Account, ShareRule, advance

_SCAN_EVERY_S = 0.2


class _Member:
    """One process of a tree, with its last readings."""

    __slots__ = ("cpu_s", "process", "waited_s")

    def __init__(self, process: HeldProcess, *, from_birth: bool) -> None:
        self.process = process
        self.cpu_s = 0.0 if from_birth else process.cpu_s() or 0.0
        self.waited_s = process.waited_s()

    def used_s(self) -> float:
        cpu = self.process.cpu_s()
        if cpu is None:
            return 0.0
        used, self.cpu_s = cpu - self.cpu_s, cpu
        return used

    def lacked_s(self) -> float:
        now = self.process.waited_s()
        lacked, self.waited_s = max(now - self.waited_s, 0.0), now
        return lacked


class _Tree:
    """A process and its descendants, with one account."""

    def __init__(self, rule: ShareRule, now_s: float) -> None:
        self.rule = rule
        self.account = Account()
        self.members: dict[int, _Member] = {}
        self.used_s = 0.0
        self.checked_s = now_s
        self.due_s = now_s

    def check(self, now_s: float) -> None:
        used = sum(member.used_s() for member in self.members.values())
        lacked = max(member.lacked_s() for member in self.members.values())
        self.used_s += used
        was_stopped = self.account.stopped
        self.account = advance(self.rule, self.account, now_s - self.checked_s, used, lacked)
        self.checked_s = now_s
        self.due_s = now_s + self.account.check_in_s
        if self.account.stopped != was_stopped:
            self.signal(signal.SIGSTOP if self.account.stopped else signal.SIGCONT)

    def signal(self, number: int) -> None:
        for member in self.members.values():
            _send(member.process, number)

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        for member in self.members.values():
            member.process.close()


def _send(process: HeldProcess, number: int) -> None:
    try:
        process.send(number)
    except ProcessLookupError:
        return  # it has ended; the next scan drops it


class Loop:
    """The loop that limits every tree until the commands end, or the socket ``guard`` reports the guard's death."""

    def __init__(self, period_s: float, guard: socket.socket) -> None:
        self._period_s = period_s
        self._guard = guard
        self._trees: dict[int, _Tree] = {}
        self._ends: list[int] = []  # become readable when a process ends
        self._newborns = Newborns()
        self._scan_s = 0.0
        self._rest = b""
        self._above = {os.getpid(), *ancestors(os.getpid())}

    def run(self) -> None:
        """Serve until the user's process or the guard has ended. Leave no process stopped."""
        try:
            while self._turn():
                pass
        finally:
            for tree in self._trees.values():
                tree.close()

    def _turn(self) -> bool:
        due = min([self._scan_s, *(tree.due_s for tree in self._trees.values())])
        guard = self._guard.fileno()
        wait = max(due - time.monotonic(), 0.0)
        ready, _, _ = select.select([0, guard, *self._ends], [], [], wait)
        if guard in ready or (0 in ready and not self._commands()):
            return False
        if any(end in ready for end in self._ends):
            self._bury()
        now = time.monotonic()
        if now >= self._scan_s:
            self._scan_s = now + _SCAN_EVERY_S
            self._scan()
        for tree in self._trees.values():
            if tree.due_s <= now:
                tree.check(now)
        return True

    def _descriptors(self) -> list[int]:
        return [process.descriptor for process in self._processes() if process.descriptor >= 0]

    def _processes(self) -> Iterator[HeldProcess]:
        for tree in self._trees.values():
            for member in tree.members.values():
                yield member.process

    def _commands(self) -> bool:
        data = os.read(0, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            os.write(1, json.dumps(self._answer(json.loads(line))).encode() + b"\n")
        return bool(data)

    def _answer(self, command: dict[str, Any]) -> dict[str, Any]:
        pid = command.get("pid", 0)
        try:
            match command["do"]:
                case "limit":
                    self._limit(pid, ShareRule(share=command["share"], period_s=self._period_s))
                case "release":
                    self._release(pid)
                case "stats":
                    used = {pid: tree.used_s for pid, tree in self._trees.items()}
                    return {"own_cpu_s": time.process_time(), "used_s": used}
        except ConfigError as error:
            return {"error": str(error)}
        except ProcessLookupError:
            return {"error": f"no process {pid}; it may have ended already"}
        except PermissionError:
            return {"error": f"process {pid} belongs to another user; only your own can be throttled"}
        return {}

    def _limit(self, pid: int, rule: ShareRule) -> None:
        if pid in self._trees:
            self._trees[pid].rule = rule
            self._trees[pid].due_s = 0.0
            return
        if pid in self._above:
            raise ConfigError(
                f"process {pid} runs the throttle itself, which would stop with it: limit its child processes, or "
                "start the Throttle in another process"
            )
        tree = _Tree(rule, time.monotonic())
        self._add(tree, pid, from_birth=False)
        self._trees[pid] = tree
        for child in descendants(pid):
            self._adopt(tree, child, from_birth=False)
        self._ends = self._descriptors()

    def _release(self, pid: int) -> None:
        tree = self._trees.pop(pid, None)
        if tree is not None:
            self._tell_guard("-", *tree.members)
            tree.close()
            self._ends = self._descriptors()

    def _add(self, tree: _Tree, pid: int, *, from_birth: bool) -> None:
        process = HeldProcess(pid)
        # Name the process to the guard before the first SIGSTOP, or it stays stopped if this loop is killed.
        self._tell_guard("+", pid)
        tree.members[pid] = _Member(process, from_birth=from_birth)
        if tree.account.stopped:
            _send(process, signal.SIGSTOP)

    def _adopt(self, tree: _Tree, pid: int, *, from_birth: bool) -> None:
        try:
            self._add(tree, pid, from_birth=from_birth)
        except (ProcessLookupError, PermissionError):
            return  # ended in between, or changed its owner

    def _scan(self) -> None:
        if not self._trees:
            return
        if any(process.descriptor < 0 for process in self._processes()):
            self._bury()  # without descriptors no event reports an end
        parents = self._newborns.parents()
        for tree in self._trees.values():
            for pid in adopted(parents, tree.members):
                self._adopt(tree, pid, from_birth=True)
        self._ends = self._descriptors()

    def _bury(self) -> None:
        for root, tree in list(self._trees.items()):
            for pid, member in list(tree.members.items()):
                if member.process.gone():
                    member.process.close()
                    del tree.members[pid]
                    self._tell_guard("-", pid)
            if not tree.members:
                del self._trees[root]
        self._ends = self._descriptors()

    def _tell_guard(self, sign: str, *pids: int) -> None:
        self._guard.sendall("".join(f"{sign}{pid}\n" for pid in pids).encode())


def guard(line: socket.socket) -> None:
    """Record the processes that the loop names, and continue them when the loop ends."""
    held: dict[int, HeldProcess] = {}
    with line.makefile("r") as names:
        for name in names:
            pid = int(name[1:])
            if pid in held:
                held.pop(pid).close()
            if name[0] == "+":
                try:
                    held[pid] = HeldProcess(pid)
                except OSError:
                    continue  # ended in between
    for process in held.values():
        _send(process, signal.SIGCONT)


def _hurry() -> None:
    """Ask for real-time scheduling, so that a busy machine wakes this process on time."""
    # A late wake-up is a sprint of the worker. A higher priority is not enough: a running worker still keeps its slice
    # of several milliseconds. Without the permission the throttle is as accurate over a second or two.
    with contextlib.suppress(PermissionError, AttributeError):  # AttributeError: not Linux
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def main() -> int:
    """Run the two processes; return the exit code."""
    period_s = float(sys.argv[1])
    loop_end, guard_end = socket.socketpair()
    child = os.fork()
    if child == 0:
        guard_end.close()
        os.write(1, json.dumps({"pid": os.getpid()}).encode() + b"\n")
        _hurry()
        Loop(period_s, loop_end).run()
        return 0
    loop_end.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)  # the user's process must see the loop's end of the pipes, not ours
    os.dup2(nothing, 1)
    guard(guard_end)
    return 0 if os.waitpid(child, 0)[1] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
