"""How far apart the slow loop's gathers are."""

import random

import pytest

from uneven.policy.balance import balancers
from uneven.policy.control.decider import Decider
from uneven.policy.control.report_interval import Gap, Spacing
from uneven.policy.control.reporter import Report
from uneven.policy.control.table import ReportTable
from uneven.policy.core.views import Limits

ITERATION_S = 0.1
SAMPLES = (60, 40, 20)


def report(iterations: int, samples: int, control_s: float, cost_s: float) -> Report:
    return Report(
        iteration=0, iterations=iterations, samples=iterations * samples, local_s=iterations * ITERATION_S,
        exchange_s=0.0, transfer_s=0.0, control_s=control_s, cost_s=cost_s, cpu=0.0, memory=0.0,
        predicted_per_s=1.0, doubt=0.0, urgent=0.0, no_early_reports=0.0, split=0.0,
    )  # fmt: skip


def spent(spacing: Spacing, cost_s: float, measuring_s: float, iterations: int, seed: int = 1) -> tuple[float, int]:
    """Share of the time spent, after a start that does not count, when costs vary as they do on a shared machine."""
    rng = random.Random(seed)
    done = gathers = 0
    counted_s = 0.0
    window, costs = 1, [cost_s] * len(SAMPLES)
    while done < iterations:
        measured = [window * measuring_s * rng.expovariate(1.0) for _ in SAMPLES]
        rows = tuple(
            report(window, SAMPLES[rank], measured[rank] + costs[rank], costs[rank]) for rank in range(len(SAMPLES))
        )
        if gathers > 5:
            counted_s += sum(row.samples * row.control_s / row.iterations for row in rows) / sum(SAMPLES)
            done += window
        window = spacing.gap(ReportTable(rows), changed=True).most
        # Most costs are alike; now and then the process is stopped in the middle of one.
        costs = [cost_s * (20.0 if rng.random() < 0.1 else rng.uniform(0.5, 1.5)) for _ in SAMPLES]
        gathers += 1
    return counted_s / (done * ITERATION_S), gathers


@pytest.mark.parametrize("cost_s", [1e-4, 1e-3, 5e-3])
@pytest.mark.parametrize("measuring_s", [1e-5, 2e-4])
def test_the_budget_is_met_over_time(cost_s: float, measuring_s: float) -> None:
    share, gathers = spent(Spacing(3, 0.005), cost_s, measuring_s, iterations=20_000)
    assert share <= 0.005 * 0.75
    assert gathers > 30  # it does not stay within the budget by falling silent


def test_a_burst_is_paid_back_and_then_forgotten() -> None:
    spacing = Spacing(3, 0.005)

    def gap(window: int, control_s: float) -> int:
        return spacing.gap(
            ReportTable([report(window, samples, control_s, 1e-3) for samples in SAMPLES]), changed=True
        ).most

    gaps = [1]
    for _ in range(20):
        gaps.append(gap(gaps[-1], 1e-3))
    assert gaps[-1] == 4  # 1 ms of 4 * 100 ms, of which 0.3 % may be spent
    after = [gap(gaps[-1], 50e-3)]
    assert after[0] == 17  # 1 ms, and the most that can be owed
    for _ in range(5):
        after.append(gap(after[-1], 1e-3))
    assert after[-1] == 4


def test_the_start_does_not_mind_the_budget() -> None:
    spacing = Spacing(3, 0.005)
    dear = tuple(report(1, samples, 0.1, 0.1) for samples in SAMPLES)
    assert [spacing.gap(ReportTable(dear), changed=True) for _ in range(4)] == [(1, 1, 1)] * 4
    assert spacing.gap(ReportTable(dear), changed=True).least > 1


def idle(spacing: Spacing, gathers: int = 1, **values: float) -> int:
    """After so many reports that change nothing and owe nothing: how much rarer than possible the next one is."""
    rows = tuple(report(1, samples, 0.3e-3, 1e-3)._replace(**values) for samples in SAMPLES)
    gap = [spacing.gap(ReportTable(rows), changed=False) for _ in range(gathers)][-1]
    return gap.most // gap.least


@pytest.mark.parametrize(("no_early_reports", "times"), [(0.0, 32), (1.0, 8)])
def test_while_nothing_changes_gathers_are_rarer_where_somebody_could_call(no_early_reports: float, times: int) -> None:
    assert idle(Spacing(3, 0.005), 20, no_early_reports=no_early_reports) == times


def test_a_call_to_no_effect_does_not_bring_more_gathers_but_where_none_can_be_heard_it_does() -> None:
    spacing = Spacing(3, 0.005)
    before = idle(spacing, 8)
    assert idle(spacing, urgent=1.0) == before
    assert idle(spacing, urgent=1.0, no_early_reports=1.0) == 1


def after(spacing: Spacing, cost_s: float, *changes: bool) -> list[Gap]:
    """The gaps after reports of which the first one tells of a sudden change; which of them change the split."""
    for _ in range(8):
        spacing.gap(ReportTable([report(1, samples, 5e-3, cost_s) for samples in SAMPLES]), changed=False)
    rows = ReportTable([report(1, samples, 5e-3, cost_s) for samples in SAMPLES])
    return [spacing.gap(rows, changed, sudden=k == 0) for k, changed in enumerate(changes)]


def test_after_a_change_reports_come_at_once_until_the_split_is_found() -> None:
    gaps = after(Spacing(3, 0.005), 1e-3, True, True, True, True)
    assert gaps[:3] == [(1, 1, 1)] * 3
    assert gaps[3].least == 4
    assert gaps[3].most > 4
    assert [gap.least for gap in after(Spacing(3, 0.005), 1e-3, True, False, True)] == [1, 4, 4]
    assert [gap.least for gap in after(Spacing(3, 0.005), 1e-3, False, True)] == [4, 4]


def test_not_where_a_report_costs_more_than_a_wrong_split_may_lose() -> None:
    assert after(Spacing(3, 0.005), 6e-3, True)[0].least > 1


@pytest.mark.parametrize(("cost_s", "waits"), [(1e-3, False), (5e-3, False), (6e-3, True)])
def test_who_is_far_off_waits_for_the_price_where_a_report_is_dear(cost_s: float, waits: bool) -> None:
    (gap,) = after(Spacing(3, 0.005), cost_s, False)
    assert gap.far == (gap.least if waits else 1)
    assert gap.least > 1


def test_what_is_called_for_does_not_wait_for_what_measuring_owes() -> None:
    (gap,) = after(Spacing(3, 0.005), 1e-3, False)
    assert gap.least == 4
    assert gap.most > 32 * 4


@pytest.mark.parametrize(("least", "samples", "gap"), [(1, 1, 40), (1, 2, 4), (0, 1, 4)])
def test_whom_all_wait_for_counts_in_full_where_it_has_no_sample_to_hand_over(
    least: int, samples: int, gap: int
) -> None:
    spacing = Spacing(3, 0.005, (least,) * 3)
    slowest = report(1, samples, 10e-3, 12e-3)._replace(local_s=ITERATION_S)
    others = [report(1, size, 5e-3, 1e-3)._replace(local_s=0.7 * ITERATION_S) for size in (160, 90)]
    for _ in range(8):
        found = spacing.gap(ReportTable([*others, slowest]), changed=False)
    assert found.least == pytest.approx(gap, abs=2)


@pytest.mark.parametrize("least", [1, 8])
def test_a_decider_knows_who_has_no_sample_to_hand_over(least: int) -> None:
    limits = Limits(lower=(least,) * 2, upper=(64,) * 2)
    one = Decider(
        balancers.resolve("proportional:predictor=last"), (0, 1), limits, global_batch=64, lookahead=0, budget=0.005
    )
    for iteration in range(12):
        rows = [
            report(1, share, 0.0, cost_s)._replace(
                local_s=local_s, predicted_per_s=speed, split=one.fingerprint(), iteration=iteration
            )
            for share, speed, cost_s, local_s in zip(
                one.newest, (100.0, 1.0), (1e-3, 12e-3), (0.08, ITERATION_S), strict=True
            )
        ]
        found = one.decide(iteration, iteration, ReportTable(rows))
    assert one.newest[1] == least
    assert found.soonest - 11 == pytest.approx(40, abs=2), "12 ms of 100, of which 0.3 % may be spent; by samples 9"
