"""The Ray engine: the devices of a Ray cluster, actors in placement groups, prepared samples in its object store.

Everything that is sent goes through Ray, which pickles it. So whoever can reach the cluster's ports can run code in it,
with or without this engine; Ray says the same of itself.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util import get_node_ip_address, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from uneven.errors import ConfigError
from uneven.fleet.place.devices import Devices, devices_of_cluster
from uneven.fleet.place.pulse import Awake, Watched
from uneven.fleet.place.ray_actor import BEGUN, ENDED, GROUPS, ActorProcess, ChunksHandle, Told
from uneven.fleet.stream.layout import Layout

PATIENCE_S = 60.0
"""How long to wait for devices that the cluster has and somebody else may use."""

_SURVEY_S = 1.0
_MOST_WORDS = 300


class Cluster:
    """See :class:`~uneven.fleet.place.base.Place`; a device is a placement group of one bundle.

    One group for all of them could be packed. But what a dead machine takes of a group, Ray 2.60's head process tries
    to place elsewhere without a pause, at the cost of half a core; the group of a single lost device can be given up.

    Connects to the cluster that ``RAY_ADDRESS`` names, or that runs on this machine; if there is none, Ray starts one
    here, which ends with this. One that the program is connected to already is used as it is.

    Args:
        asked: "auto" for every GPU of the cluster, or for every CPU slot where it has none; a number of CPU slots; or
            ``["cuda"] * 4``.

    Raises:
        ConfigError: the cluster has fewer devices, or they do not become free.
    """

    def __init__(self, asked: Devices) -> None:
        self._ours = not ray.is_initialized()
        if self._ours:
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        try:
            kind, count = devices_of_cluster(asked, ray.cluster_resources())
            self.devices = ("cuda:0" if kind == "GPU" else "cpu",) * count  # Ray shows an actor its own GPUs alone
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
        self._calls: dict[Any, Actor] = {}
        self._sent: dict[int, tuple[Any, Any]] = {}
        remote: Any = ray.remote  # its types do not know of groups
        self._actor = remote(concurrency_groups=GROUPS, max_restarts=0, max_task_retries=0)(ActorProcess)
        self.profiled, self.turns = count, False
        self.preprocessors = max(1, int(ray.cluster_resources().get("CPU", 1)))
        several = len(set(self._names.values())) > 1
        self.address = get_node_ip_address() if several else "127.0.0.1"

    def enter(self, directory: Path) -> None:
        """See that each machine finds there what this one writes, and the other way round.

        Raises:
            ConfigError: one does not, by its address.
        """
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
                        f"{directory} is not the same directory on the machine {self._names[node]} as here: "
                        f"checkpoints must lie on storage that every machine of the cluster reaches under the same path"
                    )
                back.unlink()
        finally:
            here.unlink()

    def start(
        self, name: str, target: Callable[..., None], arguments: tuple[Any, ...], *,
        heard: Callable[[Any, Any], None], died: Callable[[Any], None], device: int | None = None,
    ) -> Actor:  # fmt: skip
        """An actor: in a device's bundle, or, for one that does not train, wherever Ray spreads it to."""
        if device is None:
            options: dict[str, Any] = {"num_cpus": 0, "scheduling_strategy": "SPREAD"}
        else:
            bundle = PlacementGroupSchedulingStrategy(self._groups[device], placement_group_bundle_index=0)
            options = {**self._options, "scheduling_strategy": bundle}
        try:
            what = [target, [self._shared(one) for one in arguments]]
            sent = ray.put(what)
        except TypeError as error:
            raise ConfigError(
                f"{name}: what it needs cannot be sent to another process ({error}): data sets, transforms and losses "
                f"must be made of classes and functions at the top level of a module"
            ) from error
        handle = self._actor.options(enable_task_events=False, **options).remote()  # each message would be one
        return Actor(self, name, handle, sent, heard, died, device)

    def wait(self, timeout_s: float) -> None:
        """Let everybody speak who has something to say, and see which machines are left."""
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
            ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0.0)
        for call in ready:
            actor = self._calls.pop(call, None)
            if actor is not None:  # an earlier one may have ended it
                actor.listen(call)

    def store(self, layout: Layout, *, slots: int, chunk: int) -> Kept:
        """Room in the object store.

        Raises:
            ConfigError: the buffer does not fit into that of each machine, and would be written to disks.
        """
        needs = slots * chunk * sum(field.nbytes for field in layout)
        room = min(node["Resources"].get("object_store_memory", 0.0) for node in ray.nodes() if node["Alive"])
        if needs > room:
            raise ConfigError(
                f"the shared buffer needs {needs / 1e6:,.0f} MB, a machine's object store has {room / 1e6:,.0f} MB: "
                f"give Options(buffer=…) fewer samples, or Ray more object_store_memory"
            )
        return Kept(ChunksHandle(layout, slots, chunk))

    def seat(self, device: int) -> int:
        """Each device has its own: an actor stays in its bundle."""
        return device

    def nodes(self, devices: Sequence[int]) -> list[list[int]]:
        """By the machine of each bundle."""
        homes = sorted({self._homes[device] for device in devices})
        return [[device for device in devices if self._homes[device] == home] for home in homes]

    def gone(self) -> frozenset[int]:
        """Those on machines that Ray says are dead. One that comes back is not used before the next start."""
        self._survey()
        return self._lost

    def close(self) -> None:
        """Give the devices back."""
        for actor in set(self._calls.values()):
            actor.end()
        for device, group in enumerate(self._groups):
            if device not in self._lost:
                remove_placement_group(group)
        self._leave()

    def call(self, actor: Actor, reference: Any) -> None:
        """Listen for this on an actor's behalf."""
        self._calls[reference] = actor

    def forget(self, actor: Actor) -> None:
        """Do not listen to an actor any more."""
        self._calls = {call: one for call, one in self._calls.items() if one is not actor}

    def _survey(self) -> None:
        self._surveyed_s = time.monotonic()
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        gone = frozenset(device for device, home in enumerate(self._homes) if home not in alive)
        for device in gone - self._lost:
            remove_placement_group(self._groups[device])
        self._lost |= gone
        for actor in set(self._calls.values()):
            if actor.device in self._lost:  # one whose bundle waits for another machine would never be heard of
                actor.lose("its machine was lost")

    def _shared(self, argument: Any) -> Any:
        """Data sets go into the object store once, not with every process."""
        if isinstance(argument, int | str | ChunksHandle):
            return argument
        if id(argument) not in self._sent:
            self._sent[id(argument)] = argument, ray.put(argument)
        return self._sent[id(argument)][1]

    def _leave(self) -> None:
        if self._ours:
            ray.shutdown()


class Actor(Watched):
    """See :class:`~uneven.fleet.place.base.Process`."""

    def __init__(
        self, cluster: Cluster, name: str, handle: Any, what: Any,
        heard: Callable[[Any, Any], None], died: Callable[[Any], None], device: int | None,
    ) -> None:  # fmt: skip
        super().__init__(cluster.awake)
        self.name = name
        self.device = device
        self.pid = 0
        self.ending = ""
        self._cluster = cluster
        self._handle = handle
        self._heard = heard
        self._died = died
        self._over = self._adrift = False
        self._work = handle.work.remote([what])
        self._hear()

    def send(self, message: Any) -> None:
        """Say something."""
        self.touched()
        if not self._over:
            self._handle.tell.remote(message)

    def hang_up(self) -> None:
        """End it; there is nothing that it would have to put in order."""
        self.end()

    def close(self) -> None:
        """The same."""
        self.end()

    def end(self) -> None:
        """End it now. Twice is no error."""
        if not self._over:
            self._over = True
            self._cluster.forget(self)
            ray.kill(self._handle)

    def listen(self, call: Any) -> None:
        """What it said is there."""
        try:
            message = ray.get(call)
        except ActorUnavailableError:
            self._probe()
            return
        except RayError as error:
            self.lose(_short(error))
            return
        if self._adrift:
            self.lose("Ray lost touch with it")
            return
        if message[0] == ENDED:
            try:
                ray.get(self._work)
                self.lose("it came to its end")
            except RayError as error:
                self.lose(_short(error))
            return
        beside = self._beside
        self._hear()
        if self.signals(message):
            return
        if message[0] == BEGUN:
            self.pid = message[1]
        elif message[0] == "made":
            self._heard(self, (*message, beside))
        else:
            self._heard(self, message)

    def lose(self, ending: str) -> None:
        """It has ended, or cannot be reached."""
        if not self._over:
            self.ending = ending
            self.end()
            self._died(self)

    def _probe(self) -> None:
        """Ray has lost touch with it and does not know yet whether it, or its machine, is dead.

        What it said meanwhile may be gone, so it is of no use any more. It is asked for until Ray knows, so that the
        loss of a machine is not taken for the death of a member.
        """
        self._adrift = True
        self._cluster.call(self, self._handle.__ray_ready__.remote())

    def _hear(self) -> None:
        message, self._beside = self._handle.hear.options(num_returns=2).remote()
        self._cluster.call(self, message)


class Kept:
    """The engine's end of the chunks; see :class:`~uneven.fleet.place.base.Store`.

    This process owns them, so that they outlive whoever made them; what is lost with a machine is made again.
    """

    def __init__(self, handle: ChunksHandle) -> None:
        self._handle = handle
        self._there: Told = {}
        self._times: dict[int, int] = {}

    def handle(self, *, writable: bool) -> ChunksHandle:
        """For another process."""
        return self._handle

    def keep(self, number: int, told: Any) -> None:
        """A chunk has been made; ``told`` refers to it."""
        self._times[number] = self._times.get(number, 0) + 1
        self._there[number] = self._times[number], told

    def found(self, first: int, end: int) -> Told:
        """References to chunks."""
        return {number: self._there[number] for number in range(first, end) if number in self._there}

    def lost(self, number: int, told: int) -> bool:
        """Whether this is the first that is heard of the loss of a chunk that had been made ``told`` times."""
        there = self._there.get(number)
        if there is None or there[0] != told:
            return False
        del self._there[number]
        return True

    def drop(self, below: int) -> None:
        """Nobody needs the chunks below this one."""
        for held in (self._there, self._times):
            for number in [number for number in held if number < below]:
                del held[number]

    def close(self) -> None:
        """Let go of all."""
        self._there.clear()


def _reserved(kind: str, count: int) -> list[Any]:
    groups = [placement_group([{kind: 1}]) for _ in range(count)]
    until_s = time.monotonic() + PATIENCE_S
    if not all(group.wait(max(0.1, until_s - time.monotonic())) for group in groups):
        for group in groups:
            remove_placement_group(group)
        raise ConfigError(
            f"devices: {count} of the cluster's devices did not become free within {PATIENCE_S:.0f} s: ask for fewer, "
            f"or wait for those who use it"
        )
    return groups


@ray.remote(num_cpus=0, max_retries=0)
def _answer(path: str) -> str:
    """What another machine reads there; it leaves the same backwards beside it."""
    here = Path(path)
    with suppress(OSError):
        word = here.read_text(encoding="utf-8")
        here.with_suffix(".back").write_text(word[::-1], encoding="utf-8")
        return word
    return ""


def _short(error: Exception) -> str:
    """Ray's long messages in one line; what happened stands at the end."""
    words = " ".join(str(error).split())
    return words if len(words) <= _MOST_WORDS else "… " + words[-_MOST_WORDS:]
