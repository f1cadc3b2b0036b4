"""The nodes of ``uneven bench lb-bsp``, whose shares and links change on the workers' requests.

An ordinary user's nodes are processes that are stopped and continued; with root and limited links, they are the
emulator's. A worker writes its node's next limits into a socket, and continues when they hold: so an arm's conditions
depend only on the number of its round.
"""

import json
import math
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from uneven.cluster.emulate import capabilities
from uneven.cluster.emulate.emulated_workers import EmulatedWorkers
from uneven.cluster.emulate.isolated import Isolated, Machines
from uneven.cluster.emulate.pure.replay import Quantity, Setting
from uneven.cluster.emulate.throttled import Throttled
from uneven.cluster.pure.describe.spec import ClusterSpec, Node, SiteLink
from uneven.errors import LaunchError
from uneven.runtime.jobs import Events
from uneven.runtime.launch import Launch

SOCKET = "stage"
_PERIOD_S = 0.01
"""Run-and-stop cycle of a node. An exchange meets several stopped workers in turn, so a long cycle would make
communication look slower than on truly slow machines."""

Said = Callable[[str, str, float], None]  # a receiver of rank 0's case, its current work, and the finished part


def play(
    directory: Path, module: str, workers: int, *, isolated: bool, said: Said, sites: Sequence[str] = (),
    links: Sequence[SiteLink] = (),
) -> None:  # fmt: skip
    """Run ``python -m module directory`` on ``workers`` nodes until all have ended. ``isolated``: nodes with separate
    links; needs root; ``sites``: the site of each node; empty for one; ``links``: lines between these, unlimited until
    a worker requests their limits. Raises LaunchError: a worker died, with the end of its output. ConfigError: nodes
    cannot be isolated here."""
    at = sites or ("",) * workers
    nodes = tuple(Node(name=f"node{rank}", period_s=_PERIOD_S, site=at[rank]) for rank in range(workers))
    spec = ClusterSpec(name=directory.name, nodes=nodes, links=tuple(links))
    machines: Machines = Isolated(spec, capabilities.trees(), netem=False) if isolated else Throttled()
    try:
        with ExitStack() as stack:
            door = stack.enter_context(socket.socket(socket.AF_UNIX))
            events = stack.enter_context(Events())
            door.bind(str(directory / SOCKET))
            door.listen(workers)
            events.add(door.fileno(), lambda: _admit(door, events, stack, (machines, spec), said))
            program = Launch(target=(module, str(directory)), module=True)
            started = EmulatedWorkers(spec, program, machines, directory, events)
            while started.running and not started.failed:
                events.wait(None)
            if started.failed:
                started.end_all(lambda: False)
                printed = [path.read_text()[-1500:] for path in sorted(directory.glob("output-*.txt"))]
                error = started.failure()
                raise LaunchError(f"{error}\n" + "\n".join(filter(None, printed)), error.exit_code)
    finally:
        machines.close()


def _admit(
    door: socket.socket, events: Events, stack: ExitStack, world: tuple[Machines, ClusterSpec], said: Said
) -> None:
    """Accept a worker, and serve its requests from now on."""
    line = stack.enter_context(door.accept()[0])

    def serve() -> None:
        asked = line.recv(65536)
        if not asked:
            events.remove(line.fileno())
            return
        for one in asked.splitlines():
            _carry_out(json.loads(one), *world, said)
        line.sendall(b"\n" * len(asked.splitlines()))

    events.add(line.fileno(), serve)


def _carry_out(asked: dict[str, Any], machines: Machines, spec: ClusterSpec, said: Said) -> None:
    rank = asked["rank"]
    match asked["do"]:
        case "cores":
            machines.apply(rank, Setting(f"node{rank}", Quantity.CORES, asked["value"]))
        case "link":
            for quantity in (Quantity.UP, Quantity.DOWN):
                machines.apply(rank, Setting(f"node{rank}", quantity, asked["value"]))
        case "lines":
            for one in spec.links:
                for ends in (one.between, one.between[::-1]):
                    bit_per_s = one.toward(ends[1]).at(0.0) if asked["value"] else math.inf
                    machines.apply_between(ends, Setting(ends, Quantity.ALONG, bit_per_s))
                    latency_s = one.latency_s if asked["value"] else 0.0
                    machines.apply_between(ends, Setting(ends, Quantity.LATENCY, latency_s))
        case "lift":
            machines.lift(rank)
        case "say":
            said(asked["scene"], asked["what"], asked["value"])


class OnStage:
    """A worker's line to the stage. ``directory``: the worker's argument; ``scene``: name of the case."""

    def __init__(self, directory: Path, rank: int, scene: str) -> None:
        self._rank = rank
        self.scene = scene
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(str(directory / SOCKET))
        self._had: dict[str, float] = {}

    def have(self, cores: tuple[float, ...], mbit_per_s: tuple[float, ...]) -> None:
        """Limit this worker's node to its part of these; empty ones are unlimited."""
        if cores:
            self._set("cores", cores[self._rank])
        if mbit_per_s:
            self._set("link", mbit_per_s[self._rank] * 1e6)

    def limit_lines(self, limited: bool) -> None:
        """Limit and delay the lines between sites, or free them. The first rank requests it for all."""
        if self._rank == 0:
            self._set("lines", float(limited))

    def lift(self) -> None:
        """Lift this worker's limits."""
        self._ask("lift", math.nan)
        self._had = {do: value for do, value in self._had.items() if do == "lines"}

    def say(self, what: str, done: float) -> None:
        """Report progress, 0 … 1, to the user; only rank 0 does."""
        if self._rank == 0:
            self._ask("say", done, scene=self.scene, what=what)

    def close(self) -> None:
        self._line.close()

    def _set(self, do: str, value: float) -> None:
        if self._had.get(do) != value:
            self._had[do] = value
            self._ask(do, value)

    def _ask(self, do: str, value: float, **more: str) -> None:
        self._line.sendall(json.dumps({"rank": self._rank, "do": do, "value": value, **more}).encode() + b"\n")
        if not self._line.recv(1):
            raise LaunchError("the bench has ended")
