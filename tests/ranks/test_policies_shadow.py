"""Exchanges beside the training: nobody is held up, nothing is lost, and everybody ends."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from policy_runs import Run, everybodys, flat, idle, same
from session_parts import N
from session_parts import everybodys as all_of

from uneven.errors import PeerError, TrainingError
from uneven.testing.ranks import RankContext, ranks
from uneven_bench.inside import inside


def until(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


@ranks(2)
def test_nobody_waits_for_who_comes_late_and_who_is_early_serves(me: RankContext, tmp_path: str) -> None:
    """Rank 0 comes when rank 1 has taken all samples of the epoch, whose they then are: waiting would never end."""
    through = Path(tmp_path, "through")
    run = Run("shadow:load=1:ma:every=1")
    if me.rank == 0:
        until(through)
    seen = run.epoch()
    if me.rank == 1:
        assert run.agreement.clock == 9, "six samples at a time"
        assert run.agreement.ledger.dropped == 8, "the exchange after the first step is still under way"
        assert run.exchanges == []
        through.touch()
    shown = run.shown()
    assert (everybodys(shown) == shown).all()
    assert sorted(all_of(seen)) == list(range(N))
    if me.rank == 1:
        assert run.exchanges[0].late == 8
        assert (run.exchanges[0].gap, run.exchanges[0].samples, run.exchanges[0].moment) == (1, 6, "background")
    else:
        assert seen == []
    for _ in range(2):  # and on, each at its own pace; the end of the session lets the last one be met too
        run.epoch()
    run.session.close()
    assert flat(run.model).isfinite().all()


@ranks(2)
def test_a_worker_without_a_batch_takes_part_until_all_rest(me: RankContext, tmp_path: str) -> None:
    through = Path(tmp_path, "through")
    run = Run("shadow:load=1:ma:every=1")
    if me.rank == 0:
        until(through)
    seen = run.epoch()
    through.touch()
    run.session.close()  # without an evaluation before it, at which the workers would meet
    assert len(seen) == (N if me.rank == 1 else 0)


@pytest.mark.parametrize("sync", ["shadow:ma", "shadow:bmuf:momentum=0.5", "shadow:easgd:together=true"])
@ranks(3)
def test_beside_a_slow_worker_each_sample_comes_once(me: RankContext, sync: str, tmp_path: str) -> None:
    run = Run(sync)
    for epoch in range(3):
        seen: list[int] = []
        others = [Path(tmp_path, f"{epoch} {rank}") for rank in (1, 2)]
        for x, y, index in run.loader:
            seen += index.tolist()
            while me.rank == 0 and not all(one.exists() for one in others):
                time.sleep(0.01)  # until the others have used all that is left of the epoch
            run.step(x, y)
        Path(tmp_path, f"{epoch} {me.rank}").touch()
        run.shown()
        assert sorted(all_of(seen)) == list(range(N))
    run.session.close()


@ranks(2)
def test_torchs_default_type_may_differ_between_ranks(me: RankContext) -> None:
    run = Run("shadow:load=1:ma")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if me.rank == 1 else torch.float32)
    try:
        run.epoch()
        shown = run.shown()
        assert (everybodys(shown) == shown).all()
        run.session.close()
    finally:
        torch.set_default_dtype(before)


@ranks(2)
def test_a_state_that_is_taken_where_all_are_holds_what_nobody_has_trained_on(me: RankContext) -> None:
    for sync in ("shadow:ma", "shadow:bmuf:momentum=0.5"):
        run = Run(sync)
        seen = run.epoch(most=1 + me.rank)
        with run.session.evaluation_model():
            state = all_of([run.session.state_dict()])[0]
        run.session.close()
        again = Run(sync)
        again.session.load_state_dict(state)
        rest = again.epoch()
        assert sorted(all_of(seen + rest)) == list(range(N))
        assert sorted(all_of(again.epoch())) == list(range(N)), "and the epoch after it is whole"
        again.shown()
        again.session.close()


@ranks(2)
def test_workers_that_want_batches_of_different_least_size_leave_no_sample_out(me: RankContext) -> None:
    for sync in ("shadow:ma", "asp"):
        run = Run(sync, min_batch=4 if me.rank == 0 else 1)
        for _ in range(3):
            assert sorted(all_of(run.epoch())) == list(range(N)), sync
            run.shown()
        run.session.close()


def test_a_worker_that_is_alone_gets_no_batch_where_it_evaluates() -> None:
    run = Run("shadow:ma")
    run.epoch(most=1)
    with run.session.evaluation_model(), pytest.raises(TrainingError, match=r"inside session\.evaluation_model"):
        next(iter(run.loader))
    assert len(run.epoch()) == N
    run.session.close()


@ranks(3)
def test_what_replicas_hold_together_is_kept_and_the_centre_is_one(me: RankContext) -> None:
    delta = Run("shadow:load=1:ma:by-samples=false", make=idle)
    delta.differ()
    before = everybodys(flat(delta.model)).mean(0)
    delta.epoch()
    same(delta.shown(), before)
    delta.session.close()

    lerp = Run("shadow:write-back=lerp,alpha=0.5,load=1:ma:by-samples=false", make=idle)
    lerp.differ()
    apart = everybodys(flat(lerp.model)) - before
    lerp.epoch()
    same(lerp.shown(), before)
    halved = torch.log2((apart[0] / (everybodys(flat(lerp.model)) - before)[0]).abs())
    assert halved.median() >= 1, "each exchange goes half of the way"
    assert math.isclose(float(halved.median()), round(float(halved.median())), abs_tol=0.01)
    lerp.session.close()

    block = Run("shadow:alpha=0.5,load=1:bmuf:every=1,momentum=0.5")
    block.epoch()
    shown = block.shown()
    assert (everybodys(shown) == shown).all()
    assert not torch.equal(shown, flat(block.model)), "replicas are not the centre"
    block.session.close()


@ranks(2)
def test_who_is_gone_is_named_where_the_training_is(me: RankContext) -> None:
    run = Run("shadow:load=1:ma:every=1")
    run.epoch()
    run.shown()
    if me.rank == 1:
        inside(run.session).cut_parameters()  # as if it had ended: its connections are gone
    else:
        with pytest.raises(PeerError, match=r"the exchange of parameters during step \d+: rank 1 did not take part"):
            epochs(run)
    dist.barrier()  # it is alive until the other one has asked
    run.agreement._begun = me.rank != 1
    run.session.close()


def epochs(run: Run) -> None:
    while True:
        run.epoch()
