"""hivemind-style accumulation and redundant execution: arithmetic and virtual time."""

from __future__ import annotations

import pytest

from uneven.errors import ConfigError
from uneven_bench.peers.accumulate.rule import accumulate
from uneven_bench.peers.backup.quorum import GradientQuorum, GradientVerdict, play, samples_each


def test_faster_workers_take_more_until_the_batch_is_in() -> None:
    one = accumulate([1.0, 1.0, 2.0], grain=4, total=40)
    # Ends at 1, 1, 2, 2, 2, 3, 3, 4, 4, 4: the tenth micro-batch is in after 4 s.
    assert one.enough_s == 4.0
    assert one.samples == (16, 16, 8)
    assert one.ends_s == (4.0, 4.0, 4.0)


def test_what_is_in_hand_still_counts_so_there_is_too_much() -> None:
    one = accumulate([1.0, 1.5], grain=8, total=32)
    assert one.enough_s == 3.0
    assert one.samples == (24, 16)  # 40 for 32: ends at 1, 1.5, 2, 3, 3
    assert accumulate([1.0, 1.5], grain=1, total=32).samples == (20, 13)
    late = accumulate([1.0, 1.5], grain=8, total=32, notice_s=0.1)
    assert late.samples == (32, 24)
    assert late.ends_s == (4.0, 4.5)


def test_a_very_slow_worker_holds_all_up_for_one_micro_batch() -> None:
    assert accumulate([1.0, 100.0], grain=1, total=10).ends_s == (10.0, 100.0)


@pytest.mark.parametrize(("micro_batch_s", "grain"), [([], 1), ([1.0], 0), ([0.0], 1), ([float("nan")], 1)])
def test_accumulation_that_makes_no_sense_is_refused(micro_batch_s: list[float], grain: int) -> None:
    with pytest.raises(ConfigError, match="must be positive"):
        accumulate(micro_batch_s, grain, 10)


def test_the_first_gradients_make_the_update_and_the_late_are_dropped() -> None:
    quorum = GradientQuorum(3, 1)
    assert quorum.arrive(2, 0) == GradientVerdict(counts=True)
    assert quorum.arrive(0, 0) == GradientVerdict(counts=True, complete=(2, 0))
    assert quorum.arrive(1, 0) == GradientVerdict(counts=False)
    assert (quorum.version, quorum.dropped) == (1, [0, 1, 0])
    assert quorum.arrive(1, 1).counts
    with pytest.raises(ConfigError, match="rank 1 sends version 1"):
        quorum.arrive(1, 1)
    with pytest.raises(ConfigError, match="rank 0 sends version 2"):
        quorum.arrive(0, 2)


def test_shares_are_larger_because_the_spares_do_not_count() -> None:
    assert samples_each(256, 4, 1) == 86
    with pytest.raises(ConfigError, match="at least one"):
        samples_each(256, 4, 4)


def test_without_spares_it_is_bsp() -> None:
    run = play(3, 0, 5, lambda version, rank: 1.0 + rank)
    assert run.ends_s == (3.0, 6.0, 9.0, 12.0, 15.0)
    assert run.dropped == (0, 0, 0)
    assert run.waited_s == (10.0, 5.0, 0.0)


def test_the_slowest_is_not_waited_for_and_its_work_is_lost() -> None:
    run = play(3, 1, 6, lambda version, rank: (1.0, 1.0, 2.5)[rank])
    assert run.ends_s == (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    assert run.dropped == (0, 0, 2)  # at 2.5 s and at 5 s
    assert run.counted_s == (6.0, 6.0, 0.0)


def test_a_late_worker_goes_on_with_the_newest_version() -> None:
    # Slow in version 0 only: dropped at 2.5, at work on version 2 until 3.5, in time for nothing but its own pace.
    run = play(3, 1, 4, lambda version, rank: 2.5 if (version, rank) == (0, 2) else 1.0)
    assert run.dropped[2] >= 1
    assert run.ends_s[:2] == (1.0, 2.0)
