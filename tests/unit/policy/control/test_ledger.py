"""The ledger of one worker: which steps are unmerged, which orders follow, and what a checkpoint holds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uneven.errors import ConfigError
from uneven.policy.control import ledger as module
from uneven.policy.control.ledger import Enter, Instruction, Order, StepLedger
from uneven.policy.control.step_plans import StepPlans
from uneven.policy.core.actions import Exchange, Mean, Moment, Payload, Quorum, StepPlan, Via, Wait
from uneven.policy.core.views import SyncView
from uneven.policy.samples.order import Cursor
from uneven.policy.sync import SyncPolicy, policies

MEMBERS = (0, 1, 2)


@dataclass(frozen=True)
class Step:
    """A step without a data set."""

    iteration: int
    shares: tuple[int, ...]
    epoch: int = 0

    @property
    def before(self) -> Cursor:
        return Cursor(self.epoch, 0, self.iteration)

    def batch(self, rank: int, /) -> int:
        return self.shares[rank] if rank < len(self.shares) else 0


class Driver:
    """Carries out every instruction at once."""

    def __init__(self, policy: str | SyncPolicy, rank: int = 0, members: tuple[int, ...] = MEMBERS, **how: Any):
        made = policies.resolve(policy) if isinstance(policy, str) else policy
        served = how.pop("served", False)
        plans = StepPlans(made, rank, members, {one: "ab"[one % 2] for one in members}, **how)
        self.ledger = StepLedger(plans, served=served)
        self.done: list[Instruction] = []
        self.iteration = 0
        self.free = True

    def follow(self, instructions: Iterable[Instruction]) -> None:
        for one in instructions:
            self.done.append(one)
            if isinstance(one, Order) and one.exchange.moment is not Moment.BACKGROUND:
                self.ledger.landed(one)

    def step(self, *shares: int, leaving: bool = False) -> None:
        self.follow(self.ledger.owing(lambda exchange: self.free))
        self.ledger.began(self.ledger.plans.at(self.ledger.clock))
        now = Step(self.iteration, shares or (1, 2, 3))
        self.iteration += 1
        self.follow(self.ledger.ended(now, lambda exchange: self.free, leaving=leaving))

    @property
    def orders(self) -> list[Order]:
        return [one for one in self.done if isinstance(one, Order)]

    @property
    def gaps(self) -> list[int]:
        return [one.merges.gap for one in self.orders]


class Planned(SyncPolicy):
    """Plans from a list, the last one for ever."""

    def __init__(self, *plans: StepPlan) -> None:
        self.plans = plans

    def plan(self, view: SyncView) -> StepPlan:
        return self.plans[min(view.clock, len(self.plans) - 1)]


ALL = Exchange(payload=Payload.PARAMETERS, members=MEMBERS, merge=Mean(), moment=Moment.STEP)


def test_an_order_takes_all_unmerged_steps() -> None:
    one = Driver("ma:every=2")
    for _ in range(5):
        one.step(3, 4, 5)
    assert [(order.clock, order.iteration) for order in one.orders] == [(2, 1), (4, 3)]
    assert [order.merges[:3] for order in one.orders] == [(2, 6, 6), (2, 6, 6)]
    assert [[step.iteration for step in order.merges.steps] for order in one.orders] == [[0, 1], [2, 3]]
    assert one.ledger.apart, "one step is in no order"


def test_a_party_weighs_the_samples_of_all_its_workers() -> None:
    parties = replace(ALL, parties=((0, 2), (1,)))
    one = Driver(Planned(StepPlan(), StepPlan(exchanges=(parties,), divided=True)))
    one.step(1, 2, 3)
    one.step(10, 20, 30)
    (order,) = one.orders
    assert (order.merges.own, order.merges.weight, order.part) == (11, 44, 0.5)


def test_the_second_order_after_a_step_has_no_steps_to_merge() -> None:
    one = Driver(Planned(StepPlan(exchanges=(ALL, replace(ALL, members=(0,))))))
    one.step()
    assert one.gaps == [1, 0]
    assert [order.equal for order in one.orders] == [True, False]
    assert not one.ledger.equal


def test_no_instruction_is_made_without_an_exchange() -> None:
    one = Driver("local:every=3")
    assert one.ledger.ended(Step(0, (1, 1, 1)), lambda exchange: True) == ()


def test_what_is_left_is_owed_and_comes_before_the_next_step() -> None:
    one = Driver("ma:every=2")
    one.step()
    one.step(leaving=True)
    assert (one.orders, one.ledger.state()["owed"]) == ([], True)
    one.step()
    assert (one.gaps, one.orders[0].clock, one.ledger.state()["owed"]) == ([2], 2, False)


def test_an_exchange_in_the_background_is_dropped_if_it_is_not_free_or_the_loop_is_left() -> None:
    one = Driver("shadow:ma")
    one.free = False
    one.step()
    one.free = True
    one.step(leaving=True)
    one.step()
    assert [(order.merges.gap, order.dropped, order.equal) for order in one.orders] == [(3, 2, False)]
    assert one.ledger.dropped == 0


def test_an_order_is_made_only_after_the_one_before_was_carried_out() -> None:
    background = replace(ALL, moment=Moment.BACKGROUND)
    one = Driver(Planned(StepPlan(exchanges=(ALL, background))))
    asked: list[bool] = []
    carried = False

    def free(exchange: Exchange) -> bool:
        asked.append(carried)
        return True

    one.ledger.began(one.ledger.plans.at(0))
    for _ in one.ledger.ended(Step(0, (1, 1, 1)), free):
        carried = True
    assert asked == [True]


def test_a_delayed_outcome_enters_before_the_exchanges_of_its_clock() -> None:
    delayed = StepPlan(exchanges=(replace(ALL, piece=(0, 1), delay=2),))
    nothing = StepPlan()
    one = Driver(Planned(delayed, nothing, nothing, delayed, nothing))
    for _ in range(6):
        one.step()
    assert [(type(it).__name__, it.clock) for it in one.done] == [
        *(("Order", 1), ("Enter", 3)),
        *(("Order", 4), ("Enter", 6)),
    ]


def test_a_delayed_outcome_enters_with_the_next_step_if_the_loop_was_left() -> None:
    one = Driver(Planned(StepPlan(exchanges=(replace(ALL, piece=(0, 1), delay=1),)), StepPlan()))
    one.step()
    one.step(leaving=True)
    assert len(one.done) == 1
    one.step()
    assert one.done[1:] == [Enter(2)]


@pytest.mark.parametrize(("delay", "between"), [(1, 0), (2, 1), (3, 0)])
def test_an_outcome_that_is_under_way_or_has_just_entered_refuses_another(delay: int, between: int) -> None:
    delayed = StepPlan(exchanges=(replace(ALL, piece=(0, 1), delay=delay),))
    one = Driver(Planned(delayed, *[StepPlan()] * between, delayed))
    for _ in range(1 + between):
        one.step()
    with pytest.raises(ConfigError, match="overlaps the exchange before it"):
        one.step()


def test_all_wait_for_all_by_the_members_of_an_exchange_or_by_the_turn_of_groups() -> None:
    def met(policy: str | SyncPolicy) -> list[bool]:
        one, found = Driver(policy), []
        for _ in range(4):
            one.step()
            found.append(one.ledger.met)
        return found

    assert met("ma:every=2") == [False, True, False, True]
    assert met("shuffle:ma:every=2") == [False, True, False, True]
    assert met(Planned(StepPlan(exchanges=(replace(ALL, members=(0, 1)),)))) == [False] * 4
    assert met(Planned(StepPlan(exchanges=(replace(ALL, moment=Moment.BACKGROUND),)))) == [False] * 4


def test_settling_merges_among_all_members_unless_all_are_equal() -> None:
    one = Driver("ma:every=2")
    one.step()
    one.ledger.members_changed((0, 1, 2, 5), 1)
    one.follow(one.ledger.settling())
    assert [(order.exchange.members, order.merges.gap, order.equal) for order in one.orders] == [
        ((0, 1, 2, 5), 1, True)
    ]
    one.follow(one.ledger.settling())
    assert len(one.orders) == 1


def test_groups_settle_among_all_even_right_after_their_exchange() -> None:
    one = Driver("shuffle:groups=digits,base=2:ma", members=(0, 1, 2, 3), grouped=True)
    one.step(1, 1, 1, 1)
    one.follow(one.ledger.settling())
    assert [order.meeting is None for order in one.orders] == [False, True]
    assert one.orders[1].exchange.members == (0, 1, 2, 3)


class Turning(Planned):
    """Pairs that change at each step."""

    def __init__(self) -> None: ...

    def plan(self, view: SyncView) -> StepPlan:
        pairs = ((0, 1), (2, 3)) if view.clock % 2 else ((0, 2), (1, 3))
        own = next(pair for pair in pairs if view.rank in pair)
        return StepPlan(exchanges=(replace(ALL, members=own),))


def test_groups_meet_as_the_plan_of_their_step_says() -> None:
    one = Driver(Turning(), members=(0, 1, 2, 3), grouped=True)
    one.step(1, 1, 1, 1)
    one.step(1, 1, 1, 1)
    meetings = [order.meeting for order in one.orders]
    assert [None if one is None else one(0, (0, 1, 2, 3)) for one in meetings] == [((0, 2), (1, 3)), ((0, 1), (2, 3))]


def regional(every: int = 2, members: tuple[int, ...] = (0, 1, 2, 3)) -> Driver:
    """Sites a (0, 2) and b (1, 3)."""
    return Driver(f"regional:every=1,across={every}", members=members, grouped=True)


def test_regions_are_apart_until_they_have_met() -> None:
    one = regional()
    assert one.ledger.in_regions
    one.step(1, 1, 1, 1)
    assert one.ledger.apart
    one.step(1, 1, 1, 1)
    assert not one.ledger.apart
    assert [order.exchange.payload.value for order in one.orders] == ["delta", "delta", "parameters"]
    assert [one.ledger.meets(worker) for worker in range(4)] == [True, False, True, False]


def test_regions_are_apart_also_where_as_many_are_left_as_one_had() -> None:
    one = regional()
    one.step(1, 1, 1, 1)
    one.ledger.members_changed((0, 1), 1)
    assert one.ledger.apart
    other = regional()
    other.step(1, 1, 1, 1)
    other.ledger.members_changed((0, 2), 1)
    assert not other.ledger.apart, "one region is left"
    assert not other.ledger.in_regions


def test_regions_settle_with_the_mean_of_all_which_changes_no_momentum() -> None:
    one = regional(every=3)
    one.step(1, 2, 3, 4)
    one.follow(one.ledger.settling())
    settles = one.orders[1]
    assert (settles.exchange.payload, settles.exchange.merge) == (Payload.PARAMETERS, Mean())
    assert (settles.exchange.parties, settles.meeting, settles.equal) == (((0, 2), (1, 3)), None, True)
    one.follow(one.ledger.settling())
    assert len(one.orders) == 2
    alone = regional(members=(0, 2))
    alone.step(1, 2, 3)
    alone.ledger.began(alone.ledger.plan)
    alone.ledger.ended(Step(1, (1, 2, 3)), lambda exchange: True, leaving=True)
    alone.follow(alone.ledger.settling())
    assert [order.exchange.payload for order in alone.orders] == [Payload.DELTA] * 2


def test_replicas_are_not_equal_after_a_piece() -> None:
    one = Driver(Planned(StepPlan(exchanges=(replace(ALL, piece=(0, 2)),))))
    one.step()
    assert one.orders
    assert not one.ledger.equal


def test_a_loaded_outcome_enters_at_its_clock() -> None:
    one = Driver("ma:every=9")
    one.step()
    other = Driver("ma:every=9")
    other.ledger.load(one.ledger.state(), due=3)
    other.step()
    assert other.done == []
    other.step()
    assert other.done == [Enter(3)]


def test_a_newcomer_makes_replicas_unequal_and_a_loss_does_not() -> None:
    one = Driver("ma:every=1")
    one.step()
    assert one.ledger.equal
    one.ledger.members_changed((0, 1), 1)
    assert one.ledger.equal
    one.ledger.members_changed((0, 1, 7), 2)
    assert not one.ledger.equal


@pytest.mark.parametrize("policy", ["diloco:every=2", "bmuf:every=2", "diloco:every=1"])
def test_replicas_that_have_just_met_are_not_apart_when_a_newcomer_comes(policy: str) -> None:
    one = Driver(policy)
    one.step()
    one.step()
    one.ledger.members_changed((0, 1, 2, 3), 1)
    assert not one.ledger.apart, "at the end of an epoch the others would settle without the newcomer"
    assert not list(one.ledger.settling())


def test_a_change_in_the_middle_of_a_step_plans_the_step_again() -> None:
    """Others may have known the members before they began it, and all make the same exchanges of it."""
    one = Driver("geo", members=(0, 1, 2), grouped=True)
    one.ledger.began(one.ledger.plans.at(0))
    one.ledger.members_changed((0, 2), 1)
    one.follow(one.ledger.ended(Step(0, (1, 2, 3)), lambda exchange: True))
    (order,) = one.orders
    assert (order.exchange.parties, order.part, order.equal) == (((0, 2),), 1.0, False)
    one.ledger.members_changed((0,), 2)
    assert one.ledger.plan.exchanges[-1].members == (0, 2), "after it, the next step takes the plan"


def test_a_movement_that_is_in_no_exchange_keeps_replicas_apart_where_gradients_are_those_of_all() -> None:
    one = Driver("sparse-local:every=3", members=(0, 2), grouped=True)  # of one site
    for apart in (True, True, False):
        one.step()
        assert one.ledger.apart is apart


def test_who_averages_all_gradients_is_not_apart() -> None:
    one = Driver("local:every=2,warmup=1")
    one.step()
    assert not one.ledger.apart
    one.step()
    assert one.ledger.apart or one.orders


def test_at_rest_a_worker_gives_what_no_order_has_taken() -> None:
    one = Driver("shadow:ma:every=4")
    for _ in range(5):
        one.step()
    assert one.gaps == [4]
    assert [order.merges.gap for order in one.ledger.resting()] == [1]
    assert [order.merges.gap for order in one.ledger.resting()] == [0]


def test_a_step_in_flight_counts_in_a_checkpoint_and_an_unused_one_does_not() -> None:
    one = Driver("ma:every=9")
    one.step(1, 2, 3)
    one.step(1, 2, 3)
    flying = Step(2, (5, 5, 5))
    state = one.ledger.state((flying,))
    assert (state["clock"], state["gap"], state["fresh"]) == (3, 3, [7, 9, 11])
    state = one.ledger.state((), (Step(1, (1, 2, 3)),))
    assert (state["clock"], state["gap"], state["fresh"], state["since"]) == (1, 1, [1, 2, 3], Cursor(0, 0, 0))
    assert one.ledger.state()["gap"] == 2, "the state is only read"


def test_the_state_of_the_last_exchange_names_the_place_of_later_samples() -> None:
    one = Driver("easgd:every=2,together=true")
    for _ in range(3):
        one.step()
    state = one.ledger.state(merged=True)
    assert {key: state[key] for key in ("clock", "gap", "fresh", "owed", "since", "lacking")} == {
        "clock": 2, "gap": 0, "fresh": [0, 0, 0], "owed": False, "since": None, "lacking": Cursor(0, 0, 2)
    }  # fmt: skip


def test_another_policy_starts_from_scratch_and_other_workers_from_the_steps_alone() -> None:
    one = Driver("ma:every=9")
    one.step()
    state = json.loads(json.dumps(one.ledger.state()))
    other = Driver("ma:every=8")
    other.ledger.load(state)
    assert (other.ledger.clock, other.ledger.state()["gap"]) == (0, 0)
    fewer = Driver("ma:every=9", members=(0, 1))
    fewer.ledger.load(state)
    assert (fewer.ledger.clock, fewer.ledger.state()["gap"], fewer.ledger.state()["fresh"]) == (1, 1, [0, 0])


def test_a_worker_that_never_exchanges_keeps_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEPS_KEPT", 3)
    one = Driver(Planned(*[StepPlan()] * 9, StepPlan(exchanges=(ALL,))))
    for _ in range(9):
        one.step(1, 2, 3)
        assert len(one.ledger._steps) <= 3
    assert one.ledger.state()["since"] == Cursor(0, 0, 0)
    one.step(1, 2, 3)
    assert one.orders[0].merges[:3] == (10, 10, 10)


moves = st.lists(st.sampled_from(["step", "leave", "busy", "save"]), max_size=30)


@pytest.mark.parametrize(
    "policy", ["ma:every=3", "shadow:ma:every=2", "hierarchical:every=2", "local:every=3,warmup=1"]
)
@given(moves=moves, shares=st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=30, max_size=30))
def test_each_step_is_in_one_order_also_across_a_restart(
    policy: str, moves: list[str], shares: list[tuple[int, ...]]
) -> None:
    one = Driver(policy)
    for move, those in zip(moves, shares, strict=False):
        if move == "save":
            state, driver = json.loads(json.dumps(one.ledger.state())), Driver(policy)
            driver.ledger.load(state)
            driver.done, driver.iteration = one.done, one.iteration
            one = driver
            continue
        one.free = move != "busy"
        one.step(*those, leaving=move == "leave")
    one.follow(one.ledger.owing(lambda exchange: one.free))
    rest = one.ledger.state()
    assert sum(one.gaps) + rest["gap"] == one.iteration == one.ledger.clock
    used = [those for move, those in zip(moves, shares, strict=False) if move != "save"]
    assert sum(order.merges.own for order in one.orders) + rest["fresh"][0] == sum(those[0] for those in used)


# ---------------------------------------------------------------- through a server
MOVED = replace(ALL, payload=Payload.DELTA, via=Via.SERVER)


def served(*plans: StepPlan) -> Driver:
    return Driver(Planned(*plans), served=True)


def test_an_order_waits_for_the_steps_that_the_next_plan_waits_for() -> None:
    one = served(*(StepPlan(exchanges=(MOVED,), waits=(Wait(MEMBERS, clock),)) for clock in (0, 3, 7)))
    for _ in range(3):
        one.step()
    assert [order.waits for order in one.orders] == [3, 7, 7]
    assert not one.ledger.met
    assert not one.ledger.apart


def test_gradients_of_a_quorum_come_after_the_step_and_exchanges_of_parties_never() -> None:
    gradients = replace(MOVED, payload=Payload.GRADIENT, moment=Moment.BACKWARD)
    one = served(StepPlan(exchanges=(MOVED, gradients, replace(MOVED, parties=((0, 1), (2,))))))
    one.step()
    assert [order.exchange for order in one.orders] == [gradients, MOVED]


def test_a_server_is_owed_exchanges_in_the_background_as_well() -> None:
    aside = replace(MOVED, moment=Moment.BACKGROUND)
    one = served(StepPlan(exchanges=(aside, MOVED), waits=(Wait(MEMBERS, 5),)), StepPlan())
    one.step(leaving=True)
    assert (one.orders, one.ledger.dropped) == ([], 0)
    one.step()
    assert [(order.exchange, order.waits, order.merges.gap) for order in one.orders] == [(MOVED, 0, 1), (aside, 0, 0)]


@pytest.mark.parametrize(("hand", "clocks"), [(1, [2, 2]), (0, [1, 1]), (-1, [1])])
def test_an_evaluation_takes_the_movements_that_no_exchange_has_taken(hand: int, clocks: list[int]) -> None:
    """A step in hand moves the replica; the background may not have been free."""
    aside, central = replace(MOVED, moment=Moment.BACKGROUND), replace(ALL, via=Via.SERVER)
    quorum = replace(aside, quorum=Quorum(count=2))
    one = served(StepPlan(exchanges=(MOVED, aside, central, quorum)))
    one.step()
    shown = list(one.ledger.showing(hand))
    assert [order.exchange for order in shown] == [MOVED, aside][-len(clocks) :]
    assert [order.clock for order in shown] == clocks


def test_what_a_server_has_not_merged_settles_with_its_next_exchange() -> None:
    one = served(StepPlan(), StepPlan(), StepPlan(exchanges=(MOVED,)))
    one.step()
    one.follow(one.ledger.settling())
    one.follow(one.ledger.settling())
    assert one.gaps == [1]


def test_the_state_for_a_server_has_the_samples_of_this_worker_only() -> None:
    one = served(StepPlan())
    one.step(4, 5, 6)
    state = one.ledger.state()
    assert {key: state[key] for key in ("clock", "gap", "samples")} == {"clock": 1, "gap": 1, "samples": 4}
    other = served(StepPlan(), StepPlan(exchanges=(MOVED,)))
    other.ledger.load(state | {"policy": repr(other.ledger.plans.policy)})
    other.step(1, 1, 1)
    assert [order.merges[:2] for order in other.orders] == [(2, 5)]
