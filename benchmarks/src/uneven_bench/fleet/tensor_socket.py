"""The members of an ensemble as consumers of TensorSocket, all together, fed by one producer.

Written against version 0.0.5. Its producer wraps a torch DataLoader with one loader process per slot; every member
trains in its own process. Our work-arounds:

* It sends loader batches in groups of eight, and the last ones of an epoch never arrive. So each epoch continues with
  cheap throw-away samples until all real ones have gone out (``loader_batches``).
* It drops the part of the last eight that fills no batch; throw-away samples fill them all, and each member cuts them
  off its last batch. A member raises on too few or too many batches. (In 0.0.4, as reported, a consumer's epoch never
  ends.)
* On CPU it packs, with each batch, a copy of all eight, once for each member. Our hook sends each batch once for all
  members.
* All members connect in both directions before it begins: on a busy machine first messages and receipts are lost, and
  it waits for them without end. All end an epoch before the next one begins, because it knows of that only from old
  heartbeats.
* It takes a member with a heartbeat half a second late for dead, and forgets its progress. That is switched off; the
  parent process watches the members.

Its processes start and import it before the clock starts, as Ray does.
"""

import time
from collections.abc import Callable
from typing import Any

from uneven.cluster.emulate.ports import quiet_ports
from uneven.errors import TrainingError
from uneven.fleet import Ensemble
from uneven.runtime.jobs import Events, end_all
from uneven.runtime.jobs.call import Child
from uneven_bench.fleet.baseline import figures
from uneven_bench.fleet.tensor_socket_child import consume, produce

SILENCE_S = 120.0  # the longest time without the end of an epoch; then a process hangs


def tensorsocket(ensemble: Ensemble, slots: int) -> dict[str, Any]:
    """Train all members together, and return the figures of ``uneven bench fleet`` and ``started_s``, the start of the
    processes. Raises TrainingError: a process failed, died or hung, or samples did not arrive."""
    members, ports = len(ensemble.members), quiet_ports(4)
    with Processes(SILENCE_S) as processes:
        began_s = time.perf_counter()
        producer = processes.start("producer", produce, (ensemble, ports, slots))
        consumers = [processes.start(f"member {name}", consume, (ensemble, name, ports)) for name in ensemble.members]
        processes.hear("ready", 1 + members)
        started_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        for child in (producer, *consumers):
            child.send("begin")
        processes.hear("joined", members)
        producer.send("all have joined")
        processes.hear("met", 1)
        for child in (*consumers, producer):
            child.send("train")
        for epoch in range(1, ensemble.max_epochs + 1):
            processes.hear("ended", epoch * members)
            producer.send("next epoch")
        done = processes.hear("done", members)
        wall_s = time.perf_counter() - began_s
        ((preprocess_cpu_s,),) = processes.hear("cpu", 1)
    return figures(
        wall_s,
        {name: worth for name, worth, _, _ in done},
        preprocess_cpu_s=preprocess_cpu_s,
        wait_share=sum(waited_s for _, _, waited_s, _ in done) / sum(took_s for *_, took_s in done),
        rounds=1,
        sharing=float(members),
        started_s=started_s,
    )


class Processes:
    """The producer, the members and their messages; the end of the block ends them all. ``silence_s`` without a message
    is a failure."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._events = Events()
        self._children: list[Child] = []
        self._told: dict[str, list[tuple[Any, ...]]] = {}

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        end_all(self._children)
        self._events.close()

    def start(self, name: str, target: Callable[..., None], arguments: tuple[Any, ...]) -> Child:
        """Start a process, which may start others."""

        def ended(child: Child) -> None:
            self._told.setdefault("failed", []).append((f"{child.name} died ({child.ending})",))

        child = Child(self._events, name, target, arguments, heard=self._heard, ended=ended)
        self._children.append(child)
        return child

    def hear(self, what: str, count: int) -> list[tuple[Any, ...]]:
        """Wait for ``count`` messages of this kind since the start, and return them. Raises TrainingError: a process
        failed or died, or all were silent for too long."""
        heard, last_s = -1, 0.0
        while True:
            if "failed" in self._told:
                raise TrainingError(f"TensorSocket: {self._told['failed'][0][0]}")
            if len(self._told.get(what, ())) >= count:
                return self._told[what]
            total = sum(len(each) for each in self._told.values())
            if total != heard:
                heard, last_s = total, time.monotonic()
            if time.monotonic() - last_s > self._silence_s:
                raise TrainingError(f'TensorSocket: nothing heard for {self._silence_s:g} s, of {count} "{what}"')
            self._events.wait(min(1.0, self._silence_s))

    def _heard(self, _: Child, message: tuple[Any, ...]) -> None:
        self._told.setdefault(message[0], []).append(message[1:])
