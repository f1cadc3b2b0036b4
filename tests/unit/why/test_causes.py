"""Who is late, and why: decided from numbers alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from uneven.journal.pure.metrics import Iteration, Timing
from uneven.policy.core.records import FactsRecord
from uneven.why.pure.causes import FactSums, judge
from uneven.why.pure.findings import EVERY_WORKER, Explanation

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
    everyone: dict[str, float] | None = None,
    apart: int = 0,
    meet: bool = True,
) -> Explanation:
    """Return the answer for four workers with these seconds of lateness; ``pauses``: step → rank of a long step, -1 for
    all of them; ``everyone``: facts of all workers."""
    rng = random.Random(4)
    late, data, pauses = late or {}, data or {}, pauses or {}
    iterations = []
    at_s = 0.0
    for number in range(steps):
        own_s = {rank: 0.08 + late.get(rank, 0.0) + abs(rng.gauss(0.0, noise)) for rank in range(4)}
        for rank in range(4):
            own_s[rank] += pauses.get(number) in (rank, -1)
        longest_s = max(own_s.values())
        at_s += longest_s + communicate_s
        timings = {
            rank: Timing(
                rank=rank,
                batch=8,
                data_s=data.get(rank, 0.0),
                compute_s=seconds - data.get(rank, 0.0),
                wait_s=longest_s - seconds if meet else 0.0,
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
                apart=apart,
            )
        )
    sums = {rank: USUAL | (everyone or {}) | (facts or {}).get(rank, {}) for rank in range(4)}
    known = {
        rank: FactSums(sums=one, newest=one, records=1, links={f"10.0.0.{rank} 10.0.0.{(rank + 1) % 4}": 1})
        for rank, one in sums.items()
    }
    return judge("run", iterations, known, dict.fromkeys(range(4), "here"))


def test_equal_workers_have_no_suspect() -> None:
    found = explained()
    assert not found.suspects
    assert found.bound.startswith("Computing takes most of a step")


def test_a_lateness_that_chance_explains_has_no_suspect() -> None:
    assert not explained(noise=0.05).suspects


def test_workers_that_never_meet_name_no_worker() -> None:
    found = explained(late={2: 0.03}, communicate_s=0.0, meet=False)
    assert not found.suspects
    assert "exchange nothing" in found.note


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
        ("quota", {}, {"queued_s": 0.11, "whole_s": 0.2, "throttled_s": 0.1, "clock_s": 0.2}),
        ("contention", {}, {"queued_s": 0.11, "whole_s": 0.2}),
        ("steal", {}, {"queued_s": 0.11, "whole_s": 0.2, "stolen_s": 0.1, "clock_s": 0.2}),
        ("memory", {}, {"major_faults": 300.0, "whole_s": 0.2}),
        ("memory", {2: 0.1}, {"major_faults": 300.0, "whole_s": 0.2, "swapped_bytes": 5e8}),
        ("memory", {2: 0.1}, {"major_faults": 300.0, "whole_s": 0.2, "memory": 0.98}),
        ("data", {2: 0.1}, {"major_faults": 300.0, "whole_s": 0.2, "memory": 0.5}),
        ("heat", {}, {"whole_s": 0.2, "gpu_hot": 1.0, "gpu_clock": 0.5, "gpu_celsius": 91.0}),
        ("gpu-clock", {}, {"whole_s": 0.2, "gpu_clock": 0.5}),
        ("pcie", {}, {"whole_s": 0.2, "pcie_width": 0.25}),
        ("clock", {}, {"ran_s": 0.16, "queued_s": 0.027, "whole_s": 0.2, "clock": 0.4}),
        ("stopped", {}, {"whole_s": 0.2, "late_s": 0.1, "clock_s": 0.2}),
        ("blocked", {}, {"whole_s": 0.2, "clock_s": 0.2}),
        ("processor", {}, {"ran_s": 0.16, "queued_s": 0.027, "whole_s": 0.2}),
    ],
)
def test_the_cause_is_the_quantity_that_covers_the_lateness(
    cause: str, data: dict[int, float], facts: dict[str, float]
) -> None:
    gpu = (
        {"gpu_clock": 0.97, "pcie_width": 1.0, "clock": 0.95} if {"gpu_clock", "pcie_width", "clock"} & {*facts} else {}
    )
    found = explained(late={2: 0.1}, data=data, facts={2: facts}, everyone=gpu)
    assert [(one.rank, one.cause) for one in found.suspects] == [(2, cause)]
    assert found.suspects[0].late_s == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"ran_s": 0.14}, "most of it in computing them"),
        ({"network_files": 1.0, "read_bytes": 3e7}, "from a network file system"),
        ({"read_bytes": 3e7}, "with 30.0 MB read from disk"),
        ({}, "most of it in waiting"),
    ],
)
def test_the_source_of_slow_data_is_named(facts: dict[str, float], words: str) -> None:
    (found,) = explained(late={2: 0.1}, data={2: 0.1}, facts={2: facts | {"whole_s": 0.2}}).suspects
    assert found.evidence.endswith(words)


def test_workers_that_take_separate_steps_are_not_compared() -> None:
    found = explained(late={2: 0.1}, apart=32)
    assert not found.suspects
    assert "take separate steps" in found.note


def test_a_run_of_a_session_without_facts_has_the_times_of_its_slow_worker() -> None:
    nothing = dict.fromkeys(USUAL, 0.0)
    (found,) = explained(late={2: 0.1}, everyone=nothing).suspects
    assert (found.cause, found.evidence) == ("processor", "its computing takes 181 ms, that of the others 81 ms")


@pytest.mark.parametrize("name", ["ran_s", "throttled_s", "whole_s"])  # which makes its sleep longer
def test_a_smaller_lateness_counts_on_a_full_machine_if_no_queue_explains_it(name: str) -> None:
    everyone = {"queued_s": 0.04, "whole_s": 0.12}
    assert not explained(late={2: 0.015}, everyone=everyone).suspects
    own = {name: (USUAL | everyone | {"throttled_s": 0.0})[name] + 0.02}
    (found,) = explained(late={2: 0.015}, everyone=everyone, facts={2: own}).suspects
    assert found.rank == 2


def test_workers_of_one_full_machine_are_marked() -> None:
    full = {"queued_s": 0.04, "group": 5.0}
    (found,) = explained(late={2: 0.1}, everyone=full).suspects
    assert found.shared
    own = {rank: {"group": float(rank), "throttled_s": 0.04} for rank in range(4)}  # each is held by its own quota
    (found,) = explained(late={2: 0.1}, everyone=full, facts=own).suspects
    assert not found.shared
    together = {rank: {"throttled_s": 0.04} for rank in range(4)}
    (found,) = explained(late={2: 0.1}, everyone=full, facts=together).suspects
    assert found.shared


def test_a_late_timer_on_a_busy_machine_does_not_mean_that_a_worker_is_stopped() -> None:
    late = {rank: {"late_s": 0.1, "clock_s": 0.2, "whole_s": 0.2 if rank == 2 else 0.1} for rank in range(4)}
    assert [one.cause for one in explained(late={2: 0.1}, facts=late).suspects] == ["blocked"]


def test_two_slow_workers_are_both_named() -> None:
    found = explained(late={1: 0.1, 3: 0.2})
    assert [one.rank for one in found.suspects] == [3, 1]


def ring(slow: set[int], queue_s: float = 0.02) -> dict[int, dict[str, float]]:
    """Return the facts of a ring in which these ranks send slowly to the next one."""
    fast = {"sent_bytes": 1e8, "sending_s": 1.0, "queue_s": 1e-4}
    return {rank: fast | {"sending_s": 10.0, "queue_s": queue_s} if rank in slow else fast for rank in range(4)}


def test_a_slow_link_is_named_if_the_exchange_takes_long() -> None:
    links = ring({0, 1})
    links[1]["sent_again"] = 70.0
    (found,) = explained(facts=links, communicate_s=0.1).suspects
    assert (found.rank, found.cause) == (1, "link")
    assert found.evidence == "it sends 10.0 MB/s, the fastest link 100.0 MB/s; 70 segments were sent again"
    assert not explained(facts=links, communicate_s=0.001).suspects


def test_a_link_that_is_slow_in_one_direction_is_named_by_its_sender() -> None:
    (found,) = explained(facts=ring({2}), communicate_s=0.1).suspects
    assert found.rank == 2
    assert found.evidence == "it sends 10.0 MB/s to rank 3, the fastest link 100.0 MB/s"


@pytest.mark.parametrize("facts", [ring({0, 1}, queue_s=2e-4), ring({0, 1, 2, 3}), ring({0, 1, 2}), ring({0, 2})])
def test_links_that_are_alike_or_slow_in_two_places_name_no_worker(facts: dict[int, dict[str, float]]) -> None:
    assert not explained(facts=facts, communicate_s=0.1).suspects


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({"saved_s": 1.9}, "checkpoint"),
        ({"evaluated_s": 1.5}, "evaluation"),
        ({"compiled_s": 1.5}, "compilation"),
        ({"collected_s": 1.5}, "collection"),
        ({"saved_s": 0.1, "written_bytes": 5e8}, "writing"),
        ({}, ""),
    ],
)
def test_rare_long_steps_are_pauses_and_not_a_slow_worker(facts: dict[str, float], cause: str) -> None:
    found = explained(pauses={20: 0, 40: 0}, facts={0: facts})
    assert not found.suspects
    assert [(one.rank, one.steps, one.cause) for one in found.pauses] == [(0, 2, cause)]


def test_a_pause_of_all_workers_has_no_culprit() -> None:
    found = explained(pauses={20: -1}, everyone={"evaluated_s": 0.9})
    assert [(one.rank, one.cause) for one in found.pauses] == [(EVERY_WORKER, "evaluation")]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "Computing takes most of a step: 81 ms"),
        ({"everyone": {"queued_s": 0.06}}, "For 50% of it the workers wait for a processor"),
        ({"everyone": {"queued_s": 0.06, "throttled_s": 0.06}}, "the quotas of their control groups stop the workers"),
        ({"data": dict.fromkeys(range(4), 0.07)}, "Loading data takes most of a step: 70 ms"),
        ({"communicate_s": 0.3}, "Communication takes most of a step: 300 ms"),
        ({"communicate_s": 0.3, "everyone": {"sent_bytes": 2e7, "sending_s": 2.0}}, "A worker sends 10.0 MB/s."),
    ],
)
def test_without_a_slow_worker_the_bound_is_named(options: dict[str, Any], text: str) -> None:
    found = explained(**options)
    assert not found.suspects
    assert text in found.bound


def _fact(rank: int, at_s: float, where: str = "", meets: float = 0.0) -> FactsRecord:
    values = {"still_s": 40.0, "meets": meets} if where else {"steps": 9.0}
    return FactsRecord(rank=rank, iteration=9, at_s=at_s, values=values, where=where)


def test_a_worker_without_a_record_is_stopped_and_all_others_wait_for_it() -> None:
    facts = {
        rank: FactSums.of([_fact(rank, 90.0), _fact(rank, 120.0, "backward (train.py:7)", 1.0)]) for rank in (0, 2)
    }
    facts[1] = FactSums.of([_fact(1, 90.0)])
    silent = "rank 1 reports nothing, so it is stopped or has ended; ranks 0, 2 wait for other workers"
    assert judge("run", [], facts, {}).still == f"No step has ended for 40 s: {silent}."
    facts[1] = FactSums.of([_fact(1, 90.0), _fact(1, 119.0)])  # it has just ended a step
    assert judge("run", [], facts, {}).still == ""
