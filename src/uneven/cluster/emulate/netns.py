"""A private network for each emulation: a namespace for each node and each switch, and cables between them.

::

    node 0                  switch                   node 1
    eth0 ══════════ port0 ──bridge── port1 ══════════ eth0
     └ token bucket: up    └ token bucket: down

A cable is a pair of kernel devices (veth), with netem behind the buckets if it has a latency. If the kernel lacks
netem, our own process (:mod:`uneven.cluster.emulate.relay`) has both devices of a cable with a latency, and delays
frames; the buckets are the same. :mod:`uneven.cluster.emulate.pure.wiring` defines the layout.

Namespaces have no names. This process holds their descriptors, so the kernel removes them with all links when this
process and the workers end in any way. The machine's own interfaces and addresses are unaffected.
"""

import math
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from uneven.cluster.emulate import kernel, relay
from uneven.cluster.emulate.pure import names, shape
from uneven.cluster.emulate.pure.wiring import CableEnd, Wiring
from uneven.cluster.emulate.tap import open_tap
from uneven.errors import LaunchError

_ROUTER = {"ip_forward": "1", "conf/all/rp_filter": "0", "conf/default/rp_filter": "0"}

_Found = TypeVar("_Found")


def new_namespace() -> int:
    """Return a descriptor of a new network namespace; it lives while a process has it open or is inside. Raises OSError
    if the kernel rejects it, as for an ordinary user."""

    def make() -> int:
        kernel.unshare(kernel.NEW_NETWORK)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return _elsewhere(make)


def inside(namespace: int, action: Callable[[], _Found]) -> _Found:
    """Return the result of ``action`` inside a network namespace. Raises OSError if the kernel rejects it."""

    def enter() -> _Found:
        kernel.enter(namespace, kernel.NEW_NETWORK)
        return action()

    return _elsewhere(enter)


def _elsewhere(action: Callable[[], _Found]) -> _Found:
    # A new thread enters the namespace and then ends, because it cannot return to its old one.
    found: list[_Found] = []
    refused: list[OSError] = []

    def go() -> None:
        try:
            found.append(action())
        except OSError as error:
            refused.append(error)

    thread = threading.Thread(target=go, name="uneven-namespace")
    thread.start()
    thread.join()
    if refused:
        raise refused[0]
    return found[0]


class EmulatedNetwork:
    """Namespaces, switches and cables of one emulation; ``netem`` if the kernel can delay packets. Raises LaunchError
    if ``ip`` fails, OSError if a namespace or a device cannot be made."""

    def __init__(self, wiring: Wiring, *, netem: bool) -> None:
        self._wiring = wiring
        self._held: list[int] = []
        self._set: dict[CableEnd, tuple[float, float]] = {}  # bandwidth, latency
        self._delayed: dict[CableEnd, int] = {}  # number of its direction in the relay
        self._relay: subprocess.Popen[bytes] | None = None
        try:
            for _ in wiring.places:
                self._held.append(new_namespace())
            for place in wiring.routers:
                inside(self._held[place], _become_router)
            if not netem:
                self._start_relay(wiring)
            for place in wiring.places:
                run("ip", self._held[place], wiring.set_up(place, self._held, self._delayed.keys()), self._held)
        except (LaunchError, OSError):
            self.close()
            raise

    def namespace(self, place: int) -> int:
        return self._held[place]

    def limit(self, device: CableEnd, bit_per_s: float) -> None:
        """Limit the bandwidth out of a device; infinite is unlimited, zero blocks all. Raises LaunchError if ``tc``
        fails."""
        before_bit_per_s, latency_s = self._set.get(device, (math.inf, 0.0))
        self._shape(device, bit_per_s, latency_s, before_bit_per_s)

    def delay(self, device: CableEnd, latency_s: float, loss: float = 0.0) -> None:
        """Set the latency of packets out of a device, and the part of them that is lost, which takes the relay. Raises
        LaunchError if ``tc`` fails or the relay has ended."""
        number = self._delayed.get(device)
        if number is None:
            bit_per_s, _ = self._set.get(device, (math.inf, 0.0))
            self._shape(device, bit_per_s, latency_s, bit_per_s)
            return
        assert self._relay is not None
        assert self._relay.stdin is not None
        try:
            self._relay.stdin.write(f"{number} {latency_s!r} {loss!r}\n".encode())
        except BrokenPipeError:
            raise LaunchError(self.broken()) from None

    def broken(self) -> str:
        """Return why the network no longer works; "" while it does."""
        if self._relay is None or self._relay.poll() is None:
            return ""
        return f"the process that delays packets has ended with {self._relay.returncode}; nothing reaches the nodes"

    def close(self) -> None:
        if self._relay is not None:
            assert self._relay.stdin is not None
            self._relay.stdin.close()
            self._relay.kill()
            self._relay.wait()
            self._relay = None
        while self._held:
            os.close(self._held.pop())

    def _start_relay(self, wiring: Wiring) -> None:
        delayed = [cable for cable in wiring.cables if cable.latency_s > 0]
        if not delayed:
            return
        taps: list[int] = []
        try:
            for cable in delayed:
                for device in cable.ends:
                    self._delayed[device] = len(taps)
                    taps.append(inside(self._held[device.place], partial(open_tap, device.name)))
            self._relay = subprocess.Popen(
                relay.command(list(zip(taps[::2], taps[1::2], strict=True))),
                stdin=subprocess.PIPE,
                pass_fds=taps,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for this process, which cleans up
            )
        finally:
            for descriptor in taps:  # only the relay keeps them, so the devices vanish with it
                os.close(descriptor)

    def _shape(self, device: CableEnd, bit_per_s: float, latency_s: float, before_bit_per_s: float) -> None:
        namespace = self._held[device.place]
        lines = shape.commands(device.name, bit_per_s, latency_s, before_bit_per_s=before_bit_per_s)
        if lines:
            run("tc", namespace, lines)
        if lines and bit_per_s > 0 and device.name == names.INTERFACE:
            # Connections cache the properties of a link until their route is looked up again.
            at_once = f"link set {device.name} gso_max_size {self._at_once_bytes(device, bit_per_s)}"
            run("ip", namespace, [at_once, "route flush cache"])
        self._set[device] = bit_per_s, latency_s

    def _at_once_bytes(self, device: CableEnd, bit_per_s: float) -> int:
        # The size of segments must fit the site's fastest line, or each node's bucket cuts them into packets.
        lines = [self._set.get(line, (math.inf, 0.0))[0] for line in self._wiring.lines_of(device)]
        return shape.at_once_bytes(min(bit_per_s, max(lines, default=math.inf)))


def _become_router() -> None:
    for name, value in _ROUTER.items():
        Path("/proc/sys/net/ipv4", name).write_text(value)


def run(tool: str, namespace: int, lines: Sequence[str], others: Sequence[int] = ()) -> None:
    """Run ``ip`` or ``tc`` with these lines inside a namespace."""
    done = subprocess.run(
        ["nsenter", f"--net=/proc/self/fd/{namespace}", tool, "-batch", "-"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        pass_fds=[namespace, *others],
        start_new_session=True,  # Ctrl-C is for this process, which cleans up
    )
    if done.returncode != 0:
        raise LaunchError(f"`{tool}` failed ({done.stderr.strip()}) on this input:\n" + "\n".join(lines))
