"""Which policies and balancers go with several threads a worker, and what is offered in place of the others."""

import re

import pytest

from uneven.policy.sync import policies, threaded

GOES = ("local", "ma:every=4", "bmuf", "diloco", "easgd:together=true", "shadow:ma", "shadow:bmuf", "shuffle",
        "shadow:easgd:together=true")  # fmt: skip


def test_averages_of_parameters_go_with_threads() -> None:
    for policy in GOES:
        assert threaded(policy, "even", 3, 4) is None
        assert threaded(policy, "static:shares=2/1/1/1", 3, 4) is None
    for policy in policies:
        assert threaded(policy, "lb-bsp", 1, 4) is None
    assert threaded("bsp", "lb-bsp", 2, 1) is None  # alone there is nothing to exchange


@pytest.mark.parametrize("policy", ["diloco:every=4,delay=2", "diloco:every=4,fragments=2,delay=1"])
def test_an_outcome_that_enters_after_one_step_does_not_go_with_threads(policy: str) -> None:
    assert threaded(policy, "even", 2, 2) == (
        f"sync = {policy!r} with threads = 2: what an exchange comes to enters after one step, which threads side by "
        f"side take at no one moment; leave the delay out, or take threads = 1"
    )
    assert threaded("diloco:every=4,fragments=2", "even", 2, 2) is None


@pytest.mark.parametrize("workers", [1, 2])  # alone, too: the server has a copy of it
@pytest.mark.parametrize("policy", ["shadow:asp", "decoupled", "decoupled:every=2,quorum=1"])
def test_movements_to_a_server_in_the_background_do_not_go_with_threads(policy: str, workers: int) -> None:
    assert threaded(policy, "even", 3, workers) == (
        f"sync = {policy!r} with threads = 3: each of its steps goes through a parameter server, and the threads of a "
        f"worker do not step together; use sync = 'shadow:easgd', which goes there in the background, or threads = 1"
    )


@pytest.mark.parametrize(
    ("policy", "balancer", "offered"),
    [
        ("bsp", "even", "local:every=8"),
        ("hierarchical:every=5", "even", "local:every=5"),
        ("local:every=3,warmup=9", "even", "local:every=3"),
        ("asp", "even", "shadow:easgd"),
        ("shadow:asp", "even", "shadow:easgd"),
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
