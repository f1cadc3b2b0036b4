"""A Ray cluster as a place: its devices, actors in placement groups as processes, large objects in its object store.

A connection is three methods of an actor, each with its own thread: ``work`` runs the function, ``tell`` receives
messages, and a call of ``hear`` waits for the next outgoing message. A ``LargeObject`` is a second return value of
``hear``, which Ray keeps in its object store while it is referenced.

Ray pickles all messages. So any process that can reach the cluster's ports can run code in it, with or without this
engine, as Ray documents.
"""

import logging
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError
from ray.util import get_node_ip_address, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from uneven.errors import ConfigError
from uneven.runtime.jobs.call import unsendable
from uneven.runtime.jobs.command import END_WITHIN_S
from uneven.runtime.jobs.devices import Devices, devices_of_cluster
from uneven.runtime.jobs.ending import Ending, How
from uneven.runtime.jobs.executor import LargeObject, ObjectLostError
from uneven.runtime.jobs.heartbeat import Watched
from uneven.runtime.jobs.job_events import Awake

PATIENCE_S = 60.0  # limit of the wait for devices that other jobs may be using
_SURVEY_S = 1.0
_LOOK_S = 0.1
_MOST_WORDS = 300

_GROUPS = {"work": 1, "tell": 1, "hear": 1}  # threads of an actor; one in each, so that messages keep their order


class Cluster:
    """The :class:`~uneven.runtime.jobs.executor.Place` of a Ray cluster; a device is a placement group of one bundle.

    It connects to the cluster that ``RAY_ADDRESS`` names or that runs here; without one, Ray starts one for this
    program. An existing connection is reused. Raises ConfigError if devices are missing or do not become free.
    """

    def __init__(self, asked: Devices) -> None:
        self._ours = not ray.is_initialized()
        if self._ours:
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        try:
            kind, count = devices_of_cluster(asked, ray.cluster_resources())
            self.devices = ("cuda:0" if kind == "GPU" else "cpu",) * count  # Ray sets CUDA_VISIBLE_DEVICES
            groups = _reserved(kind, count)
        except BaseException:
            self._leave()
            raise
        home_of = {group: placement_group_table(group)["bundles_to_node_id"][0] for group in groups}
        self._groups = sorted(groups, key=home_of.__getitem__)  # by machine
        self._homes = [home_of[group] for group in self._groups]
        self._options = {"num_gpus": 1, "num_cpus": 0} if kind == "GPU" else {"num_cpus": 1}
        alive = [node for node in ray.nodes() if node["Alive"]]
        self._names = {node["NodeID"]: node["NodeManagerAddress"] for node in alive}
        self._lost: frozenset[int] = frozenset()
        self._surveyed_s = time.monotonic()
        self.awake = Awake()
        self.shares_memory = self.shares_devices = False
        self.cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._calls: dict[Any, Actor] = {}
        self._sent: dict[int, tuple[Any, Any]] = {}
        remote: Any = ray.remote  # Ray's type stubs lack concurrency_groups
        self._actor = remote(concurrency_groups=_GROUPS, max_restarts=0, max_task_retries=0)(ActorProcess)
        several = len(set(self._names.values())) > 1
        self.address = get_node_ip_address() if several else "127.0.0.1"

    def enter(self, directory: Path) -> None:
        """Raise ConfigError unless each machine reads there what this one writes, and vice versa."""
        word = secrets.token_hex(8)
        here = directory / "reached"
        here.write_text(word, encoding="utf-8")
        try:
            for node in sorted(set(self._homes)):
                pinned = NodeAffinitySchedulingStrategy(node, soft=False)
                answer = _answer.options(scheduling_strategy=pinned).remote(str(here))
                back = here.with_suffix(".back")
                if ray.get(answer) != word or not back.exists() or back.read_text(encoding="utf-8") != word[::-1]:
                    raise ConfigError(
                        f"{directory} is a different directory on the machine {self._names[node]}: use storage that "
                        "every machine of the cluster has under the same path"
                    )
                back.unlink()
        finally:
            here.unlink()

    def start(
        self,
        name: str,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        *,
        heard: Callable[[Any, Any], None],
        ended: Callable[[Any], None],
        device: int | None = None,
    ) -> "Actor":
        if device is None:
            options: dict[str, Any] = {"num_cpus": 0, "scheduling_strategy": "SPREAD"}
        else:
            bundle = PlacementGroupSchedulingStrategy(self._groups[device], placement_group_bundle_index=0)
            options = {**self._options, "scheduling_strategy": bundle}
        try:
            what = [target, [self._shared(one) for one in arguments]]
            sent = ray.put(what)
        except TypeError as error:
            raise unsendable(name, error) from error
        handle = self._actor.options(enable_task_events=False, **options).remote()  # otherwise an event per message
        return Actor(self, name, handle, sent, heard, ended, device)

    def wait(self, timeout_s: float) -> None:
        if time.monotonic() - self._surveyed_s > _SURVEY_S:
            self._survey()
        calls = list(self._calls)
        if not calls:
            time.sleep(min(timeout_s, 0.01))
            self.awake.tick()
            return
        ready, _ = ray.wait(calls, num_returns=1, timeout=timeout_s)
        self.awake.tick()
        if ready:
            ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0.0)  # all that are ready, not only the first
        for call in ready:
            actor = self._calls.pop(call, None)
            if actor is not None:  # an earlier call may have ended it
                actor.listen(call)

    @property
    def room_bytes(self) -> float:
        """The size of the smallest machine's object store, in bytes; Ray spills the excess to disk."""
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return min(float(node.get("object_store_memory", 0.0)) for node in alive)

    def seat(self, device: int) -> int:
        return device  # an actor stays in its bundle, so no device can replace another

    def nodes(self, devices: Sequence[int]) -> list[list[int]]:
        homes = sorted({self._homes[device] for device in devices})
        return [[device for device in devices if self._homes[device] == home] for home in homes]

    def gone(self) -> frozenset[int]:
        """Return the devices on dead machines. A machine that returns is not used before the next start."""
        self._survey()
        return self._lost

    def close(self) -> None:
        for actor in set(self._calls.values()):
            actor.kill()
        for device, group in enumerate(self._groups):
            if device not in self._lost:
                remove_placement_group(group)
        self._leave()

    def call(self, actor: "Actor", reference: Any) -> None:
        self._calls[reference] = actor

    def forget(self, actor: "Actor") -> None:
        self._calls = {call: one for call, one in self._calls.items() if one is not actor}

    def _survey(self) -> None:
        self._surveyed_s = time.monotonic()
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        gone = frozenset(device for device, home in enumerate(self._homes) if home not in alive)
        for device in gone - self._lost:
            remove_placement_group(self._groups[device])
        self._lost |= gone
        for actor in set(self._calls.values()):
            if actor.device in self._lost:  # Ray would keep its call pending until a machine replaces the lost one
                actor.lose(Ending(How.LOST, "its machine was lost"))

    def _shared(self, argument: Any) -> Any:
        """Return a reference to an argument that may be large, stored once instead of once per process."""
        if isinstance(argument, int | str):
            return argument
        if id(argument) not in self._sent:
            self._sent[id(argument)] = argument, ray.put(argument)  # holding the argument keeps its id unique
        return self._sent[id(argument)][1]

    def _leave(self) -> None:
        if self._ours:
            ray.shutdown()


class Actor(Watched):
    """A process of the cluster, see :class:`~uneven.runtime.jobs.executor.Linked`. It has nothing to clean up, so its
    end is always a kill."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        handle: Any,
        what: Any,
        heard: Callable[[Any, Any], None],
        ended: Callable[[Any], None],
        device: int | None,
    ) -> None:
        super().__init__(cluster.awake)
        self.name = name
        self.device = device
        self.pid = 0
        self.ending: Ending | None = None
        self._cluster = cluster
        self._handle = handle
        self._heard = heard
        self._told = ended
        self._adrift = False
        self._work = handle.work.remote([what])
        self._hear()

    def send(self, message: Any) -> None:
        self.touched()
        if self.ending is None:
            self._handle.tell.remote(message)

    def ask_to_end(self) -> None:
        self.kill()

    def wait(self, within_s: float | None = None) -> Ending | None:
        until_s = time.monotonic() + (float("inf") if within_s is None else within_s)
        while self.ending is None and time.monotonic() < until_s:
            self._cluster.wait(_LOOK_S)
        return self.ending

    def end(self, within_s: float = END_WITHIN_S) -> Ending:
        return self.kill()

    def kill(self, *, hung: str = "") -> Ending:
        return self._over(Ending(How.HUNG, hung) if hung else Ending(How.KILLED, "SIGKILL"))

    def listen(self, call: Any) -> None:
        """Handle the result of a call: a message, the end, or an error."""
        try:
            message = ray.get(call)
        except ActorUnavailableError:
            self._probe()
            return
        except RayError as error:
            self.lose(_ending(error))
            return
        if self._adrift:
            self.lose(Ending(How.LOST, "Ray lost touch with it"))
            return
        if isinstance(message, _Over):
            try:
                ray.get(self._work)  # raises the error of the user's function, if there was one
                self.lose(Ending(How.ENDED, "it came to its end"))
            except RayError as error:
                self.lose(_ending(error))
            return
        beside = self._beside
        self._hear()
        if self.signals(message):
            return
        if isinstance(message, _Begun):
            self.pid = message.pid
        elif isinstance(message, _Sealed):
            self._heard(self, (*message.words, beside))
        else:
            self._heard(self, message)

    def lose(self, ending: Ending) -> None:
        """Record that it has ended or cannot be reached."""
        if self.ending is None:
            self._over(ending)
            self._told(self)

    def _over(self, ending: Ending) -> Ending:
        if self.ending is None:
            self.ending = ending
            self._cluster.forget(self)
            ray.kill(self._handle)
        return self.ending

    def _probe(self) -> None:
        # Ray has lost the connection and does not know yet whether the actor or its machine is dead. Messages may be
        # lost, so the actor is given up. Ask Ray until it knows, to distinguish the loss of a machine from that of a
        # process.
        self._adrift = True
        self._cluster.call(self, self._handle.__ray_ready__.remote())

    def _hear(self) -> None:
        message, self._beside = self._handle.hear.options(num_returns=2).remote()
        self._cluster.call(self, message)


def _reserved(kind: str, count: int) -> list[Any]:
    # One group per device instead of one for all, which could be packed. If a machine dies, Ray 2.60's head process
    # retries to place its part of a group without a pause, at half a core; a single device's group can be removed.
    groups = [placement_group([{kind: 1}]) for _ in range(count)]
    until_s = time.monotonic() + PATIENCE_S
    if not all(group.wait(max(0.1, until_s - time.monotonic())) for group in groups):
        for group in groups:
            remove_placement_group(group)
        raise ConfigError(
            f"devices: {count} of the cluster's devices did not become free within {PATIENCE_S:.0f} s: request "
            "fewer, or wait until others end"
        )
    return groups


@ray.remote(num_cpus=0, max_retries=0)
def _answer(path: str) -> str:
    """Return what this machine reads there, and write it reversed next to it."""
    here = Path(path)
    with suppress(OSError):
        word = here.read_text(encoding="utf-8")
        here.with_suffix(".back").write_text(word[::-1], encoding="utf-8")
        return word
    return ""


def _ending(error: RayError) -> Ending:
    """Return the end that Ray's error describes, with the last part of its long message, which names the cause."""
    words = " ".join(str(error).split())
    short = words if len(words) <= _MOST_WORDS else "… " + words[-_MOST_WORDS:]
    return Ending(How.FAILED if isinstance(error, RayTaskError) else How.KILLED, short)


@dataclass(frozen=True, slots=True)
class _Begun:
    """The first message of a process."""

    pid: int


@dataclass(frozen=True, slots=True)
class _Over:
    """The last message of a process."""


@dataclass(frozen=True, slots=True)
class _Sealed:
    """A message whose last item, a large object, is a separate return value."""

    words: tuple[Any, ...]


class ActorConnection:
    """A process's end of its connection, with the interface of :class:`multiprocessing.connection.Connection`."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.outbox: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()

    def recv(self) -> Any:
        return self.inbox.get()

    def send(self, message: Any) -> None:
        if isinstance(message, tuple) and message and isinstance(message[-1], LargeObject):
            self.outbox.put((_Sealed(message[:-1]), message[-1].value))
        else:
            self.outbox.put((message, None))

    def poll(self, timeout: float | None) -> None:
        threading.Event().wait(timeout)  # no end to wait for: Ray kills a process that is no longer needed

    def fetch(self, reference: Any) -> Any:
        try:
            return ray.get(reference)
        except ray.exceptions.ObjectLostError as error:
            raise ObjectLostError(str(error)) from error

    def expect(self, references: Sequence[Any]) -> None:
        if references:
            ray.wait(list(references), num_returns=len(references), timeout=0.0)  # starts the transfers in Ray


class ActorProcess:
    """The Ray actor that runs a process's function."""

    def __init__(self) -> None:
        self._line = ActorConnection()

    @ray.method(concurrency_group="work")
    def work(self, what: list[Any]) -> None:
        """Call a function with its arguments. ``what`` holds one reference to both."""
        self._line.send(_Begun(os.getpid()))
        try:
            target, arguments = ray.get(what[0])  # in a list: Ray resolves a bare reference before the call
            target(self._line, *[ray.get(one) if isinstance(one, ray.ObjectRef) else one for one in arguments])
        finally:
            self._line.send(_Over())

    @ray.method(concurrency_group="tell")
    def tell(self, message: Any) -> None:
        self._line.inbox.put(message)

    @ray.method(concurrency_group="hear")
    def hear(self) -> tuple[Any, Any]:
        """Return the next outgoing message, and the object that belongs to it, or None."""
        return self._line.outbox.get()
