"""What a policy is going to exchange, seen before training starts."""

from __future__ import annotations

import pytest

from uneven.policy.core.actions import Moment, Payload
from uneven.policy.sync import outlook, policies

FOUR = (0, 1, 2, 3)
HOMES = {0: "a", 1: "b", 2: "a", 3: "c"}


@pytest.mark.parametrize(
    ("spec", "payloads", "moments", "groups"),
    [
        ("bsp", {Payload.GRADIENT}, {Moment.BACKWARD}, (FOUR,)),
        ("local:every=5000", {Payload.PARAMETERS}, {Moment.STEP}, ()),
        ("local:every=3,warmup=9000", {Payload.GRADIENT, Payload.PARAMETERS}, {Moment.BACKWARD, Moment.STEP}, (FOUR,)),
        ("shadow:ma:every=7", {Payload.PARAMETERS}, {Moment.BACKGROUND}, ()),
        ("hierarchical", {Payload.GRADIENT, Payload.PARAMETERS}, {Moment.BACKWARD, Moment.STEP}, ((0, 2),)),
    ],
)
def test_payloads_moments_and_groups(
    spec: str, payloads: set[Payload], moments: set[Moment], groups: tuple[tuple[int, ...], ...]
) -> None:
    out = outlook(policies.resolve(spec), FOUR, HOMES)
    assert (out.payloads, out.moments, out.gradient_groups) == (payloads, moments, groups)
    assert out.gradients_of_all(FOUR) == (spec == "bsp")


def test_one_site_is_bsp() -> None:
    out = outlook(policies.resolve("hierarchical"), FOUR, dict.fromkeys(FOUR, "a"))
    assert out.gradient_groups == (FOUR,)
    assert not out.gradients_of_all(FOUR), "it says that it exchanges parameters too, so it is not taken for BSP"
