"""The referee: absurd reports never get through, honest ones always do."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest

from uneven.policy.control.referee import Complaint, Referee
from uneven.policy.control.reporter import Report
from uneven.policy.control.table import ReportTable
from uneven.policy.core.views import Observation

MEMBERS = (0, 1, 2, 3)


def table(raw: Sequence[Observation | None]) -> ReportTable:
    """Reports as they arrive; a missing one is all NaN."""
    rows = []
    for seen in raw:
        if seen is None:
            rows.append([math.nan] * len(Report._fields))
            continue
        told = {name: getattr(seen, name, 0.0) for name in Report._fields}
        rows.append(list(Report(**told)))
    return ReportTable(rows)


def at(speed_per_s: float, iteration: int = 0) -> Observation:
    return Observation(iteration=iteration, samples=100, local_s=100 / speed_per_s, cpu=0.1, memory=0.2)


GOOD = (at(60), at(40), at(20), at(10))

ABSURD = {
    "missing": None,
    "zero": Observation(iteration=1, samples=0, local_s=0.0),
    "no time": Observation(iteration=1, samples=100, local_s=0.0),
    "NaN": Observation(iteration=1, samples=100, local_s=math.nan),
    "infinite": Observation(iteration=1, samples=100, local_s=math.inf),
    "negative time": Observation(iteration=1, samples=100, local_s=-1.0),
    "negative samples": Observation(iteration=1, samples=-5, local_s=1.0),
    "bad exchange": Observation(iteration=1, samples=100, local_s=1.0, exchange_s=math.nan),
    "too fast": at(40 * 1.1e6, 1),
    "too slow": at(20 / 1.1e6, 1),
}


@pytest.mark.parametrize("absurd", ABSURD.values(), ids=ABSURD.keys())
def test_the_last_good_report_serves_for_an_absurd_one(absurd: Observation | None) -> None:
    referee = Referee()
    assert referee.judge(MEMBERS, table(GOOD), iteration=0).observed == GOOD
    verdict = referee.judge(MEMBERS, table((at(61, 1), absurd, at(21, 1), at(11, 1))), iteration=1)
    assert verdict.observed == (at(61, 1), GOOD[1], at(21, 1), at(11, 1))
    assert verdict.fresh.tolist() == [True, False, True, True]
    (complaint,) = verdict.complaints
    assert (complaint.rank, complaint.iteration) == (1, 1)
    assert "iteration 0" in complaint.text
    assert "40 samples/s" in complaint.text


@pytest.mark.parametrize("absurd", ABSURD.values(), ids=ABSURD.keys())
def test_before_the_first_good_report_nothing_serves(absurd: Observation | None) -> None:
    verdict = Referee().judge(MEMBERS, table((*GOOD[:3], absurd)), iteration=0)
    assert verdict.observed == (*GOOD[:3], None)
    assert [c.rank for c in verdict.complaints] == [3]
    assert "nothing is known" in verdict.complaints[0].text


def test_a_complaint_says_what_was_wrong() -> None:
    referee = Referee()
    referee.judge((5,), table((at(10),)), iteration=0)
    assert referee.judge((5,), table((None,)), iteration=7).complaints == (
        Complaint(5, 7, "samples = nan; its report of iteration 0 (10 samples/s) serves"),
    )


def test_a_million_times_is_still_believed() -> None:
    verdict = Referee().judge((0, 1, 2), table((at(1.0), at(1.0), at(0.99e6))), iteration=0)
    assert verdict.complaints == ()


def test_one_absurd_report_spoils_nobody_elses() -> None:
    referee = Referee()
    verdict = referee.judge((0, 1, 2), table((at(10), at(1e12), at(30))), iteration=0)
    assert [c.rank for c in verdict.complaints] == [1]
    # Two workers: the past tells which one is absurd.
    referee = Referee()
    referee.judge((0, 1), table((at(10), at(20))), iteration=0)
    verdict = referee.judge((0, 1), table((at(11, 1), at(1e12, 1))), iteration=1)
    assert [c.rank for c in verdict.complaints] == [1]


def test_two_strangers_that_contradict_each_other_are_both_doubted() -> None:
    verdict = Referee().judge((0, 1), table((at(10), at(1e12))), iteration=0)
    assert [c.rank for c in verdict.complaints] == [0, 1]


def test_taking_part_without_samples_is_no_fault() -> None:
    referee = Referee()
    referee.judge(MEMBERS, table(GOOD), iteration=0)
    idle = Observation(iteration=1, samples=0, local_s=0.01)
    verdict = referee.judge(MEMBERS, table((*GOOD[:3], idle)), iteration=1)
    assert verdict.observed == GOOD
    assert verdict.complaints == ()


def test_the_same_report_again_is_no_news() -> None:
    referee = Referee()
    assert referee.judge(MEMBERS, table(GOOD), iteration=0).fresh.tolist() == [True] * 4
    assert referee.judge(MEMBERS, table(GOOD), iteration=1).fresh.tolist() == [False] * 4


def test_members_come_and_go() -> None:
    referee = Referee()
    referee.judge(MEMBERS, table(GOOD), iteration=0)
    verdict = referee.judge((1, 3, 4), table((None, at(12, 1), at(13, 1))), iteration=1)
    assert verdict.observed == (GOOD[1], at(12, 1), at(13, 1))


def test_the_state_survives_json() -> None:
    old, new = Referee(), Referee()
    old.judge(MEMBERS, table(GOOD), iteration=0)
    new.load_state_dict(json.loads(json.dumps(old.state_dict(), allow_nan=False)))
    nothing = (None,) * 4
    served = new.judge(MEMBERS, table(nothing), iteration=1).observed
    assert [seen.speed_per_s for seen in served if seen] == [60, 40, 20, 10]
    assert [seen.cpu for seen in served if seen] == [0.1] * 4


def test_a_row_of_a_table_is_an_observation_made_when_it_is_looked_at() -> None:
    verdict = Referee().judge(MEMBERS, table(GOOD), iteration=0)
    assert verdict.observed[1:3] == GOOD[1:3]
    assert len(verdict.observed) == 4
    assert verdict.speeds_per_s.tolist() == pytest.approx([60, 40, 20, 10])
