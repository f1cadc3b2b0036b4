"""Nodes as root makes them: a network namespace and control groups for each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from uneven.cluster.spec import Node
from uneven.emulate import names, state
from uneven.emulate.cgroup import ControlGroups, Trees
from uneven.emulate.enter import Task, command
from uneven.emulate.load import Rivals
from uneven.emulate.netns import EmulatedNetwork
from uneven.emulate.replay import Quantity, Setting

MASTER_PORT = 29500  # torchrun's; free in a network of one's own


class Isolated:
    """See :class:`uneven.emulate.machines.Machines`.

    Args:
        nodes: of the description.
        trees: the machine's control groups.

    Raises:
        LaunchError: the kernel or a tool refuses; nothing is left then.
    """

    def __init__(self, nodes: Sequence[Node], trees: Trees) -> None:
        self.id = names.new_id()
        self.how = f"network namespaces and control groups of version {trees.version} (emulation {self.id})"
        self.network = {
            "MASTER_ADDR": names.address(0),
            "MASTER_PORT": str(MASTER_PORT),
            "GLOO_SOCKET_IFNAME": names.INTERFACE,
            "NCCL_SOCKET_IFNAME": names.INTERFACE,
        }
        # Without names for the addresses, torch would ask a name server for them, and complain. It asks in IPv6.
        lines = [f"{form}{names.address(i)} {node.name}" for i, node in enumerate(nodes) for form in ("", "::ffff:")]
        self._hosts = "\n".join(["127.0.0.1 localhost", *lines, ""])
        memory = any(node.memory_bytes is not None for node in nodes)
        self._stack = ExitStack()
        with ExitStack() as undo:
            owner = state.begin(self.id, trees.groups(self.id, memory=memory))
            undo.callback(state.end, owner)
            self._groups = ControlGroups(trees, self.id, len(nodes), memory=memory)
            for index, node in enumerate(nodes):
                if node.memory_bytes is not None:
                    self._groups.limit_memory(index, node.memory_bytes)
            self._network = EmulatedNetwork([node.latency_s for node in nodes])
            undo.callback(self._network.close)
            self._rivals = [Rivals(partial(self._start_rival, i), node.threads) for i, node in enumerate(nodes)]
            self._stack = undo.pop_all()
        for rivals in self._rivals:
            self._stack.callback(rivals.close)

    def start(self, index: int, program: tuple[str, ...], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a worker inside a node."""
        network = self._network.namespace(index)
        return subprocess.Popen(
            command(self._task(index, program, network)),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            pass_fds=[network],
            start_new_session=True,  # Ctrl-C is for the emulator, which ends it
        )

    def apply(self, index: int, setting: Setting) -> None:
        """Let a setting hold from now on."""
        match setting.quantity:
            case Quantity.CORES:
                self._groups.limit_cores(index, setting.value)
            case Quantity.LOAD:
                self._rivals[index].set(setting.value)
            case Quantity.UP | Quantity.DOWN:
                self._network.limit(index, up=setting.quantity is Quantity.UP, bit_per_s=setting.value)

    def lift(self, index: int) -> None:
        """Let a node's worker use what it can get of the processor."""
        self._groups.limit_cores(index, None)
        self._rivals[index].set(0.0)

    def kill(self, index: int) -> None:
        """Kill everything on a node."""
        self._groups.kill(index)

    def why_killed(self, index: int) -> str:
        """Why a worker was killed, where the kernel says so."""
        return "it needed more memory than its node's memory_bytes" if self._groups.killed_for_memory(index) else ""

    def close(self) -> None:
        """Kill what is left, remove the groups, let go of the network."""
        self._stack.close()

    def _start_rival(self, index: int) -> subprocess.Popen[bytes]:
        program = (sys.executable, "-P", "-m", "uneven.emulate.rival")
        return subprocess.Popen(
            command(self._task(index, program, None)), stdin=subprocess.PIPE, start_new_session=True, bufsize=0
        )

    def _task(self, index: int, program: tuple[str, ...], network: int | None) -> Task:
        groups = tuple(map(str, self._groups.of(index)))
        return Task(program=program, emulator=os.getpid(), groups=groups, network=network, hosts=self._hosts)
