"""The method for GPUs. Acceptance tests 6 and 7 of the LB-BSP specification."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence

import pytest

from uneven.errors import ConfigError
from uneven.policy.balance import Numerical
from uneven.policy.core.actions import Split
from uneven.policy.core.views import BalanceView, Limits, Observation
from uneven_bench.balancers.bench import loop
from uneven_bench.balancers.devices import CASES, Device, DeviceCase, slowest_s
from uneven_bench.balancers.earliest import earliest

Seconds = Callable[[int, int], float]
"""Place and samples → seconds of an iteration."""


def view(shares: Sequence[int], seconds: Seconds, iteration: int, iterations: int = 2, upper: int = 0) -> BalanceView:
    n, total = len(shares), sum(shares)
    return BalanceView(
        iteration=iteration,
        global_batch=total,
        members=tuple(range(n)),
        shares=tuple(shares),
        observed=tuple(
            Observation(
                iteration=iteration, samples=x * iterations, local_s=iterations * seconds(i, x), iterations=iterations
            )
            for i, x in enumerate(shares)
        ),
        predicted_per_s=(1.0,) * n,
        limits=Limits.uniform(n, total, upper=upper or None),
    )


def play(balancer: Numerical, shares: Sequence[int], seconds: Seconds, rounds: int, start: int = 0) -> list[Split]:
    """Reports of two iterations, one after the other, each split in force at once."""
    splits = []
    for k in range(start, start + rounds):
        splits.append(balancer.split(view(shares, seconds, 2 * k)))
        shares = splits[-1].shares
    return splits


def linear(*per_sample_s: float) -> Seconds:
    return lambda i, x: per_sample_s[i] * x


def moves(splits: Sequence[Split]) -> list[str]:
    return [split.reason for split in splits if "samples from" in split.reason]


# --- the procedure ------------------------------------------------------------------------------------------


def test_it_converges_halves_on_reversal_and_settles_on_the_best() -> None:
    case = linear(0.001, 0.002)
    splits = play(Numerical(step=0.2), (120, 120), case, 100)
    told = moves(splits)
    assert told[0] == "numerical, fast approach: 24 samples from rank 1 to rank 0"
    sizes = [int(words.split(": ")[1].split()[0]) for words in told]
    assert sizes == sorted(sizes, reverse=True)
    assert any("fine-tune" in words for words in told)
    shares = splits[-1].shares
    assert abs(shares[0] - 160) <= 2
    assert sum(shares) == 240


def test_the_phases_can_be_read_off_the_reasons() -> None:
    splits = play(Numerical(step=0.2, rest=0.0), (60, 60), linear(0.001, 0.00217), 120)
    phases = [split.reason.removeprefix("numerical, ").split(":")[0] for split in splits]
    assert list(dict.fromkeys(phases)) == ["fast approach", "fine-tune", "settled"]


def test_a_window_grows_when_the_step_shrinks_and_counts_iterations() -> None:
    splits = play(Numerical(step=0.4), (100, 100), linear(0.001, 0.0012), 40)
    assert "watching, 2 of 5 iterations" in splits[0].reason
    moved = next(k for k, split in enumerate(splits) if "samples from" in split.reason)
    assert moved == 2, "three reports of two iterations are six"
    assert "watching, 0 of 5 iterations" in splits[3].reason, "the first report after a move is dropped"
    assert any("of 10 iterations" in split.reason for split in splits)


def test_one_random_delay_in_a_window_moves_nothing() -> None:
    balancer, shares = Numerical(), (64, 64, 64, 64)
    for k in range(60):
        late = k % 3
        split = balancer.split(view(shares, lambda i, x, late=late: 0.001 * x * (9.0 if i == late else 1.0), 2 * k))
        assert split.shares == shares


def test_a_gap_within_the_dead_zone_is_left_alone() -> None:
    splits = play(Numerical(), (100, 100), linear(0.001, 0.00102), 30)
    assert {split.shares for split in splits} == {(100, 100)}
    assert any("nothing to gain" in split.reason for split in splits)


def test_a_lasting_change_starts_it_again_after_two_windows() -> None:
    balancer = Numerical(step=0.2)
    settled = play(balancer, (120, 120), linear(0.001, 0.002), 100)[-1]
    assert "fine-tune" in settled.reason or "settled" in settled.reason
    after = play(balancer, settled.shares, linear(0.002, 0.002), 150, start=100)
    reasons = [split.reason for split in after]
    restart = next(place for place, words in enumerate(reasons) if "restart" in words)
    assert "in two windows in a row" in reasons[restart]
    assert reasons[restart].startswith("numerical, fast approach")
    assert abs(after[-1].shares[0] - 120) <= 4


def test_a_single_wide_window_is_no_restart() -> None:
    balancer = Numerical(step=0.2)
    settled = play(balancer, (120, 120), linear(0.001, 0.002), 100)[-1].shares
    burst = play(balancer, settled, linear(0.002, 0.002), 12, start=100)
    calm = play(balancer, burst[-1].shares, linear(0.001, 0.002), 60, start=112)
    assert not any("restart" in split.reason for split in burst + calm)


def test_who_can_move_neither_way_asks_for_no_restart() -> None:
    """Else a worker at its memory limit, far faster than the others, would restart it for ever."""
    balancer = Numerical(step=0.2, most=(30, 300, 300))
    splits = play(balancer, (30, 100, 110), linear(0.0001, 0.001, 0.0011), 150)
    assert not any("restart" in split.reason for split in splits)
    assert splits[-1].shares[0] == 30


def test_the_bandwidth_cut_is_repaired() -> None:
    """Four unequal cards; at iteration 150 the second one's link has half of its bandwidth left."""
    case = next(case for case in CASES if case.name == "bandwidth cut")
    told: list[tuple[int, tuple[int, ...], str]] = []
    loop(case, "numerical", 0, lambda *row: told.append(row))
    before, after = told[149][1], told[-1][1]
    assert after[1] < before[1] - 8, "the samples of the one that is cut go elsewhere"
    best_s = slowest_s(case.at(399), earliest([one.seconds for one in case.at(399)], case.global_batch, case.limits))
    assert best_s / slowest_s(case.at(399), after) > 0.93
    assert slowest_s(case.at(399), before) > 1.1 * slowest_s(case.at(399), after)
    phases = [words.split(":")[0] for k, _, words in told if k < 150]
    assert "numerical, fine-tune" in phases


def test_pairs_move_together() -> None:
    split = play(Numerical(step=0.1, pairs=2), (100,) * 4, linear(0.001, 0.002, 0.003, 0.004), 3)[-1]
    assert split.shares == (110, 110, 90, 90)
    assert "from rank 3 to rank 0 and 1 more pairs" in split.reason


# --- bounds -------------------------------------------------------------------------------------------------


def test_nobody_is_drained_below_saturation() -> None:
    """Acceptance test 7: below x_s fewer samples gain nothing, however late the worker is."""
    floor = [0.5, 0.01, 0.01]
    splits = play(Numerical(saturation=(40, 1, 1)), (60, 60, 60), lambda i, x: max(floor[i], 0.0001 * x), 80)
    assert min(split.shares[0] for split in splits) == 40
    assert splits[-1].shares[0] == 40


def test_the_memory_limit_holds_from_the_first_split_on() -> None:
    balancer = Numerical(most=(70, 500, 500))
    splits = play(balancer, (100, 100, 100), linear(0.0001, 0.001, 0.001), 60)
    assert splits[0].shares[0] <= 70
    assert max(split.shares[0] for split in splits) == 70
    assert all(sum(split.shares) == 300 for split in splits)


def test_a_full_memory_takes_no_more() -> None:
    balancer, shares = Numerical(), (100, 100, 100)
    for k in range(40):
        seen = view(shares, linear(0.0005, 0.001, 0.002), 2 * k)
        full = (seen.observed[0]._replace(memory=0.95), *seen.observed[1:])  # type: ignore[type-var]
        shares = balancer.split(dataclasses.replace(seen, observed=full)).shares  # type: ignore[assignment]
    assert shares[0] == 100
    assert shares[1] > 100 > shares[2]


def test_memories_that_cannot_hold_the_batch_are_refused() -> None:
    with pytest.raises(ConfigError, match="less than the global batch"):
        Numerical(most=(10, 10)).split(view((50, 50), linear(1.0, 1.0), 0))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"step": 0.0}, "step"),
        ({"rest": 0.2, "restart": 0.1}, "restart"),
        ({"window": 50}, "longest"),
        ({"pairs": 0}, "pairs"),
        ({"most": (4, 0)}, "numerical: most = 0"),
        ({"saturation": (1.5,)}, "saturation"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Numerical(**options)  # type: ignore[arg-type]


# --- reports ------------------------------------------------------------------------------------------------


def test_communication_counts_and_waiting_does_not() -> None:
    balancer, shares = Numerical(step=0.1), (100, 100)
    for k in range(3):
        seen = tuple(
            Observation(iteration=k, samples=200, iterations=2, local_s=0.2, exchange_s=0.3, transfer_s=transfer_s)
            for transfer_s in (0.0, 0.2)
        )
        split = balancer.split(dataclasses.replace(view(shares, linear(1.0, 1.0), k), observed=seen))
    assert split.shares == (110, 90)


def test_reports_of_the_old_size_count_for_nothing() -> None:
    """A split is in force some iterations after it was decided; until then reports are of the one before."""
    balancer = Numerical(step=0.1)
    moved = play(balancer, (100, 100), linear(0.001, 0.002), 3)[-1].shares
    assert moved == (110, 90)
    for k in range(3, 9):
        late = view((100, 100), linear(0.001, 0.002), 2 * k)
        split = balancer.split(dataclasses.replace(late, shares=moved))
        assert split.reason == "numerical, fast approach: watching, 0 of 5 iterations"


def test_the_same_report_seen_twice_counts_once() -> None:
    balancer = Numerical()
    for _ in range(20):
        split = balancer.split(view((100, 100), linear(0.001, 0.002), 0))
    assert split.shares == (100, 100)


def test_its_state_goes_through_json_in_any_phase() -> None:
    seconds = linear(0.001, 0.0015, 0.0031)
    old, shares = Numerical(rest=0.001), (100, 100, 100)
    for k in range(90):
        new = Numerical(rest=0.001)
        new.load_state_dict(json.loads(json.dumps(old.state_dict(), allow_nan=False)))
        seen = view(shares, lambda i, x, k=k: seconds(i, x) * (1 + 0.1 * math.sin(7.0 * i + k)), 2 * k)
        split = old.split(seen)
        assert new.split(seen) == split
        shares = split.shares  # type: ignore[assignment]


def test_a_memory_limit_of_the_run_holds_in_a_noisy_loop() -> None:
    small = DeviceCase(
        name="", about="", global_batch=300, noise=0.2,
        devices=(Device(per_sample_s=0.0001, most=120), Device(per_sample_s=0.001), Device(per_sample_s=0.001)),
    )  # fmt: skip
    told: list[tuple[int, ...]] = []
    loop(small, "numerical:pairs=2", 1, lambda k, shares, reason: told.append(shares))
    assert max(shares[0] for shares in told) == 120
