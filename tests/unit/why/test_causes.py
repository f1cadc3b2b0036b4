"""Who is late, and why: decided from numbers alone."""

from __future__ import annotations

import random

import pytest

from uneven.journal.pure.metrics import Iteration, Timing
from uneven.why.pure.causes import Explanation, FactSums, judge

STEPS = 60
USUAL = {"steps": 1.0, "whole_s": 0.1, "exchange_s": 0.02, "ran_s": 0.06, "queued_s": 0.01, "elements": 100.0}


def explained(
    late: dict[int, float] | None = None,
    data: dict[int, float] | None = None,
    facts: dict[int, dict[str, float]] | None = None,
    communicate_s: float = 0.005,
    pauses: dict[int, int] | None = None,
    noise: float = 0.002,
    steps: int = STEPS,
) -> Explanation:
    """Return the answer for four workers with these seconds of lateness; ``pauses``: step → rank of a long step."""
    rng = random.Random(4)
    late, data, pauses = late or {}, data or {}, pauses or {}
    iterations = []
    at_s = 0.0
    for number in range(steps):
        own_s = {rank: 0.08 + late.get(rank, 0.0) + abs(rng.gauss(0.0, noise)) for rank in range(4)}
        if number in pauses:
            own_s[pauses[number]] += 1.0
        longest_s = max(own_s.values())
        at_s += longest_s + communicate_s
        timings = {
            rank: Timing(
                rank=rank,
                batch=8,
                data_s=data.get(rank, 0.0),
                compute_s=seconds - data.get(rank, 0.0),
                wait_s=longest_s - seconds,
                communicate_s=communicate_s,
                control_s=0.0,
            )
            for rank, seconds in own_s.items()
        }
        iterations.append(
            Iteration(
                iteration=number,
                epoch=0,
                global_batch=32,
                ended_at_s=at_s,
                duration_s=longest_s + communicate_s,
                timings=timings,
            )
        )
    known = {rank: FactSums(sums=USUAL | (facts or {}).get(rank, {})) for rank in range(4)}
    return judge("run", iterations, known, dict.fromkeys(range(4), "here"))


def test_equal_workers_have_no_suspect() -> None:
    found = explained()
    assert not found.suspects
    assert found.bound.startswith("Computing takes most of a step")


def test_a_lateness_that_chance_explains_has_no_suspect() -> None:
    assert not explained(noise=0.05).suspects


def test_too_few_steps_name_no_worker() -> None:
    found = explained(late={2: 0.1}, steps=15)
    assert not found.suspects
    assert "too few" in found.note


@pytest.mark.parametrize(
    ("cause", "data", "facts"),
    [
        ("data", {2: 0.1}, {}),
        ("batch", {}, {"elements": 220.0, "ran_s": 0.15, "whole_s": 0.2}),
        ("collection", {}, {"collected_s": 0.09, "ran_s": 0.15, "whole_s": 0.2}),
        ("compilation", {}, {"compiled_s": 0.09, "ran_s": 0.15, "whole_s": 0.2}),
        ("quota", {}, {"queued_s": 0.11, "whole_s": 0.2, "throttled": 3.0, "throttled_s": 0.1, "clock_s": 0.2}),
        ("contention", {}, {"queued_s": 0.11, "whole_s": 0.2}),
        ("steal", {}, {"queued_s": 0.11, "whole_s": 0.2, "stolen_s": 0.1, "clock_s": 0.2}),
        ("memory", {}, {"major_faults": 300.0, "whole_s": 0.2}),
        ("stopped", {}, {"whole_s": 0.2, "late_s": 0.1, "clock_s": 0.2}),
        ("blocked", {}, {"whole_s": 0.2, "clock_s": 0.2}),
        ("processor", {}, {"ran_s": 0.16, "queued_s": 0.027, "whole_s": 0.2}),
    ],
)
def test_the_cause_is_the_quantity_that_covers_the_lateness(
    cause: str, data: dict[int, float], facts: dict[str, float]
) -> None:
    found = explained(late={2: 0.1}, data=data, facts={2: facts})
    assert [(one.rank, one.cause) for one in found.suspects] == [(2, cause)]
    assert found.suspects[0].late_s == pytest.approx(0.1, rel=0.1)


def test_two_slow_workers_are_both_named() -> None:
    found = explained(late={1: 0.1, 3: 0.2})
    assert [one.rank for one in found.suspects] == [3, 1]


def test_a_slow_link_is_named_if_the_exchange_takes_long() -> None:
    links = {rank: {"sent_bytes": 1e8, "sending_s": 1.0 if rank != 1 else 10.0} for rank in range(4)}
    assert [(one.rank, one.cause) for one in explained(facts=links, communicate_s=0.1).suspects] == [(1, "link")]
    assert not explained(facts=links, communicate_s=0.001).suspects


def test_rare_long_steps_are_pauses_and_not_a_slow_worker() -> None:
    found = explained(pauses={20: 0, 40: 0})
    assert not found.suspects
    assert [(one.rank, one.steps) for one in found.pauses] == [(0, 2)]
