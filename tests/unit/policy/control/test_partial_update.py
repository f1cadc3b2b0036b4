"""Who calls is heard with what it has to say: a new split without a report of everybody."""

from __future__ import annotations

import math

import pytest

from uneven.errors import ConflictError
from uneven.policy.balance import balancers
from uneven.policy.control import Decider, Report, ReportTable
from uneven.policy.core.views import Limits

X = 100


def decider(balancer: str = "proportional:predictor=last") -> Decider:
    made, limits = balancers.resolve(balancer), Limits.uniform(3, X)
    return Decider(made, (0, 1, 2), limits, global_batch=X, lookahead=0, budget=0.5)


def report(of: Decider, speed: float, iteration: int, *, memory: float = 0.2, **changed: float) -> Report:
    share = 10
    told = Report(
        iteration=iteration, iterations=1, samples=share, local_s=share / speed, exchange_s=0.01, transfer_s=0.0,
        control_s=0.0, cost_s=0.0, cpu=0.5, memory=memory, predicted_per_s=speed, doubt=0.01, urgent=0.0,
        no_early_reports=0.0,
        split=of.fingerprint(),
    )  # fmt: skip
    return told._replace(**changed)


def all_told(of: Decider, speeds: tuple[float, ...], iteration: int, memory: float = 0.2) -> None:
    of.decide(iteration, iteration, ReportTable([report(of, speed, iteration, memory=memory) for speed in speeds]))


def test_the_word_of_the_others_stands() -> None:
    one = decider()
    all_told(one, (60.0, 20.0, 20.0), 0)
    assert one.newest == (60, 20, 20)
    updated = one.partial_update(1, {0: report(one, 10.0, 1)})
    assert updated.split is not None
    assert updated.split.iteration == 2
    assert one.newest == (20, 40, 40)
    assert updated.split.predicted_per_s == (10.0, 20.0, 20.0)
    assert not updated.complaints
    assert one.partial_update(2, {1: report(one, 20.0, 2)}).split is None, "nothing new"


def test_what_is_absurd_is_refused_as_in_any_report() -> None:
    one = decider()
    all_told(one, (60.0, 20.0, 20.0), 0)
    (complaint,) = one.partial_update(1, {0: report(one, 10.0, 1, local_s=-1.0)}).complaints
    assert complaint.rank == 0
    assert one.newest == (60, 20, 20)


def test_before_all_have_reported_nothing_is_split() -> None:
    one = decider()
    assert one.partial_update(0, {0: report(one, 10.0, 0)}).split is None
    assert all(math.isnan(speed) == (place > 0) for place, speed in enumerate(one._predicted_per_s.tolist()))


def test_whose_memory_is_full_takes_no_more_either() -> None:
    one = decider()
    all_told(one, (20.0, 20.0, 60.0), 0)
    all_told(one, (20.0, 20.0, 60.0), 1, memory=0.99)
    held = one.newest
    one.partial_update(2, {2: report(one, 10.0, 2)})
    assert one.newest == held, "nobody can take what it would give"


def test_a_sudden_change_still_counts_as_one_when_all_have_told_of_it() -> None:
    gaps = []
    for partial_updates in (False, True):
        one = decider()
        for iteration in range(0, 400, 4):  # beyond the reports that mind no budget
            all_told(one, (60.0, 20.0, 20.0), iteration)
        if partial_updates:
            one.partial_update(401, {0: report(one, 10.0, 401)})
        table = ReportTable([report(one, speed, 402) for speed in (10.0, 20.0, 20.0)])
        decision = one.decide(402, 402, table)
        assert one.newest == (20, 40, 40)
        gaps.append((decision.soonest, decision.next))
    assert gaps[0] == gaps[1]


def test_who_has_decided_another_split_is_named() -> None:
    one, other = decider(), decider()
    all_told(other, (60.0, 20.0, 20.0), 0)
    with pytest.raises(ConflictError, match="rank 1 decided another split"):
        one.partial_update(1, {0: report(one, 10.0, 1), 1: report(other, 10.0, 1)})


@pytest.mark.parametrize(("balancer", "partial_updates"), [("lb-bsp", True), ("numerical", False)])
def test_those_that_reckon_with_everybody_are_not_asked(balancer: str, partial_updates: bool) -> None:
    assert decider(balancer).partial_updates == partial_updates
