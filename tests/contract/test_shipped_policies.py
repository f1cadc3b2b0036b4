"""Every shipped synchronisation policy keeps the contract."""

from __future__ import annotations

import dataclasses

import pytest

from uneven.policy.core.actions import Payload, StepPlan, Wait
from uneven.policy.core.views import SyncView
from uneven.policy.sync import ASP, BSP, MA, Facts, Shuffle, SyncPolicy, policies
from uneven.testing.contracts import SyncPolicyContract

SHIPPED = (
    "bsp",
    "asp",
    "ssp:staleness=0",
    "ssp:staleness=3",
    "backup:spares=2",
    "local:every=3",
    "local:every=5,warmup=4",
    "diloco:every=6",
    "easgd:alpha=0.3,every=3",
    "ma:every=1",
    "ma:every=2",
    "bmuf:every=4,nesterov=true",
    "blocks:every=3,merge=block-momentum:momentum=0.5",
    "shuffle",
    "shuffle:groups=grid,columns=3:local:every=2",
    "shuffle:groups=digits",
    "shuffle:groups=random,size=2,seed=5",
    "shuffle:groups=sites,inside=2:ma:every=3",
    "hierarchical:every=4",
    "sparse-local:every=4",
    "topk",
    "geo:bsp:threshold=0.02,schedule=sqrt,flush=5",
    "scout",
    "scout:period=7,start=3:local",
    "geo:lead=2",
    "geo:hubs=true",
    "geo:ssp:staleness=2,lead=1",
    "decoupled:every=4",
    "regional:every=2,across=3",
    "diloco:every=4,fragments=2,delay=1",
    "shadow",
    "shadow:asp",
    "shadow:bmuf:every=3",
    "shadow:ma",
)


@pytest.mark.parametrize("spec", SHIPPED)
class TestShipped:
    """One suite for all: the parameter says which policy is made."""

    @pytest.mark.parametrize("promise", [name for name in vars(SyncPolicyContract) if name.startswith("test_")])
    def test_keeps(self, spec: str, promise: str) -> None:
        class Suite(SyncPolicyContract):
            def make(self) -> SyncPolicy:
                return policies.resolve(spec)

        getattr(Suite(), promise)()


class TestInherited(SyncPolicyContract):
    """As an author of a policy uses the suite."""

    members = (0, 1, 2, 3, 4, 5)

    def make(self) -> SyncPolicy:
        return Shuffle("ma")


def test_no_shipped_policy_is_left_out() -> None:
    assert {spec.split(":")[0] for spec in SHIPPED} == set(policies)
    assert len([name for name in vars(SyncPolicyContract) if name.startswith("test_")]) == 9


@pytest.mark.parametrize("name", list(policies))
def test_a_bare_name_is_enough(name: str) -> None:
    assert policies.resolve(name).facts is not None


class _WithoutMyself(BSP):
    def plan(self, view: SyncView) -> StepPlan:
        return _with_members(super().plan(view), tuple(rank for rank in view.members if rank != view.rank))


class _WithAStranger(BSP):
    def plan(self, view: SyncView) -> StepPlan:
        return _with_members(super().plan(view), (*view.members, 99))


class _Backwards(BSP):
    def plan(self, view: SyncView) -> StepPlan:
        return _with_members(super().plan(view), view.members[::-1])


class _PairsThatOverlap(BSP):
    """Each with its neighbour: 0 with 1, 1 with 2, and nobody's partner agrees."""

    def plan(self, view: SyncView) -> StepPlan:
        place = view.members.index(view.rank)
        pair = {view.rank, view.members[(place + 1) % len(view.members)]}
        return _with_members(super().plan(view), tuple(sorted(pair)))


class _Remembers(BSP):
    """Answers what it answered first."""

    def __init__(self) -> None:
        super().__init__()
        self.first: StepPlan | None = None

    def plan(self, view: SyncView) -> StepPlan:
        self.first = self.first or super().plan(view)
        return self.first


class _WaitsForTheFuture(BSP):
    def plan(self, view: SyncView) -> StepPlan:
        return StepPlan(waits=(Wait(view.members, view.clock + 1),))


class _WrongFacts(MA):
    @property
    def facts(self) -> Facts:
        return dataclasses.replace(super().facts, every=3)


class _WrongPayload(ASP):
    @property
    def facts(self) -> Facts:
        return dataclasses.replace(super().facts, payloads=(Payload.PARAMETERS,))


class _WronglyConstant(MA):
    @property
    def constant(self) -> bool:
        return True


class _Nameless(BSP):
    __repr__ = object.__repr__


def _with_members(plan: StepPlan, members: tuple[int, ...]) -> StepPlan:
    return StepPlan(exchanges=tuple(dataclasses.replace(one, members=members) for one in plan.exchanges))


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        (_WithoutMyself, "test_a_worker_talks_only_to_the_living_and_is_one_of_them"),
        (_WithAStranger, "test_a_worker_talks_only_to_the_living_and_is_one_of_them"),
        (_Backwards, "test_a_worker_talks_only_to_the_living_and_is_one_of_them"),
        (_Remembers, "test_the_plan_depends_on_the_view_only"),
        (_PairsThatOverlap, "test_members_of_a_group_name_the_same_group"),
        (_WaitsForTheFuture, "test_nobody_waits_for_a_clock_that_cannot_come"),
        (_WrongFacts, "test_its_facts_are_true"),
        (_WrongPayload, "test_its_facts_are_true"),
        (_WronglyConstant, "test_a_plan_that_is_said_to_be_constant_is"),
        (_Nameless, "test_it_is_told_apart_by_its_repr"),
    ],
)
def test_the_suite_notices(kind: type[SyncPolicy], promise: str) -> None:
    class Wrong(SyncPolicyContract):
        def make(self) -> SyncPolicy:
            return kind()

    with pytest.raises(AssertionError):
        getattr(Wrong(), promise)()
