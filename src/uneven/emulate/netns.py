"""A network of its own for every emulation: one namespace for each node, and one with the switch between them.

::

    node 0                  switch                   node 1
    eth0 ══════════ port0 ──bridge── port1 ══════════ eth0
     └ token bucket: up    └ token bucket: down

No namespace has a name. This process holds them by descriptors, so that the kernel removes them, links and all,
when this process and the workers have ended, in whatever way. Nothing appears among the machine's own interfaces
and nobody else's addresses matter.
"""

from __future__ import annotations

import math
import os
import subprocess
import threading
from collections.abc import Sequence

from uneven.emulate import kernel, names, shape
from uneven.errors import LaunchError

_BRIDGE = "switch"


def new_namespace() -> int:
    """A descriptor of a new network namespace, which lives as long as somebody holds or inhabits it.

    Raises:
        OSError: the kernel refuses, as it does for an ordinary user.
    """
    made: list[int | OSError] = []

    def make() -> None:  # in a thread that ends right after, for it never comes back from there
        try:
            kernel.unshare(kernel.NEW_NETWORK)
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=make, name="uneven-namespace")
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


class EmulatedNetwork:
    """Namespaces, switch and links of one emulation.

    Args:
        latencies_s: of each node's link, one way; needs netem where it is not 0.

    Raises:
        LaunchError: ``ip`` refuses, with what it said.
        OSError: no namespace can be made.
    """

    def __init__(self, latencies_s: Sequence[float]) -> None:
        self._latencies_s = tuple(latencies_s)
        self._held: list[int] = []
        self._bits: dict[tuple[int, str], float] = {}
        try:
            for _ in range(len(latencies_s) + 1):
                self._held.append(new_namespace())
            self._connect()
            for index, latency_s in enumerate(latencies_s):
                if latency_s > 0:
                    self._shape(index, up=True, bit_per_s=math.inf)
                    self._shape(index, up=False, bit_per_s=math.inf)
        except (LaunchError, OSError):
            self.close()
            raise

    def namespace(self, index: int) -> int:
        """Descriptor of a node's namespace."""
        return self._held[index + 1]

    def limit(self, index: int, *, up: bool, bit_per_s: float) -> None:
        """Set a node's bandwidth in one direction; infinite is not limited.

        Raises:
            LaunchError: ``tc`` refuses, with what it said.
        """
        self._shape(index, up=up, bit_per_s=bit_per_s)

    def close(self) -> None:
        """Let go of the namespaces. Twice is fine."""
        while self._held:
            os.close(self._held.pop())

    @property
    def _switch(self) -> int:
        return self._held[0]

    def _connect(self) -> None:
        nodes = range(len(self._latencies_s))
        lines = ["link set lo up", f"link add {_BRIDGE} type bridge", f"link set {_BRIDGE} up"]
        for index in nodes:
            there = f"netns /proc/self/fd/{self.namespace(index)}"
            lines.append(f"link add {names.port(index)} type veth peer name {names.INTERFACE} {there}")
            lines.append(f"link set {names.port(index)} master {_BRIDGE} up")
        run("ip", self._switch, lines, self._held)
        for index in nodes:
            link = names.INTERFACE
            address = f"addr add {names.address(index)}/{names.PREFIX_LENGTH} dev {link}"
            # No IPv6 address: a library that takes an interface's first address is to find the one that is routed.
            lines = ["link set lo up", f"link set {link} addrgenmode none", address, f"link set {link} up"]
            run("ip", self.namespace(index), lines)

    def _shape(self, index: int, *, up: bool, bit_per_s: float) -> None:
        device = names.INTERFACE if up else names.port(index)
        before = self._bits.get((index, device), math.inf)
        lines = shape.commands(device, bit_per_s, self._latencies_s[index], before_bit_per_s=before)
        if lines:
            run("tc", self.namespace(index) if up else self._switch, lines)
        if lines and up:  # connections keep what they once heard of a link until they have to look again
            at_once = f"link set {device} gso_max_size {shape.at_once_bytes(bit_per_s)}"
            run("ip", self.namespace(index), [at_once, "route flush cache"])
        self._bits[index, device] = bit_per_s


def run(tool: str, namespace: int, lines: Sequence[str], others: Sequence[int] = ()) -> None:
    """Give ``ip`` or ``tc`` lines to carry out inside a namespace."""
    done = subprocess.run(
        ["nsenter", f"--net=/proc/self/fd/{namespace}", tool, "-batch", "-"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        pass_fds=[namespace, *others],
        start_new_session=True,  # Ctrl-C is for this process, which cleans up
    )
    if done.returncode != 0:
        raise LaunchError(f"`{tool}` refuses ({done.stderr.strip()}), asked for:\n" + "\n".join(lines))
