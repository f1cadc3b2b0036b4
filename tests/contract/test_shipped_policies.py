"""Every shipped synchronisation policy keeps the contract."""

from __future__ import annotations

import dataclasses

import pytest

from uneven.core.actions import StepPlan
from uneven.core.views import SyncView
from uneven.sync import BSP, SyncPolicy, policies
from uneven.testing.contracts import SyncPolicyContract


class TestBSP(SyncPolicyContract):
    def make(self) -> SyncPolicy:
        return BSP()


def test_no_shipped_policy_is_left_out() -> None:
    assert set(policies) == {"bsp"}


class _WithoutMyself(BSP):
    def plan(self, view: SyncView) -> StepPlan:
        others = tuple(rank for rank in view.members if rank != view.rank)
        return StepPlan(exchanges=tuple(dataclasses.replace(e, members=others) for e in super().plan(view).exchanges))


def test_the_suite_notices_a_policy_whose_groups_do_not_fit() -> None:
    class Wrong(SyncPolicyContract):
        def make(self) -> SyncPolicy:
            return _WithoutMyself()

    with pytest.raises(AssertionError):
        Wrong().test_a_worker_talks_only_to_the_living_and_is_one_of_them()
    with pytest.raises(KeyError):
        Wrong().test_members_of_a_group_name_the_same_group.__func__(_Strange())


class _Strange(SyncPolicyContract):
    """Names a member that there is not."""

    def make(self) -> SyncPolicy:
        class Strange(BSP):
            def plan(self, view: SyncView) -> StepPlan:
                everybody = (*view.members, 99)
                return StepPlan(
                    exchanges=tuple(dataclasses.replace(e, members=everybody) for e in super().plan(view).exchanges)
                )

        return Strange()
