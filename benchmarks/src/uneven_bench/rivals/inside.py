"""Rivals that act inside an iteration, over the clusters of ``uneven bench rivals``.

Each has its best setting in hindsight: the micro-batch, whether it reads messages while it computes, or the number of
spares.
"""

import math
from collections.abc import Callable, Iterable

from uneven_bench.peers.accumulate.rule import accumulate
from uneven_bench.peers.backup.quorum import play as play_backup
from uneven_bench.peers.backup.quorum import samples_each
from uneven_bench.peers.flexrr.messages import pieces
from uneven_bench.peers.flexrr.virtual_time import play as play_flexrr
from uneven_bench.rivals.cases import ITERATIONS, SETTLING, RivalCase
from uneven_bench.rivals.loops import RivalOutcome, SettledTotals

MESSAGE_S = 0.0005  # seconds from one worker to another in one rack, Python on both ends included; our estimate
PIECES = (4, 8, 16)  # micro-batches of an even share


def best(outcomes: Iterable[RivalOutcome]) -> RivalOutcome:
    """Return the outcome with the least time for X samples."""
    return min(outcomes, key=lambda outcome: outcome.batch_s)


def flexrr(case: RivalCase) -> RivalOutcome:
    """Play even shares with work stealing by micro-batches among all workers."""
    return best(_flexrr(case, grain, attentive) for grain in _grains(case) for attentive in (False, True))


def accumulating(case: RivalCase) -> RivalOutcome:
    """Play micro-batches until X samples are in, hivemind-style."""
    return best(_accumulating(case, grain) for grain in _grains(case))


def backup(case: RivalCase) -> RivalOutcome:
    """Play redundant execution, with one to n / 4 spares."""
    return best(_backup(case, spares) for spares in range(1, max(1, case.workers // 4) + 1))


def _grains(case: RivalCase) -> list[int]:
    share = case.global_batch // case.workers
    return sorted({-(-share // count) for count in PIECES})


def _flexrr(case: RivalCase, grain: int, attentive: bool) -> RivalOutcome:
    n = case.workers
    cut = pieces(case.global_batch // n, grain)
    totals = SettledTotals(n)
    for k in range(ITERATIONS):
        by_rank = [{size: case.micro_s(k, i, size) for size in set(cut)} for i in range(n)]
        played = play_flexrr([len(cut)] * n, _seconds(by_rank, cut), message_s=MESSAGE_S, attentive=attentive)
        around_s = [case.fixed_s(k, i) + float(case.transfer_s[k, i]) for i in range(n)]
        took_s = max(end_s + more_s for end_s, more_s in zip(played.ends_s, around_s, strict=True))
        lost_s = math.fsum(played.busy_s) - math.fsum(
            by_rank[rank][cut[piece]] for row in played.done_by for piece, rank in enumerate(row)
        )
        totals.add(k, took_s, math.fsum(played.busy_s) - lost_s + math.fsum(around_s), max(lost_s, 0.0))
    return totals.outcome(f"grain {grain}{', attentive' if attentive else ''}")


def _seconds(by_rank: list[dict[int, float]], cut: tuple[int, ...]) -> Callable[[int, int, int], float]:
    return lambda rank, owner, piece: by_rank[rank][cut[piece]]


def _accumulating(case: RivalCase, grain: int) -> RivalOutcome:
    n, totals = case.workers, SettledTotals(case.workers)
    for k in range(ITERATIONS):
        micro_s = [case.micro_s(k, i, grain) for i in range(n)]
        one = accumulate(micro_s, grain, case.global_batch, notice_s=MESSAGE_S)
        around_s = [case.fixed_s(k, i) + float(case.transfer_s[k, i]) for i in range(n)]
        took_s = max(end_s + more_s for end_s, more_s in zip(one.ends_s, around_s, strict=True))
        busy_s = math.fsum(one.ends_s) + math.fsum(around_s)
        totals.add(k, took_s, busy_s, samples=sum(one.samples) / case.global_batch)
    return totals.outcome(f"grain {grain}")


def _backup(case: RivalCase, spares: int) -> RivalOutcome:
    each = samples_each(case.global_batch, case.workers, spares)

    def seconds(version: int, rank: int) -> float:
        return case.local_s(version, rank, each) + float(case.transfer_s[version, rank])

    # The settling time is played too, and subtracted.
    settling, whole = (play_backup(case.workers, spares, count, seconds) for count in (SETTLING, ITERATIONS))
    took_s = whole.ends_s[-1] - settling.ends_s[-1]
    total_s = took_s * case.workers
    counted_s = math.fsum(whole.counted_s) - math.fsum(settling.counted_s)
    waiting = (math.fsum(whole.waited_s) - math.fsum(settling.waited_s)) / total_s
    return RivalOutcome(
        iteration_s=took_s / (ITERATIONS - SETTLING),
        waiting=waiting,
        lost=max(0.0, 1.0 - waiting - counted_s / total_s),
        samples=each * (case.workers - spares) / case.global_batch,
        best=f"{spares} spare" + ("s" if spares > 1 else ""),
    )
