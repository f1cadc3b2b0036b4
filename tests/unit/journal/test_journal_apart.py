"""Workers that take steps of their own: each step counts when it ended, whatever its number."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from apart_runs import BATCH, ApartRun
from sample_runs import START_S

import uneven
from uneven.journal import Iteration, iterations, read, summarize
from uneven.journal.pure.metrics import Join, recorded_pace
from uneven.policy.core.records import MembershipRecord, Record, RunRecord, StepRecord
from uneven.policy.sync import MA, Pace, Shadow

RUN = ApartRun()


def records(run: ApartRun = RUN) -> list[Record]:
    return [*chain(*(run.records(rank) for rank in range(len(run.steps_s))))]


def _at_s(record: Record) -> float:
    return record.ended_at_s if isinstance(record, StepRecord) else getattr(record, "at_s", START_S)


def taken(pieces: list[Iteration]) -> list[int]:
    """Steps of each rank in all pieces."""
    return [sum(one.timings[rank].steps for one in pieces if rank in one.timings) for rank in range(3)]


def test_every_step_counts_when_it_ended() -> None:
    found = iterations(records())
    summary = summarize(found)
    assert taken(found) == RUN.counts == [240, 120, 30]
    assert summary.samples == BATCH * sum(RUN.counts)
    assert summary.samples_per_s == pytest.approx(RUN.samples_per_s)
    assert summary.iteration_s == pytest.approx(RUN.global_batch / RUN.samples_per_s)
    assert [one.iteration for one in found] == list(range(130))
    assert sum(one.duration_s for one in found) == pytest.approx(RUN.for_s)
    assert all(one.apart == RUN.global_batch for one in found)
    assert [worker.steps for worker in summary.workers] == RUN.counts
    assert [worker.step_s for worker in summary.workers] == pytest.approx(RUN.steps_s)
    speeds = [BATCH / (0.875 * step_s) for step_s in RUN.steps_s]
    assert [worker.speed_per_s for worker in summary.workers] == pytest.approx(speeds)
    assert summary.limit_s == pytest.approx(RUN.global_batch / sum(speeds))
    assert summary.fraction_of_limit == pytest.approx(RUN.samples_per_s / sum(speeds))


def test_where_nobody_waits_all_of_an_exchange_is_communication() -> None:
    summary = summarize(iterations(records()))
    assert summary.wait_share == 0.0
    assert summary.communicate_share == pytest.approx(0.125)


def test_where_some_wait_for_who_is_far_behind_the_shortest_exchange_is_communication() -> None:
    held = ApartRun(steps_s=(1.0, 1.0, 1.0), settings={"sync": "ssp:staleness=2"})
    changed = [
        replace(one, compute_s=0.5, exchange_s=0.375) if isinstance(one, StepRecord) and one.rank == 0 else one
        for one in records(held)
    ]
    fast, *others = summarize(iterations(changed)).workers
    assert (fast.wait_share, fast.communicate_share) == pytest.approx((0.25, 0.125))
    assert [(one.wait_share, one.communicate_share) for one in others] == [pytest.approx((0.0, 0.125))] * 2


@pytest.mark.parametrize(
    ("settings", "pace"),
    [
        ({"sync": "asp"}, Pace.OWN),
        ({"sync": "ssp:staleness=3"}, Pace.BOUNDED),
        ({"sync": "shadow:ma"}, Pace.OWN),
        ({"sync": "bsp"}, Pace.TOGETHER),
        ({"sync": "Mine(rate=2)", "pace": "own"}, Pace.OWN),
        ({"sync": "Mine(rate=2)"}, None),
        ({"sync": "bsp", "pace": "unheard of"}, None),
        ({}, None),
    ],
)
def test_the_journal_says_whom_workers_wait_for(settings: dict[str, str], pace: Pace | None) -> None:
    assert recorded_pace(settings) is pace


def test_a_run_writes_down_whom_its_workers_wait_for(tmp_path: Path) -> None:
    for name, sync in (("object", Shadow(MA())), ("word", "bsp")):
        with uneven.Session(sync=sync, balance="even", run_dir=tmp_path / name):
            pass
    said = [
        one.settings["pace"]
        for name in ("object", "word")
        for one in read(tmp_path / name).records()
        if isinstance(one, RunRecord)
    ]
    assert said == ["own", "together"]


def test_following_gives_the_same_pieces_whatever_comes_first() -> None:
    by_rank = {rank: RUN.records(rank) for rank in range(3)}
    join, found = Join(), []
    for tick in range(70):
        for rank, rows in by_rank.items():
            while rows and _at_s(rows[0]) <= START_S + tick - 4 * rank:  # the files of some are seen late
                join.add(rows.pop(0))
        found += join.take()
    assert len(found) > 120
    found += join.take(final=True)
    assert found == iterations(records())
    assert not join.rewound


def test_a_worker_that_is_silent_holds_nobody_up_for_long() -> None:
    join = Join()
    for rank in (0, 1):
        for record in RUN.records(rank):
            join.add(record)
    assert join.take()[-1].ended_at_s == pytest.approx(START_S + RUN.for_s - 10.0, abs=0.5)


def test_a_resumed_run_counts_what_was_saved_and_no_time_between() -> None:
    later_s = START_S + 3600
    # Rank 0 saved after 120 of its 240 steps, so after 30 s; everybody goes on from its number.
    again = {rank: [*RUN.records(rank), *RUN.records(rank, first=120, start_s=later_s)] for rank in range(3)}
    found = iterations(chain(*again.values()))
    assert taken(found) == [120 + 240, 60 + 120, 15 + 30]
    summary = summarize(found)
    assert summary.samples_per_s == pytest.approx(RUN.samples_per_s)
    assert sum(one.duration_s for one in found) == pytest.approx(90.0)
    assert [one.iteration for one in found] == sorted({one.iteration for one in found})


def test_going_back_behind_what_was_given_out_is_told() -> None:
    join = Join()
    for record in records():
        join.add(record)
    join.take()
    for record in RUN.records(0, first=10, start_s=START_S + 3600):
        join.add(record)
    assert join.rewound


def test_a_change_of_the_members_is_one_whatever_step_each_of_them_was_at() -> None:
    told = [
        MembershipRecord(
            rank=rank, iteration=3, at_s=START_S + 30.1 + rank / 100, generation=1, members=(0, 1), left=(2,),
            border=border,
        )
        for rank, border in ((0, 120), (1, 61))
    ]  # fmt: skip
    join = Join()
    for record in [*records(), *told]:
        join.add(record)
    found = join.take(final=True)
    (change,) = join.changes.all
    assert change.left == (2,)
    assert {one.members for one in found if one.ended_at_s < change.at_s} == {(0, 1, 2)}
    assert {one.members for one in found if one.ended_at_s > change.at_s} == {(0, 1)}
