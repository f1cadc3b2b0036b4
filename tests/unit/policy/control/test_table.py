"""Reports that are as usual are taken together; what comes of that is what would come of each by itself."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from uneven.policy.control.referee import Referee
from uneven.policy.control.report_interval import Spacing
from uneven.policy.control.reporter import Report
from uneven.policy.control.table import ReportTable

WORKERS = 3
MEMBERS = tuple(range(WORKERS))


class Scrutinised(ReportTable):
    """Where every report is looked at by itself."""

    @property
    def plain(self) -> bool:  # type: ignore[override]
        return False


usual = st.floats(1e-3, 1e3)
odd = st.sampled_from([0.0, -1.0, 1e-300, 1e300, math.inf, -math.inf, math.nan, 5e-7, 3e7])


def field(name: str) -> st.SearchStrategy[float]:
    if name in ("iteration", "iterations", "samples"):
        return st.integers(1, 400).map(float)
    if name == "local_s":  # as sound as any, but not to be believed beside the others
        return usual | st.sampled_from([1e-9, 1e9])
    return usual


@st.composite
def rows(draw: st.DrawFn) -> list[list[float]]:
    found = [[draw(field(name)) for name in Report._fields] for _ in MEMBERS]
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        found[draw(st.integers(0, WORKERS - 1))][draw(st.integers(0, len(Report._fields) - 1))] = draw(odd)
    return found


@given(st.lists(rows(), min_size=1, max_size=4))
def test_what_is_judged_together_is_judged_the_same(rounds: list[list[list[float]]]) -> None:
    quick, thorough = Referee(), Referee()
    with np.errstate(over="ignore", invalid="ignore"):
        for number, each in enumerate(rounds):
            one = quick.judge(MEMBERS, ReportTable(each), iteration=number)
            other = thorough.judge(MEMBERS, Scrutinised(each), iteration=number)
            assert one.complaints == other.complaints
            np.testing.assert_equal(tuple(one.observed), tuple(other.observed))  # for which NaN is NaN
            assert one.fresh.tolist() == other.fresh.tolist()
            np.testing.assert_array_equal(one.speeds_per_s, other.speeds_per_s)
            np.testing.assert_equal(quick.state_dict(), thorough.state_dict())


@given(st.lists(rows(), min_size=1, max_size=8))
def test_so_are_the_gap_to_the_next_and_what_is_hidden(rounds: list[list[list[float]]]) -> None:
    quick, thorough = Spacing(WORKERS, 0.005), Spacing(WORKERS, 0.005)
    with np.errstate(over="ignore", invalid="ignore"):
        for each in rounds:
            one, other = ReportTable(each), Scrutinised(each)
            np.testing.assert_equal((one.hidden_s(),), (other.hidden_s(),))
            assert one.believable().tolist() == other.believable().tolist()
            if math.isfinite(float(one.column("cost_s").sum() + one.column("samples").sum())):
                assert quick.gap(one, changed=True) == thorough.gap(other, changed=True)


def test_plain_is_what_is_measured_and_sound() -> None:
    good = Report(
        iteration=4, iterations=2, samples=64, local_s=0.1, exchange_s=0.0, transfer_s=0.0, control_s=0.0, cost_s=0.0,
        cpu=math.nan, memory=math.nan, predicted_per_s=math.nan, doubt=math.nan, urgent=0, no_early_reports=0, split=3,
    )  # fmt: skip
    assert ReportTable([good, good]).plain
    assert not ReportTable([]).plain
    for bad in ({"local_s": 0.0}, {"samples": 0}, {"iterations": 0}, {"exchange_s": -1e-9}, {"cost_s": math.nan},
                {"transfer_s": math.inf}, {"iteration": math.nan}):  # fmt: skip
        assert not ReportTable([good, good._replace(**bad)]).plain, bad
