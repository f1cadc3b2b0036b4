"""Nodes of an emulation by root: a network namespace and control groups for each."""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from uneven.cluster.emulate import emulation_state
from uneven.cluster.emulate.artificial_load import Rivals
from uneven.cluster.emulate.cgroup import ControlGroups, Trees
from uneven.cluster.emulate.enter import Task, command
from uneven.cluster.emulate.netns import EmulatedNetwork, inside
from uneven.cluster.emulate.pure import names
from uneven.cluster.emulate.pure.replay import Direction, Quantity, Setting
from uneven.cluster.emulate.pure.wiring import Wiring
from uneven.cluster.emulate.throttled import Throttled, stop
from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.runtime.jobs import Command, Events

MASTER_PORT = 29500  # torchrun's; always free in a private network


class Isolated:
    """The machines of root, one for each node; ``netem`` if the kernel can delay packets. Raises LaunchError if the
    kernel or a tool fails, and removes everything. A node is identified by its index in the description."""

    def __init__(self, spec: ClusterSpec, trees: Trees, *, netem: bool) -> None:
        nodes = spec.nodes
        self.id = emulation_state.new_id()
        self.how = f"network namespaces and control groups of version {trees.version} (emulation {self.id})"
        self.network = {
            "MASTER_ADDR": names.address(0),
            "MASTER_PORT": str(MASTER_PORT),
            "GLOO_SOCKET_IFNAME": names.INTERFACE,
            "NCCL_SOCKET_IFNAME": names.INTERFACE,
        }
        # Without names for the addresses, torch asks a name server for them, and warns. It asks in IPv6.
        lines = [f"{form}{names.address(i)} {node.name}" for i, node in enumerate(nodes) for form in ("", "::ffff:")]
        self._hosts = "\n".join(["127.0.0.1 localhost", *lines, ""])
        memory = any(node.memory_bytes is not None for node in nodes)
        self._workers: dict[int, Command] = {}
        self._stack = ExitStack()
        with ExitStack() as undo:
            owner = emulation_state.begin(self.id, trees.groups(self.id, memory=memory))
            undo.callback(emulation_state.end, owner)
            self._groups = ControlGroups(trees, self.id, len(nodes), memory=memory)
            for index, node in enumerate(nodes):
                if node.memory_bytes is not None:
                    self._groups.limit_memory(index, node.memory_bytes)
            self._wiring = Wiring(nodes, spec.links)
            self._network = EmulatedNetwork(self._wiring, netem=netem)
            undo.callback(self._network.close)
            self._rivals = [Rivals(partial(self._start_rival, i), node.threads) for i, node in enumerate(nodes)]
            self._stack = undo.pop_all()
        for rivals in self._rivals:
            self._stack.callback(rivals.close)

    def address(self, index: int) -> str:
        """Return a node's address; None if all are on this machine's loopback."""
        return names.address(index)

    def meet(self, keep: Callable[[str, int], Any]) -> Any:
        """Return ``keep(address, port)`` of the rendezvous, called on the first node's link."""
        return inside(self._network.namespace(self._wiring.node(0)), lambda: keep(names.address(0), MASTER_PORT))

    def start(
        self,
        index: int,
        program: Sequence[str],
        env: Mapping[str, str],
        events: Events,
        ended: Callable[[Command], None] = lambda process: None,
    ) -> Command:
        """Start a worker on a node. The calling thread must live until the end: the worker dies with it."""
        network = self._network.namespace(self._wiring.node(index))
        line = command(self._task(index, program, network))
        worker = Command(f"worker {index}", line, env=env, events=events, ended=ended, files=[network])
        self._workers[index] = worker
        return worker

    def apply(self, index: int, setting: Setting) -> None:
        match setting.quantity:
            case Quantity.CORES:
                self._groups.limit_cores(index, setting.value)
            case Quantity.LOAD:
                self._rivals[index].set(setting.value)
            case Quantity.UP:
                self._network.limit(self._wiring.up(index), setting.value)
            case Quantity.DOWN:
                self._network.limit(self._wiring.down(index), setting.value)
            case Quantity.LATENCY:
                for device in (self._wiring.up(index), self._wiring.down(index)):
                    self._network.delay(device, setting.value)
            case Quantity.STOPPED:
                stop(self._workers[index], setting.value > 0)

    def apply_between(self, direction: Direction, setting: Setting) -> None:
        line = self._wiring.line(*direction)
        if setting.quantity is Quantity.ALONG:
            self._network.limit(line, setting.value)
        else:
            self._network.delay(line, setting.value)

    def lift(self, index: int) -> None:
        """Remove the limits of a node's processor time."""
        stop(self._workers[index], False)
        self._groups.limit_cores(index, None)
        self._rivals[index].set(0.0)

    def kill(self, index: int) -> None:
        self._groups.kill(index)

    def why_killed(self, index: int) -> str:
        """Return why a worker was killed, if the machine knows; otherwise ""."""
        return "it needed more memory than its node's memory_bytes" if self._groups.killed_for_memory(index) else ""

    def broken(self) -> str:
        """Return why the machines no longer work; "" while they do."""
        return self._network.broken()

    def close(self) -> None:
        self._stack.close()

    def _start_rival(self, index: int) -> Command:
        program = (sys.executable, "-P", "-m", "uneven.cluster.emulate.rival")
        return Command(f"rival of worker {index}", command(self._task(index, program, None)), stdin=subprocess.PIPE)

    def _task(self, index: int, program: Sequence[str], network: int | None) -> Task:
        groups = tuple(map(str, self._groups.of(index)))
        return Task(program=tuple(program), groups=groups, network=network, hosts=self._hosts)


Machines = Isolated | Throttled
