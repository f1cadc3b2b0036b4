"""PeerSync asks the ledger: its orders, answers and checkpoints are those of the PeerSync before it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import plans_before
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from peer_sync_before import OldPeerSync
from torch import Tensor, nn

from uneven.errors import ConfigError
from uneven.policy.control.ledger import Order, Unmerged
from uneven.policy.control.step_plans import StepPlans
from uneven.policy.core.actions import Exchange, Mean, Moment, Payload, StepPlan, overlapping
from uneven.policy.core.views import SyncView
from uneven.policy.samples.order import Portion
from uneven.policy.sync import SyncPolicy, in_groups, policies
from uneven.run.replicas.peers.peer_exchanges import StepPosition
from uneven.run.replicas.peers.peer_sync import PeerSync
from uneven.run.replicas.peers.replica import Replica

FIXED = (
    *("ma:every=2", "local:every=3,warmup=2", "bmuf:every=2", "diloco:every=3", "easgd:every=2,together=true"),
    *("diloco:every=4,fragments=2", "diloco:every=6,fragments=2,delay=2", "regional:every=2", "hierarchical:every=2"),
    *("topk:density=0.5", "sparse-local:every=3", "sparse-local:every=3,delay=2", "geo", "geo:lead=2"),
    *("shuffle:ma:every=2", "shuffle:groups=digits,base=2:ma"),
)
BESIDE = ("shadow:ma:every=2", "shadow:bmuf", "shadow:easgd:together=true", "mixed")
MOVING = ("ma:every=2", "local:every=2,warmup=1", "bmuf:every=3", "shuffle:ma:every=2", "hierarchical:every=2")
SITES = {rank: "ab"[rank % 2] for rank in range(6)}


class Mixed(SyncPolicy):
    """After some steps all wait, and after each one something goes on in the background."""

    def plan(self, view: SyncView) -> StepPlan:
        one = Exchange(payload=Payload.PARAMETERS, members=view.members, merge=Mean(), moment=Moment.BACKGROUND)
        waits = (replace(one, moment=Moment.STEP),) if view.clock % 3 == 2 else ()
        return StepPlan(exchanges=(*waits, one))


class Overlapping(SyncPolicy):
    """Begins a delayed exchange when the one before has not entered, or has only just."""

    def __init__(self, every: int) -> None:
        self.every = every

    def plan(self, view: SyncView) -> StepPlan:
        how = {"payload": Payload.PARAMETERS, "merge": Mean(), "moment": Moment.STEP, "piece": (0, 1), "delay": 2}
        one = Exchange(members=view.members, **how)  # type: ignore[arg-type]
        return StepPlan(exchanges=(one,) if view.clock % self.every == 0 else ())


def make(name: str) -> SyncPolicy:
    return Mixed() if name == "mixed" else policies.resolve(name)


class Recorder:
    """Writes down what is asked of Exchanges, and answers from a table that both sides have."""

    picks = failed = exchanging = False
    together = True

    def __init__(self, free: set[int]) -> None:
        self.agreement: Any
        self.said: list[Any] = []
        self.shadowed = True
        self.due, self.waiting = 0, False
        self.changes: dict[int, tuple[tuple[int, ...], int]] = {}  # the number of a meeting → the members it leaves
        self._free = free
        self._met = self._asked = 0

    def say(self, what: str, *more: Any) -> None:
        equal = getattr(self.agreement, "ledger", self.agreement).equal
        self.said.append((what, self.agreement.clock, equal, *more))

    def free_for(self, exchange: Exchange) -> bool:
        self._asked += 1
        self.say("free?", exchange)
        return self._asked % 7 in self._free

    def meet(self, order: Any, groups: Any = None) -> None:
        if order.exchange.delay:
            if self.waiting or order.clock == self.due:
                raise overlapping(order.exchange)
            self.waiting, self.due = True, order.clock + order.exchange.delay
        groups = getattr(order, "meeting", groups)
        who = None if groups is None else groups(1, order.exchange.members)
        self.say("meet", self.plain(order), who)
        self._met += 1
        if self._met in self.changes:
            self.agreement.members_changed(*self.changes[self._met])

    def begin(self, order: Any) -> None:
        self.say("begin", self.plain(order))

    def rest(self, order: Any) -> None:
        self.say("rest", self.plain(order))

    def enter(self, clock: int) -> bool:
        entered = self.waiting and clock >= self.due
        if entered:
            self.say("enter", clock)
            self.waiting = False
        return entered

    def mean(self, everybody: Exchange, place: Any) -> Tensor:
        self.say("mean", everybody, place)
        return torch.zeros(2)

    def loaded(self) -> None:
        self.due, self.waiting = 0, False

    def state_dict(self, shown: bool) -> tuple[dict[str, Tensor], dict[str, float]]:
        return {}, {"late-due": float(self.due * (self.waiting and not shown))}

    def load_state_dict(self, vectors: dict[str, Tensor], kept: dict[str, float]) -> None:
        if kept["late-due"]:
            self.due, self.waiting = round(kept["late-due"]), True

    def check(self, vectors: dict[str, Tensor], kept: dict[str, float]) -> None: ...
    def stepped(self) -> None: ...
    def paused(self) -> None: ...
    def resumed(self) -> None: ...
    def write_down(self) -> None: ...
    def close(self, failed: bool) -> None: ...

    def caught_up(self) -> bool:
        return self.shadowed

    def plain(self, order: Any) -> tuple[Any, ...]:
        """An order in the words of before."""
        if isinstance(order, Order):
            merges = order.merges
            where = StepPosition(order.epoch, order.iteration, order.clock) if self.together else None
        else:
            where, merges = order.place, Unmerged(order.gap, order.samples, order.weight)
        counts = merges.own, merges.gap, merges.weight, order.dropped, order.threads
        return order.exchange, order.clock, order.iteration, counts, where, order.part, order.rate


class Barrier:
    number = 0

    def arrive(self) -> None: ...
    def wait(self) -> None: ...
    def leave(self) -> None: ...

    def meet(self) -> list[int]:
        return []


class Pair:
    """The two, which get the same calls; each answer is compared."""

    def __init__(self, policy: str | SyncPolicy, rank: int, members: tuple[int, ...], free: set[int], **how: Any):
        self.policy, self.rank, self.members, self.how = policy, rank, members, how
        self.generation, self.iteration, self.epoch, self.start = 0, 0, 0, 0
        self.free = free
        self.again()

    def again(self) -> None:
        """Both from the start, as after a restart."""
        self.both: list[Any] = []
        self.models = [nn.Linear(1, 1) for _ in range(2)]
        self.optimizers = [torch.optim.SGD(one.parameters(), lr=0.5) for one in self.models]
        elastic, barrier = self.how.get("elastic", False), Barrier() if self.how.get("barrier") else None
        for kind, model in zip((OldPeerSync, PeerSync), self.models, strict=True):
            policy = make(self.policy) if isinstance(self.policy, str) else self.policy
            who = policy, self.rank, self.members, SITES
            grouped = elastic and in_groups(policy)
            old = plans_before.GroupPlans if grouped else plans_before.Plans
            plans: Any = old(*who) if kind is OldPeerSync else StepPlans(*who, grouped=grouped)
            one: Any = kind(*who, Replica(model), barrier, plans)  # type: ignore[arg-type]
            one._exchanges = Recorder(self.free)
            one._exchanges.agreement = one
            one._exchanges.shadowed = self.how.get("shadowed", False)
            one._exchanges.together = barrier is None
            self.both.append(one)

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        answers = []
        for one in self.both:
            try:
                answer = getattr(one, name)(*arguments, **named)
            except ConfigError as error:
                answer = str(error)
            answers.append(answer)
        assert answers[0] == answers[1], (name, answers)
        self.compare()
        return answers[1]

    def compare(self) -> None:
        old, new = self.both
        assert old._exchanges.said == new._exchanges.said
        assert (old.clock, old.equal, old.apart) == (new.clock, new.ledger.equal, new.apart)
        groups = old.groups(), new.groups()
        assert (groups[0] is None) == (groups[1] is None)
        if groups[0] is not None and groups[1] is not None:
            assert groups[0](1, self.members) == groups[1](1, self.members)

    def part(self, shares: tuple[int, ...]) -> Portion:
        shares = shares[: len(self.members)]
        members = self.members if self.how.get("elastic") else None
        part = Portion(
            iteration=self.iteration, epoch=self.epoch, start=self.start, size=sum(shares), shares=shares,
            members=members,
        )  # fmt: skip
        self.iteration += 1
        self.start += sum(shares)
        return part

    def begin(self, part: Portion) -> None:
        plan = self.call("plan")
        self.call("before", part, plan)

    def still(self, rate: float) -> None:
        for one, optimizer in zip(self.both, self.optimizers, strict=True):
            optimizer.param_groups[0]["lr"] = rate
            one.still(optimizer, (), {})

    def saved(self, parts: tuple[Portion, ...] = (), unused: tuple[Portion, ...] = ()) -> Any:
        states = [one.state_dict(parts, unused) for one in self.both]
        assert states[0] == states[1]
        return json.loads(json.dumps(states[1][0]))

    def load(self, state: Any) -> None:
        self.call("load_state_dict", state, {})

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        with self.both[0].evaluated(), self.both[1].evaluated():
            self.compare()
            yield
        self.compare()

    def change(self, members: tuple[int, ...]) -> None:
        self.members, self.generation = members, self.generation + 1
        self.call("members_changed", members, self.generation)


shares = st.tuples(*[st.integers(0, 9)] * 6).map(lambda some: (some[0] + 1, *some[1:]))
rates = st.sampled_from([0.5, 0.25, 0.1])


def play(pair: Pair, data: st.DataObject, moves: list[str]) -> None:
    for move in moves:
        event(move)
        part = pair.part(data.draw(shares))
        if move == "threads":
            parts = [part, *(pair.part(data.draw(shares)) for _ in range(data.draw(st.integers(0, 2))))]
            for one in pair.both:
                one.threads = 2
            for ahead in range(len(parts)):
                pair.call("open")
                pair.call("plan", ahead=ahead)
            pair.saved(tuple(parts), tuple(parts[1:]))
            for one in parts:
                pair.call("over", one)
            continue
        if move == "settle":
            pair.call("settle")
        elif move == "epoch":
            pair.epoch, pair.start = pair.epoch + 1, 0
            continue
        elif move == "evaluate":
            with pair.evaluated():
                pair.saved()
            continue
        elif move == "restart":
            state = pair.saved()
            pair.again()
            pair.load(state)
            continue
        elif move == "load":
            pair.load(pair.saved())
            continue
        elif move in {"loss", "newcomer"}:
            members = tuple(one for one in pair.members if one == pair.rank or move == "newcomer")
            members = tuple(sorted({*members, *data.draw(st.sets(st.integers(0, 5), max_size=3))}))
            if data.draw(st.booleans()):
                pair.change(members)
            else:  # within the next exchange that all wait for
                pair.generation += 1
                for one in pair.both:
                    one._exchanges.changes[one._exchanges._met + 1] = members, pair.generation
        pair.begin(part)
        if data.draw(st.booleans()):
            pair.saved((part,))
            pair.saved((part,), (part,))
            pair.saved((), (part,))
        if data.draw(st.booleans()):
            pair.still(data.draw(rates))
        pair.call("after", part, leaving=move == "leave")
        pair.members = pair.both[0]._members
        pair.saved()
    pair.saved()


STEPS = ("step", "step", "step", "leave", "settle", "epoch", "evaluate", "restart", "load")


@pytest.mark.parametrize("policy", FIXED)
@settings(max_examples=25)
@given(data=st.data(), moves=st.lists(st.sampled_from(STEPS), min_size=1, max_size=14))
def test_orders_after_the_step_are_those_of_before(policy: str, data: st.DataObject, moves: list[str]) -> None:
    size = data.draw(st.integers(1, 5))
    rank = data.draw(st.integers(0, size - 1))
    play(Pair(policy, rank, tuple(range(size)), set()), data, moves)


@pytest.mark.parametrize("policy", BESIDE)
@settings(max_examples=25)
@given(data=st.data(), moves=st.lists(st.sampled_from((*STEPS, "threads")), min_size=1, max_size=14))
def test_orders_in_the_background_are_those_of_before(policy: str, data: st.DataObject, moves: list[str]) -> None:
    free, barrier = data.draw(st.sets(st.integers(0, 6))), policy != "mixed"
    play(Pair(policy, 1, (0, 1, 2), free, barrier=barrier, shadowed=True), data, moves)


@pytest.mark.parametrize("policy", MOVING)
@settings(max_examples=25)
@given(data=st.data(), moves=st.lists(st.sampled_from((*STEPS, "loss", "newcomer")), min_size=1, max_size=14))
def test_orders_of_changing_members_are_those_of_before(policy: str, data: st.DataObject, moves: list[str]) -> None:
    play(Pair(policy, 1, (0, 1, 2), set(), elastic=True), data, moves)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_second_delayed_exchange_is_refused_as_before(every: int) -> None:
    pair = Pair(Overlapping(every), 0, (0, 1), set())
    answers = []
    for _ in range(7):
        part = pair.part((1, 1))
        pair.begin(part)
        answers.append(pair.call("after", part, leaving=False))
    assert any(isinstance(one, str) for one in answers) == (every < 3)


@pytest.mark.parametrize("policy", ["ma:every=3", "diloco:every=4"])
def test_the_state_of_another_policy_is_not_taken(policy: str) -> None:
    pair = Pair("bmuf:every=2", 0, (0, 1), set())
    pair.begin(part := pair.part((1, 1)))
    pair.call("after", part, leaving=True)
    state = pair.saved()
    other = Pair(policy, 0, (0, 1), set())
    other.load(state)
    assert other.saved()["gap"] == 0
