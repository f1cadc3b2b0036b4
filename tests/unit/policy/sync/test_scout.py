"""A policy whose knob follows what models lose away from home."""

from __future__ import annotations

import pytest

from uneven.errors import ConfigError
from uneven.policy.core.views import SyncView
from uneven.policy.sync import Scout, policies

SITES = {0: "a", 1: "b", 2: "c"}


def threshold(policy: Scout, clock: int) -> float:
    view = SyncView(rank=0, clock=clock, members=(0, 1, 2), sites=SITES)
    (far,) = (one for one in policy.plan(view).exchanges if one.select is not None)
    return far.select.threshold  # type: ignore[union-attr]


def test_a_setting_holds_from_the_step_on_that_it_was_found_for() -> None:
    policy = Scout("geo", period=10, start=3)
    assert threshold(policy, 0) == threshold(policy, 11) == 0.2
    assert policy.heard(12, loss=0.3, share=0.1) == 0.1
    assert threshold(policy, 11) == 0.2
    assert threshold(policy, 12) == threshold(policy, 99) == 0.1
    assert [one.setting for one in policy.periods] == [0.2]
    other = Scout("geo", period=10, start=3)
    other.load_state_dict(policy.state_dict())
    assert threshold(other, 11) == 0.2
    assert other.heard(22, loss=0.3, share=0.1) == policy.heard(22, loss=0.3, share=0.1) == 0.05


@pytest.mark.parametrize(("inner", "knob"), [("topk", "density"), ("local", "every"), ("hierarchical", "every")])
def test_every_policy_with_a_knob_can_be_tuned(inner: str, knob: str) -> None:
    policy = policies.resolve(f"scout:start=0:{inner}")
    assert isinstance(policy, Scout)
    assert policy.knob == knob
    assert policy.heard(5, loss=0.3, share=0.0) == policy.settings[1]
    assert policy.heard(9, loss=1.0, share=0.0) == policy.settings[4]


def test_what_has_no_knob_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot change the amount"):
        policies.resolve("scout:bsp")
    with pytest.raises(ConfigError, match="judge"):
        policies.resolve("scout:judge=others:geo")
    with pytest.raises(ConfigError, match="period"):
        policies.resolve("scout:period=0:geo")
