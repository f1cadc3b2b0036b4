"""Machines on a network with lines that can be cut, for the faults of ``uneven bench elastic`` and ``machines``. Needs
root."""

import math
import os

from uneven.cluster.emulate import capabilities
from uneven.cluster.emulate.netns import EmulatedNetwork
from uneven.cluster.emulate.pure import names
from uneven.cluster.emulate.pure.wiring import Wiring
from uneven.cluster.pure.describe.spec import Node


class Machines:
    """A number of machines on one switch; ``relayed`` lines can also lose and delay packets. Raises LaunchError: ``ip``
    fails, with its output. OSError: the system does not allow a namespace."""

    def __init__(self, count: int, *, relayed: bool = False) -> None:
        # A line with a latency leads through a process, where it begins at 0.
        nodes = [Node(name=f"machine{index}", latency_s=0.001 * relayed) for index in range(count)]
        self._wiring = Wiring(nodes)
        self._network = EmulatedNetwork(self._wiring, netem=not relayed)
        # Without names for the addresses, torch would ask a name server for them, and in IPv6.
        lines = [f"{form}{names.address(i)} {one.name}" for i, one in enumerate(nodes) for form in ("", "::ffff:")]
        self._hosts = "\n".join(["127.0.0.1 localhost", *lines, ""])

    def address(self, index: int) -> str:
        """Return a machine's address, as the others see it."""
        return names.address(index)

    def namespace(self, index: int) -> str:
        """Return the file of a machine's network namespace."""
        return f"/proc/{os.getpid()}/fd/{self._network.namespace(self._wiring.node(index))}"

    def words(self, index: int) -> list[str]:
        """Return the words that run a module on a machine, if they stand before its name."""
        return ["-m", "uneven_bench.elastic.inside", self.namespace(index), f"machine{index}", self._hosts]

    def cut(self, index: int) -> None:
        """Drop all packets from and to a machine, without any notice."""
        self.limit(index, 0.0)

    def mend(self, index: int) -> None:
        """Undo :meth:`cut`."""
        self.limit(index, math.inf)

    def limit(self, index: int, bit_per_s: float) -> None:
        """Limit a machine's line, each way."""
        for device in (self._wiring.up(index), self._wiring.down(index)):
            self._network.limit(device, bit_per_s)

    def delay(self, index: int, latency_s: float, loss: float = 0.0) -> None:
        """Delay all packets from and to a relayed machine, and lose this part of them."""
        for device in (self._wiring.up(index), self._wiring.down(index)):
            self._network.delay(device, latency_s, loss)

    def close(self) -> None:
        self._network.close()


def why_no_machines() -> str:
    """Return the reason why no line can be cut here; "" if it can."""
    return capabilities.why_not_isolated() or capabilities.why_no_bandwidth()
