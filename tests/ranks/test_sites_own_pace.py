"""Sites at whose parameter servers workers go at their own pace, on real processes: geo:ssp."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from policy_runs import Run, everybodys, flat, momentum, same
from session_parts import N, X
from session_parts import everybodys as all_of
from test_served_run import union

from uneven.errors import CheckpointError, ConfigError
from uneven.policy.samples.order import epoch_order
from uneven.run.replicas.replica_sync import ReplicaSync
from uneven.run.replicas.server.locate import _made
from uneven.run.replicas.server.server_aggregator import SiteAggregator
from uneven.runtime.messages.keys import SERVER
from uneven.runtime.world import discover
from uneven.testing.ranks import RankContext, ranks
from uneven_bench.inside import inside

SITES = ("east", "west", "west", "east")


def site(run: Run) -> SiteAggregator:
    assert isinstance(run.agreement, ReplicaSync)
    assert isinstance(run.agreement.aggregator, SiteAggregator)
    return run.agreement.aggregator


def held(run: Run) -> torch.Tensor:
    """What this worker's site has moved and not sent; of who does not speak for it, nothing."""
    between = site(run)._home.between
    return torch.zeros_like(flat(run.model)) if between is None else torch.from_numpy(between.held.copy())


@ranks(4)
def test_where_all_is_sent_and_nobody_leads_it_is_bsp(me: RankContext) -> None:
    """Plain SGD in one process on the same batches comes to the same, also at a site of one."""
    for sites in (SITES, ("east", "west", "west", "south")):
        os.environ["UNEVEN_SITE"] = sites[me.rank]
        run = Run("geo:ssp:staleness=0,threshold=0", drop_last=True)
        for epoch in range(3):
            seen = run.epoch_in_rounds()
            assert sorted(all_of(seen)) == sorted(epoch_order(length=N, seed=0, epoch=epoch)[: N - N % X].tolist())
            shown = run.shown()
            same(shown, flat(union(epoch + 1)))
            assert torch.equal(run.shown(), shown)
            assert (everybodys(shown) == shown).all(), "the same model, bit by bit"
        run.session.close()


def leads(run: Run, rank: int, pause_s: float) -> list[list[int]]:
    """By how many finished steps this worker leads each other one when it begins each step of an epoch."""
    store, found = dist.distributed_c10d._get_default_store(), []
    for x, y, _index in run.loader:
        mine = run.agreement.clock
        found.append([mine - store.add(f"steps/{other}", 0) for other in range(4)])
        run.step(x, y)
        store.add(f"steps/{rank}", 1)  # before the others can hear of it
        time.sleep(pause_s)
    return found


@ranks(4)
def test_nobody_leads_by_more_than_the_bound_at_home_and_elsewhere(me: RankContext) -> None:
    """One worker is slower. The last batch of an epoch does not wait for who has found no more samples."""
    os.environ["UNEVEN_SITE"] = SITES[me.rank]
    home = [other for other in range(4) if SITES[other] == SITES[me.rank]]
    most = {other: 1 + (0 if other in home else 1) for other in range(4)}
    run = Run("geo:ssp:staleness=1,threshold=0.1,lead=1")
    for _ in range(6):
        for found in leads(run, me.rank, 0.006 if me.rank == 1 else 0.0)[:-1]:
            assert all(lead <= most[other] for other, lead in enumerate(found)), found
    shown = run.shown()
    now, unsent = everybodys(torch.from_numpy(site(run).copy.pulled())), everybodys(held(run))
    assert torch.equal(now[0], now[3]), "one copy in each site"
    assert torch.equal(now[1], now[2])
    assert unsent[0].abs().sum() > 0
    torch.testing.assert_close(now[0] - unsent[0], now[1] - unsent[1], rtol=0, atol=1e-6)
    torch.testing.assert_close(shown, now.mean(0), rtol=0, atol=1e-6)
    assert sum(all_of([run.exchanges[-1].gap > 0])) == 4
    lines = {one.line: one for one in inside(run.session).traffic.records(me.rank, 0, 0.0)}
    here, there = ("east", "west") if me.rank in (0, 3) else ("west", "east")
    assert (f"entries {here} to {there}" in lines) == (me.rank in (0, 1)), "inside a site: its replicas must be equal"
    run.session.close()


@ranks(2)
def test_a_checkpoint_is_the_mean_of_the_sites_and_every_sample_comes_once_over_both_runs(me: RankContext) -> None:
    os.environ["UNEVEN_SITE"] = f"site {me.rank}"
    first = Run("geo:ssp:staleness=1,threshold=0.2")
    seen = first.epoch(2)
    with pytest.raises(CheckpointError, match=r"save inside\s+session.evaluation_model"):
        first.session.state_dict()
    with first.session.evaluation_model():
        model = {key: value.clone() for key, value in first.model.state_dict().items()}
        state: Any = first.session.state_dict()
        shown = flat(first.model)
    first.session.close()
    torch.testing.assert_close(state["vectors"]["centre"], shown)
    lefts: list[Any] = [None, None]
    dist.all_gather_object(lefts, json.loads(state["loader"])["left"])
    assert lefts[0] == lefts[1]

    os.environ["UNEVEN_NODE"] = f"node{me.rank}"  # two machines, as far as anybody can tell
    second = Run("geo:ssp:staleness=1,threshold=0.2")
    second.model.load_state_dict(model)
    second.session.load_state_dict(state)
    torch.testing.assert_close(second.shown(), shown)
    assert sorted(all_of(seen + second.epoch())) == list(range(N))
    assert not torch.equal(second.shown(), shown)
    second.session.close()


@ranks(2)
def test_what_cannot_be_carried_is_refused_before_training(me: RankContext) -> None:
    os.environ["UNEVEN_SITE"] = f"site {me.rank}"
    with pytest.raises(ConfigError, match="is stable only up to"):
        Run("geo:ssp:lead=1", make=momentum)
    with pytest.raises(ConfigError, match="balance"):
        Run("geo:ssp", balance="lb-bsp")
    unused = Run("geo:ssp")
    unused.session.close()


def test_servers_of_the_launcher_are_refused_where_each_site_has_its_own(tmp_path: Path) -> None:
    (tmp_path / SERVER).mkdir()
    (tmp_path / SERVER / "shard-0.address").write_text("{}")
    world = discover({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "UNEVEN_RUN": str(tmp_path)})
    with pytest.raises(ConfigError, match="leave --servers out"):
        _made(world, 1.0, (0,), near=True, stays=True)


@ranks(1)
def test_alone_it_is_the_plain_loop(me: RankContext) -> None:
    run = Run("geo:ssp", drop_last=True)
    run.epoch()
    same(run.shown(), flat(union(1)))
    run.session.close()
