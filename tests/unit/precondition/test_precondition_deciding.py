"""Placement, schedule, packing, agreement, adaptive λ and kfac-pytorch's names: pure."""

from __future__ import annotations

import itertools
import math

import pytest

from uneven import KFAC
from uneven.errors import ConfigError
from uneven.policy.ownership.agreed_speeds import AgreedSpeeds, OwnWork, WorkerRow, agreed, better, told
from uneven.policy.ownership.placement import Item, gradient_workers, grid, place
from uneven.precondition.pure.packing import Layout, moves
from uneven.precondition.pure.schedule import AdaptiveDamping, RunningAverage, Schedule
from uneven.precondition.pure.sharing import Sharing


def test_the_grid_is_kaisas() -> None:
    found = grid(range(8), 2)
    assert found.columns == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert found.rows == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert grid(range(4), 4) == (((0, 1, 2, 3),), ((0,), (1,), (2,), (3,)))
    assert grid(range(4), 1) == (((0,), (1,), (2,), (3,)), ((0, 1, 2, 3),))


def cubes(*costs: float) -> list[Item]:
    """Items of one square whose n³ is each of these."""
    return [Item(f"L{number}", (cost ** (1 / 3),), 0.0) for number, cost in enumerate(costs, 1)]  # type: ignore[arg-type]


def test_the_worked_example_of_the_placement() -> None:
    found = place(cubes(10, 7, 6, 4, 3), grid(range(4), 2), rule="compute")
    assert [owners[0] for owners in found.owners] == [0, 1, 3, 2, 3]
    assert found.columns == ((0, 2), (1, 3), (1, 3), (0, 2), (1, 3))


def test_columns_are_loaded_to_four_thirds_of_the_best_at_most() -> None:
    for costs in itertools.product((1.0, 2.0, 3.0, 5.0), repeat=5):
        found = place(cubes(*costs), grid(range(2), 1), rule="compute")
        loads = [sum(c for c, owners in zip(costs, found.owners, strict=True) if owners[0] == rank) for rank in (0, 1)]
        best = min(
            max(sum(some), sum(costs) - sum(some)) for n in range(6) for some in itertools.combinations(costs, n)
        )
        assert max(loads) <= 4 / 3 * best + 1e-9


ITEMS = [Item(f"layer {number}", (200, 100), 2.4e7) for number in range(12)]


def test_owners_follow_speed() -> None:
    speeds = (0.6, 0.4, 0.2, 0.1)
    on = grid(range(4), 1)
    placed = place(ITEMS, on, speeds=speeds, period=10)
    times = [placed.load(ITEMS, rank, 10) / speed for rank, speed in enumerate(speeds)]
    alike = place(ITEMS, on, rule="compute")
    worst = max(alike.load(ITEMS, rank, 10) / speed for rank, speed in enumerate(speeds))
    assert max(times) < 0.5 * worst
    table = AgreedSpeeds(speeds, 0.0, 0.0, False)
    assert better(alike, placed, ITEMS, table, range(4), 10) is placed
    assert better(placed, placed, ITEMS, table, range(4), 10) is None
    assert better(placed, alike, ITEMS, table, range(4), 10) is None
    assert better(alike, placed, ITEMS, table._replace(other=1e12), range(4), 10) is None  # samples take longer


def test_who_is_busy_with_what_is_fixed_already_owns_nothing() -> None:
    speeds, on = (0.6, 0.4, 0.2, 0.1), grid(range(4), 1)
    total = sum(place(ITEMS, on).load(ITEMS, rank, 10) for rank in range(4))
    placed = place(ITEMS, on, speeds=speeds, period=10, fixed=total / 13)
    loads = [placed.load(ITEMS, rank, 10) for rank in range(4)]
    assert loads[3] == 0.0
    assert loads[0] > loads[1] > loads[2] > 0.0


def test_round_robin_parts_the_factors_of_a_layer_where_there_are_more_ranks_than_layers() -> None:
    two = ITEMS[:2]
    assert place(two, grid(range(4), 4), rule="round-robin", colocate=False).owners == ((0, 1), (2, 3))
    assert place(two, grid(range(4), 1), rule="round-robin").owners == ((0, 0), (1, 1))
    apart = place(ITEMS, grid(range(4), 4), rule="compute", colocate=False)
    assert any(a != b for a, b in apart.owners)


def test_refused_shares_periods_and_rules() -> None:
    with pytest.raises(ConfigError, match=r"share = 0.4 of 4 workers gives 1.6 .* give one of 1/4, 2/4, 4/4"):
        gradient_workers(0.4, 4)
    with pytest.raises(ConfigError, match="which must be an integer that divides 4"):
        gradient_workers(0.75, 4)
    assert [gradient_workers(f, 4) for f in (0.0001, 0.25, 0.5, 1.0)] == [1, 1, 2, 4]
    with pytest.raises(ConfigError, match=r"inv_update_steps = 10 at step 0: .* a multiple of the first"):
        Schedule(3, 10)
    with pytest.raises(ConfigError, match="place = 'size' is none of 'speed', 'compute'"):
        place(ITEMS, grid(range(2), 1), rule="size")


def test_periods_may_grow_and_refreshes_come_early_where_asked_for() -> None:
    growing = Schedule(lambda step: 1 if step < 6 else 10, lambda step: 3 if step < 6 else 100)
    assert [step for step in range(200) if growing.due(step).refresh] == [0, 3, 100]
    assert [step for step in range(30) if growing.due(step).factors] == [0, 1, 2, 3, 4, 5, 10, 20]
    early = Schedule(5, 10, early=True)
    assert [step for step in range(31) if early.due(step).refresh] == [0, 1, 3, 7, 10, 20, 30]
    assert all(early.due(step).factors for step in (0, 1, 3, 5, 7, 10))


@pytest.mark.parametrize("decay", [0.95, 0.3, 0.0, "exp", lambda step: 0.5 + 0.005 * step])
def test_sums_that_never_decay_are_the_running_average(decay: object) -> None:
    average = RunningAverage(decay)  # type: ignore[arg-type]
    plain = kept = 1.0
    sums = 0.0
    for step in range(60):
        alpha = decay(step) if callable(decay) else min(1 - 1 / (step + 1), 0.95) if decay == "exp" else decay
        plain = alpha * plain + (1 - alpha) * step  # type: ignore[operator]
        shrink, weight = average.step()
        sums = sums * shrink + weight * step
        if step % 25 == 24:
            kept, sums = average.kept * kept + average.fade * sums, 0.0
            average.folded()
    assert average.kept * kept + average.fade * sums == pytest.approx(plain)
    with pytest.raises(ConfigError, match=r"factor_decay = 1.0 at factor step 0 must be at least 0 and below 1"):
        RunningAverage(1.0)
    with pytest.raises(ConfigError, match="'exp'"):
        RunningAverage("log")


def test_pieces_of_one_rank_lie_together_and_move_to_new_owners() -> None:
    layout = Layout.of([2, 3, 4, 1], [1, 0, 1, 0], (0, 1, 2), extra=1)
    assert layout.spans == ((5, 7), (0, 3), (7, 11), (3, 4))
    assert layout.bounds == ((0, 5), (5, 12), (12, 13))
    assert (layout.size, layout.bound(1)) == (13, (5, 12))
    old, new = [0, 0, 1, 2], [0, 1, 0, 1]
    assert moves(old, new, 0) == ({1: [1]}, {1: [2]})
    assert moves(old, new, 1) == ({0: [2]}, {0: [1], 2: [3]})


def row(rate: float, pace: float, samples: float, other: float = math.nan, idle: float = 2.0) -> WorkerRow:
    return WorkerRow(rate, pace, other, idle, samples, 0.0)


def test_speed_is_what_a_processor_second_does_times_what_a_worker_gets_of_it() -> None:
    nothing = [row(math.nan, 1.0, 3), row(math.nan, 1.0, 1, idle=0.4)]
    assert agreed(nothing) == AgreedSpeeds((3.0, 1.0), 0.0, 0.0, False)  # at first, by shares
    assert agreed([row(60.0, 0.5, 3), row(math.nan, 0.25, 1)]) == AgreedSpeeds((30.0, 15.0), 0.0, 0.0, True)
    own = OwnWork()
    own.add(6.0, 0.1)
    own.steps = 2
    mine = told(own, local_s=2.0, local_cpu_s=0.2, exchange_cpu_s=0.05, idle=1.0, samples=8.0, opinion=0.0)
    assert mine == pytest.approx((60.0, 0.1, 0.2, 1.0, 8.0, 0.0))
    blind = told(OwnWork(), math.nan, math.nan, math.nan, idle=1.0, samples=8.0, opinion=0.0)
    assert math.isnan(blind.rate)
    assert blind.pace == 1.0


def test_what_is_fixed_is_told_from_what_grows_with_samples() -> None:
    rows = [row(100.0, pace, n, 0.02 + 0.003 * n) for pace, n in zip((0.6, 0.4, 0.1), (30, 20, 2), strict=True)]
    found = agreed(rows)
    assert found.fixed == pytest.approx(2.0)
    assert found.other == pytest.approx(100.0 * (0.06 + 0.003 * 52))
    assert agreed([one._replace(samples=17.0) for one in rows]).fixed == 0.0  # nobody can tell


def test_adaptive_damping_grows_where_steps_overshoot_and_shrinks_where_they_are_timid() -> None:
    one = AdaptiveDamping(0.1)
    one.seen(-1.0, 3.0)
    assert one.proposed() == pytest.approx(0.3)  # three times as far beyond the bottom as it came down
    one.seen(-1.0, 0.5)
    assert one.proposed() == 0.1
    one.seen(-1.0, -0.3)
    assert one.proposed() == pytest.approx(0.08)
    one.seen(math.nan, 1.0)
    assert one.proposed() == pytest.approx(10.0)
    one.seen(-1.0, 1e9)
    assert one.proposed() == pytest.approx(10.0)
    assert one.proposed() == 0.1  # nothing was seen


def test_enumerations_of_kfac_pytorch() -> None:
    class Enum:
        name = "MEM_OPT"

    assert Sharing(grad_worker_fraction="COMM_OPT").grad_worker_fraction == 1.0
    assert 0.0 < float(Sharing(grad_worker_fraction=Enum()).grad_worker_fraction) < 0.01  # type: ignore[arg-type]
    assert Sharing(assignment_strategy="MEMORY").assignment_strategy == "memory"
    KFAC(compute_method="INVERSE")
    with pytest.raises(ConfigError, match="compute_method = 'qr' is none of 'eigen', 'inverse'"):
        KFAC(compute_method="QR")
    with pytest.raises(ConfigError, match="grad_worker_fraction = 'all': give 'auto'"):
        Sharing(grad_worker_fraction="all")
