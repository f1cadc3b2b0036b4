"""Steps made of phases, in virtual time: each worker computes, sends, and waits for messages."""

from collections.abc import Sequence
from dataclasses import dataclass

from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.cluster.pure.simulate.collectives import all_reduce
from uneven.cluster.pure.simulate.compute import Processor
from uneven.cluster.pure.simulate.event_queue import EventQueue
from uneven.cluster.pure.simulate.links import Network
from uneven.cluster.pure.simulate.routes import Topology
from uneven.errors import ConfigError


@dataclass(frozen=True, slots=True)
class WorkPhase:
    """The work and messages of each worker between two points at which workers wait for each other."""

    core_s: tuple[float, ...]  # of each worker, seconds of one core
    # [from][to]; empty for none; the receiver waits for it before the next phase
    sent_bytes: Sequence[Sequence[float]] = ()
    late: bool = False  # whether no worker waits for the messages
    ring_bytes: float = 0.0  # of a sum over all workers at the end of the phase, for which all wait

    @property
    def all_bytes(self) -> float:
        return sum(map(sum, self.sent_bytes))


def play(spec: ClusterSpec, phases: Sequence[WorkPhase], steps: int) -> list[float]:
    """Return when each of ``steps`` equal steps ends on all workers, in seconds from the start.

    Raises:
        ConfigError: another number of workers than nodes, events (unsupported here), or a step that never ends.
    """
    workers = len(phases[0].core_s)
    if len(spec.nodes) != workers:
        raise ConfigError(
            f"cluster {spec.name!r} has {len(spec.nodes)} nodes, but the graph has parts for {workers}: cut it again"
        )
    if spec.events:
        raise ConfigError(
            f"cluster {spec.name!r} has events, which a simulation of graphs does not support: leave them out"
        )
    played = _Play(spec, phases, steps)
    played.queue.run()
    if len(played.ends_s) < steps:
        raise ConfigError(
            f"cluster {spec.name!r}: step {len(played.ends_s)} never ends: raise the share or bandwidth that is 0"
        )
    return played.ends_s


class _Play:
    def __init__(self, spec: ClusterSpec, phases: Sequence[WorkPhase], steps: int) -> None:
        self.queue = EventQueue()
        self.ends_s: list[float] = []
        self._phases = phases
        self._steps = steps
        self._workload = spec.workload
        self._topology = Topology(spec)
        self._network = Network(self.queue, self._topology.capacities)
        self._cores = [node.cores for node in spec.nodes]
        self._processors = [Processor(node, rank) for rank, node in enumerate(spec.nodes)]
        self._workers = range(len(spec.nodes))
        self._missing: dict[
            tuple[int, int], int
        ] = {}  # (phase of the whole run, worker) → number of events it waits for
        self._over = [0] * steps
        for worker in self._workers:
            self._begin(0, worker)

    def _phase(self, place: int) -> WorkPhase:
        return self._phases[place % len(self._phases)]

    def _waits(self, place: int, worker: int) -> int:
        # Its own work, messages to it, and the sum over all.
        phase = self._phase(place)
        sent = 0 if phase.late else sum(row[worker] > 0.0 for row in phase.sent_bytes)
        return 1 + sent + (phase.ring_bytes > 0.0)

    def _begin(self, place: int, worker: int) -> None:
        work_s = self._phase(place).core_s[worker] / self._cores[worker]
        processor, now_s = self._processors[worker], self.queue.now_s
        self.queue.at(processor.end_s(now_s, work_s), self._computed, place, worker)
        processor.spend(now_s, work_s)

    def _computed(self, place: int, worker: int) -> None:
        phase = self._phase(place)
        if phase.sent_bytes:
            for other, size in enumerate(phase.sent_bytes[worker]):
                if size > 0.0:
                    route = self._topology.point(worker, other)
                    arrive = self._landed if phase.late else self._arrived
                    self._network.start(route, size * self._workload.framing, arrive, place, other)
        if phase.ring_bytes:
            key = (place, -1)
            self._missing[key] = self._missing.get(key, len(self._workers)) - 1
            if not self._missing[key]:
                size_bytes = phase.ring_bytes * self._workload.framing
                route = all_reduce(self._topology, self._workload, self._workers, size_bytes)
                self._network.start(route, size_bytes, self._summed, place)
        self._arrived(place, worker)

    def _landed(self, place: int, worker: int) -> None:
        """Ignore the arrival of a message that no worker waits for."""

    def _summed(self, place: int) -> None:
        for worker in self._workers:
            self._arrived(place, worker)

    def _arrived(self, place: int, worker: int) -> None:
        key = (place, worker)
        self._missing[key] = self._missing.get(key, self._waits(place, worker)) - 1
        # A worker continues when its own messages have arrived, even if others still wait.
        if self._missing[key]:
            return
        del self._missing[key]
        step, last = divmod(place + 1, len(self._phases))
        if last == 0:
            self._over[step - 1] += 1
            if self._over[step - 1] == len(self._workers):
                self.ends_s.append(self.queue.now_s)
        if place + 1 < self._steps * len(self._phases):
            self._begin(place + 1, worker)
