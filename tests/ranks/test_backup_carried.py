"""Backup workers in a session, on real processes: the first so many gradients of a step count, the late are dropped."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from policy_runs import Run, everybodys, flat, momentum, same
from session_parts import N, X
from session_parts import everybodys as all_of
from test_served_run import union

from uneven.errors import ConfigError
from uneven.policy.samples.order import epoch_order
from uneven.testing.ranks import RankContext, ranks


@ranks(2)
def test_without_spares_it_is_bsp(me: RankContext) -> None:
    strict = Run("backup:spares=0", drop_last=True)
    for epoch in range(3):
        seen = strict.epoch_in_rounds()
        assert sorted(all_of(seen)) == sorted(epoch_order(length=N, seed=0, epoch=epoch)[: N - N % X].tolist())
    same(strict.shown(), flat(union(3)))
    assert [(one.gap, one.late, one.dropped) for one in strict.exchanges] == [(1, 0, 0)] * 12
    strict.session.close()


@ranks(3)
def test_the_others_do_not_wait_for_a_straggler_whose_gradient_is_dropped(me: RankContext, tmp_path: str) -> None:
    run, slow = Run("backup:spares=1", make=momentum), 2
    through = [Path(tmp_path, f"{rank}") for rank in range(2)]
    seen = []
    for x, y, index in run.loader:
        if not seen:
            dist.barrier()  # each has one batch, the straggler no other
        seen += index.tolist()
        while me.rank == slow and not all(one.exists() for one in through):
            time.sleep(0.01)  # as long as the others need for all that is left of the epoch
        run.step(x, y)
    if me.rank != slow:
        through[me.rank].touch()
    copies = everybodys(run.shown())
    assert (copies == copies[0]).all(), "the same copy, bit by bit"
    assert sorted(all_of(seen)) == list(range(N)), "every sample is handed out once"
    told = [(one.dropped, one.late) for one in run.exchanges]
    assert told == ([(1, 6)] if me.rank == slow else [(0, 0)] * 6)

    assert len(run.epoch_in_rounds()) >= X // 3, "it goes on with the newest step"
    copies = everybodys(run.shown())
    assert (copies == copies[0]).all()
    run.session.close()


@ranks(2)
def test_who_has_a_nan_is_told_and_keeps_nobody_waiting(me: RankContext) -> None:
    run = Run("backup:spares=0", drop_last=True)
    for count, (x, y, _index) in enumerate(run.loader):
        run.step(x, y)
        if count == 1 and me.rank == 1:
            with torch.no_grad():
                next(run.model.parameters()).fill_(torch.nan)
        elif count == 2 and me.rank == 1:
            assert torch.isfinite(flat(run.model)).all(), "it goes on from the copy"
    copies = everybodys(run.shown())
    assert (copies == copies[0]).all()
    assert torch.isfinite(copies).all()
    assert len(run.exchanges) == 4 - me.rank
    run.session.close()


def test_shares_that_move_are_refused() -> None:
    with pytest.raises(ConfigError, match="never has all reports, which decide the shares; use balance = 'even'"):
        Run("backup", "lb-bsp")
