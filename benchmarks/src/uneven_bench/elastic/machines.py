"""Machines with a network between them whose lines can be cut, for the faults of ``uneven bench elastic``. As root."""

from __future__ import annotations

import math
import os

from uneven.cluster.emulate import capabilities
from uneven.cluster.emulate.netns import EmulatedNetwork
from uneven.cluster.emulate.pure import names
from uneven.cluster.emulate.pure.wiring import Wiring
from uneven.cluster.pure.describe.spec import Node


class Machines:
    """So many machines on one switch.

    Raises:
        LaunchError: ``ip`` refuses, with what it said.
        OSError: no namespace can be made.
    """

    def __init__(self, count: int) -> None:
        nodes = [Node(name=f"machine{index}") for index in range(count)]
        self._wiring = Wiring(nodes)
        self._network = EmulatedNetwork(self._wiring, netem=True)  # which nothing needs, as no line has a latency
        # Without names for the addresses, torch would ask a name server for them. It asks in IPv6.
        lines = [f"{form}{names.address(i)} {one.name}" for i, one in enumerate(nodes) for form in ("", "::ffff:")]
        self._hosts = "\n".join(["127.0.0.1 localhost", *lines, ""])

    def address(self, index: int) -> str:
        """A machine's address, as the others see it."""
        return names.address(index)

    def words(self, index: int) -> list[str]:
        """What to put before a module and its arguments so that it runs on a machine."""
        namespace = f"/proc/{os.getpid()}/fd/{self._network.namespace(self._wiring.node(index))}"
        return ["-m", "uneven_bench.elastic.inside", namespace, f"machine{index}", self._hosts]

    def cut(self, index: int) -> None:
        """Nothing reaches a machine any more, and nothing comes from it; nobody is told."""
        self._pass(index, 0.0)

    def mend(self, index: int) -> None:
        """As it was before :meth:`cut`."""
        self._pass(index, math.inf)

    def close(self) -> None:
        """Let go of them."""
        self._network.close()

    def _pass(self, index: int, bit_per_s: float) -> None:
        for device in (self._wiring.up(index), self._wiring.down(index)):
            self._network.limit(device, bit_per_s)


def why_no_machines() -> str:
    """Why no line can be cut here; "" if it can."""
    return capabilities.why_not_isolated() or capabilities.why_no_bandwidth()
