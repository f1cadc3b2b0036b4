"""Workers of one elastic run in one process, as far as they take part in changes of members."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined] # its stubs say that it is private

from uneven.policy.core.membership import Generation
from uneven.policy.core.records import MembershipRecord
from uneven.policy.sync import policies
from uneven.run.lines.communicator import RoundPlace
from uneven.run.lines.elastic_communicator import ElasticCommunicator
from uneven.run.membership.generations import Membership
from uneven.run.step.build import elastic_kind, make_leased_pace
from uneven.runtime.tcp_store import reach

FOREGROUND, BACKGROUND, SERVER = "bsp", "shadow:ma", "asp"


class Noted:
    """An object of the loop whose state a newcomer takes over."""

    def __init__(self, worker: int) -> None:
        self.state: Any = {"of": worker, "vector": torch.full((3,), float(worker))}

    def for_newcomers(self) -> Any:
        return self.state

    def take_over(self, state: Any) -> None:
        self.state = state


class Loop:
    """The loop of a run, as far as it takes part in a change of members."""

    apart = False

    def __init__(self, worker: int) -> None:
        self.members: list[tuple[int, ...]] = []
        self.noted = Noted(worker)

    def members_changed(self, generation: Generation) -> None:
        self.members.append(generation.members)

    def transferred(self) -> Sequence[tuple[str, Noted]]:
        return [("noted", self.noted)]

    def introduction(self) -> dict[str, Any]:
        return {"site": "here"}

    def settle(self) -> None: ...


class Removed:
    """The keeper's answer: a lost worker's last update that has arrived."""

    done = True
    clock = 7


class Keeper:
    def __init__(self) -> None:
        self.removed: list[int] = []

    def remove_member(self, worker: int) -> Removed:
        self.removed.append(worker)
        return Removed()

    def settle(self) -> None: ...


class Worker:
    """One worker; its merges run in the thread that asks for them."""

    idle = True

    def __init__(self, sync: str, number: int, founders: int, port: int, site: str) -> None:
        connect = partial(reach, "127.0.0.1", port, 60.0)
        self.membership = Membership(number, founders, (1, 4), connect, silence_s=0.0, timeout_s=20.0, site=site)
        self.records: list[MembershipRecord] = []
        self.elastic: Any = elastic_kind(policies.resolve(sync))(
            self.membership, self.records.append, lambda text, event="": None
        )
        torch.manual_seed(number)
        self.loop, self.keeper, self.model = Loop(number), Keeper(), nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.lost: list[tuple[int, int]] = []
        if sync != FOREGROUND:
            make_leased_pace(self.elastic, 20.0, ahead=sync == BACKGROUND)
            self.elastic.claims.lost = lambda worker, arrived: self.lost.append((worker, arrived))
        self.elastic.merging, self.elastic.keeper = self, self.keeper
        self.elastic.bind(self.loop)
        self.elastic.attach(self.model, [self.optimizer])

    @property
    def rounds(self) -> ElasticCommunicator:
        rounds: ElasticCommunicator = self.elastic.rounds
        return rounds

    def meet(self) -> None:
        self.elastic.meet(self.model, "")

    def sum(self, words: bool = True) -> float:
        self.rounds.begin(RoundPlace("a sum", settles=-1))
        piece = self.rounds.add(torch.ones(1))
        self.rounds.land(words=words)
        return float(piece.sum)

    def merge(self) -> None:
        self.elastic.begins_merge()
        self.sum(words=False)
        self.sum()
        self.elastic.merged()

    def step(self) -> None:
        """One step of the loop, with all exchanges after it."""
        if self.elastic.changing is not None:
            self.sum()
        self.elastic.step_over()

    def state(self) -> list[Any]:
        """What is the same on all workers that are in the run."""
        tensors = [*self.model.state_dict().values(), *self.model.state_dict().values()]
        momentum = [one["momentum_buffer"].tolist() for one in self.optimizer.state.values()]
        rounds = self.rounds
        return [
            rounds.exchanges, rounds.by, self.membership.generation, momentum,
            [one.tolist() for one in tensors], self.loop.noted.state["of"], self.loop.noted.state["vector"].tolist(),
        ]  # fmt: skip


class Crew:
    """Workers of one run, each in a thread where they have to meet."""

    def __init__(self) -> None:
        self.kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.made: list[Worker] = []

    def worker(self, sync: str, number: int, founders: int, site: str = "") -> Worker:
        self.made.append(Worker(sync, number, founders, self.kept.port, site))
        return self.made[-1]

    def founders(self, sync: str, count: int, sites: Sequence[str] = ("",) * 4) -> list[Worker]:
        found = [self.worker(sync, one, count, sites[one]) for one in range(count)]
        together(*(one.meet for one in found))
        return found


def together(*calls: Callable[[], object]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for one in [pool.submit(call) for call in calls]:
            one.result(60.0)
