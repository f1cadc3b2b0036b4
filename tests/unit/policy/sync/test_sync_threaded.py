"""Which policies and balancers go with several threads a worker, and what is offered in place of the others."""

import re

import pytest

from uneven.policy.sync import policies, threaded

GOES = ("local", "ma:every=4", "bmuf", "diloco", "easgd:together=true", "shadow:ma", "shadow:bmuf", "shuffle",
        "shadow:easgd:together=true", "diloco:every=4,delay=2", "sparse-local:delay=1", "shadow:asp", "decoupled",
        "decoupled:every=2,quorum=1")  # fmt: skip


def test_averages_of_parameters_go_with_threads() -> None:
    for policy in GOES:
        assert threaded(policy, "even", 3, 4) is None
        assert threaded(policy, "static:shares=2/1/1/1", 3, 4) is None
    for policy in policies:
        assert threaded(policy, "lb-bsp", 1, 4) is None
    assert threaded("bsp", "lb-bsp", 2, 1) is None  # alone there is nothing to exchange


@pytest.mark.parametrize(
    ("policy", "balancer", "offered"),
    [
        ("bsp", "even", "local:every=8"),
        ("hierarchical:every=5", "even", "local:every=5"),
        ("local:every=3,warmup=9", "even", "local:every=3"),
        ("asp", "even", "shadow:easgd"),
        ("backup", "even", "shadow:easgd"),
        ("easgd:every=6", "even", "shadow:easgd"),
        ("ma", "lb-bsp", "even"),
    ],
)
def test_what_makes_no_sense_is_refused_and_the_nearest_named(policy: str, balancer: str, offered: str) -> None:
    why = threaded(policy, balancer, 2, 2)
    assert why is not None
    found = re.findall(r"use (?:sync|balance) = '([^']*)'", why)
    assert found == [offered]
    sync, balance = (policy, offered) if balancer != "even" else (offered, "even")
    assert threaded(sync, balance, 2, 2) is None
