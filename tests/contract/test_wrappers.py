"""Wrappers forget nothing: whatever a balancer or a policy has, the wrapper bases forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.balance import Balancer, Hysteresis, PresumeEqual, Static, WrappingBalancer
from uneven.policy.balance.profiled import Profile
from uneven.policy.core.actions import Split, StepPlan
from uneven.policy.core.views import BalanceView, Limits, SyncView
from uneven.policy.sync import MA, EvaluationModel, Facts, LocalSGD, Shadow, Shuffle, SyncPolicy, WrappingPolicy
from uneven.testing.contracts import BalancerContract, SyncPolicyContract


def members(kind: type) -> set[str]:
    """The public attributes, properties and methods that a class states itself."""
    return {name for name in (*vars(kind), *vars(kind).get("__annotations__", ())) if not name.startswith("_")}


def forgotten(base: type, wrapper: type) -> set[str]:
    """What the base class has and the wrapper leaves to it, so that the inner one's would not be seen."""
    return members(base) - members(wrapper)


@pytest.mark.parametrize(("base", "wrapper"), [(Balancer, WrappingBalancer), (SyncPolicy, WrappingPolicy)])
def test_the_wrapper_forwards_every_member_of_its_base(base: type, wrapper: type) -> None:
    assert len(members(base)) >= 5
    assert forgotten(base, wrapper) == set()

    class Grown(base):  # type: ignore[misc, valid-type]
        newcomer: bool = False

        def another(self) -> None: ...

    assert forgotten(Grown, wrapper) == {"newcomer", "another"}


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        *((Hysteresis, WrappingBalancer), (PresumeEqual, WrappingBalancer)),
        *((Shadow, WrappingPolicy), (Shuffle, WrappingPolicy)),
    ],
)
def test_the_shipped_wrappers_are_built_on_it(kind: type, base: type) -> None:
    assert issubclass(kind, base)


VIEW = BalanceView(
    iteration=0, global_batch=4, members=(0, 1), shares=(2, 2), observed=(None, None), predicted_per_s=(1.0, 1.0),
    limits=Limits.uniform(2, 4),
)  # fmt: skip


class Peculiar(Balancer):
    """Different from the base class in everything."""

    predictor = "last"
    adapts = False
    partial_updates = True
    made_for = 2
    seen: Any = None

    def split(self, view: BalanceView) -> Split:
        return Split((1, 3), "peculiar")

    def profiled(self, profiles: Mapping[int, Profile]) -> None:
        self.seen = profiles

    def state_dict(self) -> dict[str, Any]:
        return {"learnt": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["learnt"]


@pytest.mark.parametrize("wrap", [WrappingBalancer, Hysteresis, PresumeEqual])
def test_a_wrapped_balancer_is_seen_through_the_wrapper(wrap: type[WrappingBalancer]) -> None:
    inner = Peculiar()
    outer = wrap(inner)
    for name in ("predictor", "adapts", "partial_updates", "made_for"):
        assert getattr(outer, name) == getattr(inner, name) != getattr(Balancer, name)
    inner.adapts = True  # some settle, some start to move
    assert outer.adapts
    outer.profiled({0: Profile(sizes=(1, 2, 4), seconds=(1.0, 2.0, 4.0))})
    assert set(inner.seen) == {0}
    inner.seen = 7
    other = Peculiar()
    wrap(other).load_state_dict(outer.state_dict())
    assert other.seen == 7
    assert WrappingBalancer(inner).split(VIEW).shares == (1, 3)


def test_a_wrapper_of_shares_for_two_workers_is_for_two() -> None:
    assert Hysteresis(Static(shares=(1, 2))).made_for == 2


def test_wrappers_take_names() -> None:
    assert repr(WrappingPolicy("local:every=3").inner) == repr(LocalSGD(every=3))
    assert PresumeEqual("static:shares=1/2").made_for == 2
    with pytest.raises(UnknownNameError, match="unknown balancer 'proportionl'; did you mean 'proportional'"):
        Hysteresis("proportionl")
    with pytest.raises(ConfigError, match="not int"):
        WrappingPolicy(3)  # type: ignore[arg-type]


class Counting(MA):
    """A policy that has something to keep."""

    def __init__(self, every: int = 1) -> None:
        super().__init__(every=every)
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state.get("count", 0)


@pytest.mark.parametrize("wrap", [WrappingPolicy, Shadow, Shuffle])
def test_the_state_of_a_wrapped_policy_is_kept(wrap: type[WrappingPolicy]) -> None:
    old, new = Counting(), Counting()
    old.count = 7
    wrap(new).load_state_dict(wrap(old).state_dict())
    assert new.count == 7
    wrap(new).load_state_dict({})  # of an older checkpoint
    assert new.count == 0


def test_a_wrapped_policy_is_seen_through_the_wrapper() -> None:
    inner = MA(every=3)
    outer = WrappingPolicy(inner)
    view = SyncView(rank=0, clock=2, members=(0, 1))
    assert (outer.evaluation_model, outer.facts, outer.constant) == (EvaluationModel.MEAN, inner.facts, inner.constant)
    assert outer.plan(view) == inner.plan(view) != StepPlan()
    assert WrappingPolicy(MA(every=1)).constant


class Halved(WrappingPolicy):
    """Every second exchange only; it states facts of its own."""

    def plan(self, view: SyncView) -> StepPlan:
        plan = self.inner.plan(view)
        return plan if view.clock % 2 else StepPlan()

    @property
    def facts(self) -> Facts | None:
        return None


def test_a_wrapper_with_a_plan_of_its_own_is_not_constant_because_the_inner_one_is() -> None:
    assert Halved(MA(every=1)).inner.constant
    assert not Halved(MA(every=1)).constant


class TestPlainBalancer(BalancerContract):
    def make(self) -> Balancer:
        return WrappingBalancer("proportional")


class TestPlainPolicy(SyncPolicyContract):
    def make(self) -> SyncPolicy:
        return WrappingPolicy("ma:every=2")


class TestHalved(SyncPolicyContract):
    def make(self) -> SyncPolicy:
        return Halved("ma:every=1")
