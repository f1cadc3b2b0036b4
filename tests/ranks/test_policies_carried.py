"""What a real run makes of the policies: identities at their edges, and who meets whom, on real processes."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from policy_runs import Run, everybodys, flat, idle, momentum, same
from session_parts import Moving, N, Numbered, X
from session_parts import everybodys as all_of
from torch import nn

import uneven
from uneven.errors import ConfigError, PeerError, TrainingError
from uneven.testing.ranks import RankContext, ranks
from uneven_bench.inside import inside

UNEQUAL = "static:shares=4/3/3/2"
THREE = "static:shares=6/4/2"


def normed() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def trained(sync: str, **options: Any) -> torch.Tensor:
    """The model to evaluate after an epoch of five iterations."""
    run = Run(sync, **{"balance": THREE, **options})
    run.epoch()
    shown = run.shown()
    assert (everybodys(shown) == shown).all(), "the model to evaluate is the same everywhere, bit by bit"
    run.session.close()
    return shown


@ranks(3)
def test_policies_turn_into_each_other_at_their_edges(me: RankContext) -> None:
    """Unequal shares, a last part in which somebody has no sample at all; plain SGD where it matters."""
    os.environ["UNEVEN_SITE"] = "left" if me.rank < 2 else "right"
    bsp, local = trained("bsp"), trained("local:every=5")
    assert not torch.allclose(bsp, local, atol=1e-4), "five steps apart are not the same as together"
    same(trained("local:every=1", balance=Moving()), bsp)
    same(trained("shuffle:columns=3"), bsp)
    same(trained("hierarchical:every=1"), bsp)
    same(trained("bmuf:every=5,momentum=0,block-lr=1"), local)
    outer = trained("diloco:every=2,outer-momentum=0.5,outer-lr=0.7", make=momentum)
    same(trained("bmuf:every=2,momentum=0.5,block-lr=0.7,nesterov=true", make=momentum), outer)
    assert not torch.allclose(outer, local, atol=1e-3)


@ranks(4)
def test_groups_and_sites_meet_as_planned(me: RankContext) -> None:
    grid = Run("shuffle:ma:by-samples=false", make=idle)
    grid.differ()
    before = flat(grid.model)
    grid.epoch(3)  # the third exchange is owed when the loop is left: two have taken place
    same(flat(grid.model), everybodys(before).mean(0))
    assert [one.members for one in grid.exchanges] == [2, 2]
    assert [one.gap for one in grid.exchanges] == [1, 1]
    size = sum(one.numel() for one in grid.model.parameters())
    assert [one.sent_bytes for one in grid.exchanges] == [4 * (size + 2)] * 2, "a pair sends the vector once"
    assert grid.exchanges[0].distance > 0.4
    assert grid.exchanges[1].samples == X // 4
    grid.session.close()

    spring = Run("easgd:alpha=0.2,every=1,together=true", make=idle)
    start = spring.shown()
    spring.differ()
    held = everybodys(flat(spring.model)).sum(0) + start
    spring.epoch()
    centre = spring.shown()
    same(everybodys(flat(spring.model)).sum(0) + centre, held)
    assert (everybodys(centre) == centre).all(), "everybody keeps the same"
    same(centre, start + 0.2 * 4 * 1.5)  # α (n + 1) = 1: what is between centre and mean is gone at once
    spring.session.close()

    drawn = Run("shuffle:groups=random,size=2,seed=3", balance=Moving())
    seen = drawn.epoch()
    drawn.epoch()
    assert drawn.session.next_shares != (3, 3, 3, 3)
    assert len(drawn.exchanges) == 10
    assert sorted(all_of(seen)) == list(range(N)), "every sample once"
    same(drawn.shown(), everybodys(flat(drawn.model)).mean(0))
    drawn.session.close()

    os.environ["UNEVEN_SITE"] = "one" if me.rank in (0, 3) else "other"
    sites = Run("hierarchical:every=3", balance=Moving())
    sites.epoch()  # reports are read after the third step, and what was decided then is in force from the fourth
    sites.epoch(3)
    assert sites.session.next_shares != (3, 3, 3, 3)
    apart = everybodys(flat(sites.model))
    assert (apart[0] == apart[3]).all()
    assert (apart[1] == apart[2]).all()
    assert not torch.allclose(apart[0], apart[1])
    sites.session.close()


@ranks(4)
def test_batch_norm_goes_with_the_parameters_and_what_is_evaluated_comes_back(me: RankContext) -> None:
    run = Run("ma:every=2", UNEQUAL, model=normed, min_batch=2)
    layer = run.model[1]
    run.epoch(2)  # the exchange after the second step is owed until everybody is there again
    means = everybodys(layer.running_mean.clone())
    assert not torch.allclose(means[0], means[1])
    own = [one.clone() for one in (*run.model.parameters(), *run.model.buffers())]
    samples = torch.tensor([8.0, 6.0, 6.0, 4.0])
    with run.session.evaluation_model():
        same(layer.running_mean, (means * samples[:, None]).sum(0) / samples.sum())
        assert layer.num_batches_tracked == 2
    assert not torch.equal(flat(run.model), torch.cat([one.reshape(-1) for one in own[:6]])), "what was owed is kept"

    seen = run.epoch(1)
    assert len(seen) == X // 12 * (4, 3, 3, 2)[me.rank]
    kept = [one.clone() for one in (*run.model.parameters(), *run.model.buffers())]
    plain_mean = everybodys(flat(run.model)).mean(0)
    with run.session.evaluation_model():
        same(flat(run.model), plain_mean)
        with pytest.raises(TrainingError, match=r"inside session\.evaluation_model\(\)"):
            next(iter(run.loader))
    for one, before in zip((*run.model.parameters(), *run.model.buffers()), kept, strict=True):
        assert torch.equal(one, before), "bit by bit"
    run.session.close()


@ranks(2)
def test_what_is_evaluated_after_each_step_is_the_mean_of_replicas_that_have_made_it(me: RankContext) -> None:
    """Also after the first one and after an exchange, before which all were equal."""
    for sync in ("local:every=2", "shuffle"):
        run = Run(sync)
        for x, y, _ in run.loader:
            run.step(x, y)
            own = everybodys(flat(run.model))
            assert not torch.equal(own[0], own[1])
            same(run.shown(), own.mean(0))
        run.session.close()


@ranks(2)
def test_warm_up_is_bsp_then_the_loop_goes_apart(me: RankContext) -> None:
    """Balanced shares too: reports are read where the workers have met."""
    run, exact = Run("local:every=4,warmup=3", balance=Moving(), model=normed), []
    for count, (x, y, _) in enumerate(run.loader):
        run.step(x, y)
        exact.append(bool((everybodys(flat(run.model)) == flat(run.model)).all()))
        assert count < 3 or not exact[-1]
    assert exact[:3] == [True] * 3
    splits = set()
    for _ in range(6):
        for x, y, _ in run.loader:
            run.step(x, y)
            splits.add(run.session.shares)
    assert len(splits) > 2, "the split has moved"
    run.session.close()


@ranks(3)
def test_who_does_not_come_is_named_and_what_waits_for_all_is_refused(me: RankContext) -> None:
    waiting = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    with uneven.Session(sync="local", balance="even") as session, pytest.raises(ConfigError, match="1 is a SyncBatchN"):
        session.setup(waiting)

    run = Run("ma:every=2", make=momentum)
    run.epoch(1)
    if me.rank == 2:
        inside(run.session).cut_parameters()  # as if it had ended: its connections are gone
    else:
        with pytest.raises(PeerError, match="the exchange of parameters after step 2: rank 2 did not take part"):
            run.epoch(2)
    dist.barrier()  # it is alive until the others have asked
    run.session.close()


@ranks(2)
def test_an_evaluation_inside_of_the_evaluated_model_leaves_it_in_place(me: RankContext) -> None:
    run = Run("diloco:every=4")
    run.epoch(2)
    with run.session.evaluation_model():
        saved = run.session.state_dict()["agreement"]
        run.session.evaluate(lambda batch: {"samples": len(batch[0])}, Numbered(), 8)
        assert str(run.session.state_dict()["agreement"]) == str(saved)
        with pytest.raises(TrainingError, match=r"inside session\.evaluation_model\(\)"):
            next(iter(run.loader))
    run.session.close()
