"""Sites that send each other picked entries, on real processes: what comes of it is what the algebra says."""

from __future__ import annotations

import gc
import io
import os
from contextlib import redirect_stderr

import pytest
import torch
from policy_runs import Make, Run, everybodys, flat, momentum, plain, same
from session_parts import Moving
from torch import nn

from uneven.errors import CheckpointError, ConfigError, TrainingError
from uneven.testing.ranks import RankContext, ranks
from uneven_bench.inside import inside


def trained(sync: str, epochs: int = 2, make: Make = momentum) -> torch.Tensor:
    run = Run(sync, balance=Moving(), make=make)
    for _ in range(epochs):
        run.epoch()
    shown = run.shown()
    run.session.close()
    return shown


@ranks(4)
def test_where_all_is_sent_it_is_bsp_and_else_a_site_is_one_replica(me: RankContext) -> None:
    """Unequal shares that move after every report, a small last batch, momentum, two sites of two workers."""
    os.environ["UNEVEN_SITE"] = "east" if me.rank in (0, 3) else "west"
    bsp = trained("bsp")
    same(trained("geo:bsp:threshold=0"), bsp)
    same(trained("topk:density=1", make=plain), trained("bsp", make=plain))
    blocks = trained("hierarchical:every=3", make=plain)
    same(trained("sparse-local:every=3,density=1,bits=32", make=plain), blocks)

    run = Run("geo:bsp:threshold=0.3", balance=Moving(), make=momentum)
    run.epoch(4)
    replicas = everybodys(flat(run.model))
    assert torch.equal(replicas[0], replicas[3])
    assert torch.equal(replicas[1], replicas[2])
    assert not torch.allclose(replicas[0], replicas[1], atol=1e-4)
    speaks = me.rank in (0, 1)
    assert len(run.exchanges) == 3, "that of the last step is owed"
    assert all((0 < one.picked < 1) == speaks and (one.distance > 0) == speaks for one in run.exchanges)
    lines = {one.line: one for one in inside(run.session).traffic.records(me.rank, 0, 0.0)}
    here, there = ("east", "west") if me.rank in (0, 3) else ("west", "east")
    across = lines[f"entries {here} to {there}"]
    assert (across.sent_bytes > 0) == speaks
    assert across.exchanges == 3
    if speaks:
        assert across.sent_bytes + lines[f"entries inside {here}"].sent_bytes == sum(
            one.sent_bytes for one in run.exchanges
        )
    shown = run.shown()  # which makes up for what was owed
    held = everybodys(torch.from_numpy(inside(run.session).sparse._sums.held))
    now = everybodys(flat(run.model))
    run.session.close()
    assert held[0].abs().sum() > 0
    torch.testing.assert_close(now[0] - held[0], now[1] - held[1], rtol=0, atol=1e-6)
    torch.testing.assert_close(shown, now.mean(0), rtol=0, atol=1e-6)

    sparse = Run("sparse-local:every=2,density=0.2,chunk=16", balance=Moving())
    sparse.epoch(3)
    together = everybodys(flat(sparse.model))
    sparse.epoch(1)  # begins with what is owed of nobody: the third step was no exchange
    assert torch.equal(together[0], together[3])
    assert [one.gap for one in sparse.exchanges] == [2]
    state = sparse.session.state_dict()
    sparse.session.load_state_dict(state)
    sparse.session.close()

    late = Run("sparse-local:every=2,density=0.2,chunk=16,delay=1", balance=Moving())
    late.epoch(3)
    late.agreement.open()  # what the second step sent has entered with the third
    together = everybodys(flat(late.model))
    assert torch.equal(together[0], together[3])
    assert not torch.equal(together[0], together[1]), "the third step is the site's own"
    assert [one.late for one in late.exchanges] == [1]
    late.session.close()


@ranks(3)
def test_sites_that_lead_take_in_what_has_come_and_at_last_all_of_it(me: RankContext) -> None:
    os.environ["UNEVEN_SITE"] = "east" if me.rank < 2 else "west"
    run = Run("geo:bsp:threshold=0.3,lead=2", balance=Moving(), make=plain)
    run.epoch()
    run.epoch()
    assert len(run.exchanges) >= 9
    run.shown()  # where everything arrives
    entries = inside(run.session).sparse
    held = everybodys(torch.from_numpy(entries._sums.held))
    now = everybodys(flat(run.model))
    assert torch.equal(now[0], now[1])
    assert held[0].abs().sum() > 0
    torch.testing.assert_close(now[0] - held[0], now[2] - held[2], rtol=0, atol=1e-6)
    run.session.state_dict()
    if me.rank != 1:
        entries._mirrors.heard = dict.fromkeys(entries._mirrors.heard, 0)
        with pytest.raises(CheckpointError, match="in flight"):
            run.session.state_dict()
        entries._mirrors.begin(entries._clock)
    run.session.close()
    with pytest.raises(ConfigError, match="is stable only up to"):
        Run("geo:bsp:lead=1", make=momentum)
    barred = Run("geo:bsp:threshold=0.3,lead=2,barrier_kb=0.001", balance=Moving(), make=plain)
    barred.epoch()
    announced = inside(barred.session).sparse._announced
    assert (announced is None) == (me.rank == 1)
    shown = everybodys(barred.shown())
    assert torch.equal(shown[0], shown[2])
    held = everybodys(torch.from_numpy(inside(barred.session).sparse._sums.held))
    now = everybodys(flat(barred.model))
    torch.testing.assert_close(now[0] - held[0], now[2] - held[2], rtol=0, atol=1e-6)
    barred.session.close()


@ranks(4)
def test_hubs_hand_on_what_their_group_has_sent(me: RankContext) -> None:
    os.environ["UNEVEN_SITE"] = ("us/a", "us/b", "eu/a", "eu/a")[me.rank]
    found, lines = {}, {}
    for more in ("", ",hubs=true"):
        run = Run(f"geo:bsp:threshold=0.05{more}", balance=Moving(), make=momentum)
        run.epoch()
        found[more] = run.shown()
        book = inside(run.session).traffic
        lines[more] = book.sent_bytes(lambda name: name.startswith("entries ") and "inside" not in name)
        replicas = everybodys(flat(run.model))
        assert torch.equal(replicas[2], replicas[3])
        run.session.close()
    torch.testing.assert_close(found[""], found[",hubs=true"], rtol=0, atol=1e-5)
    sent = everybodys(torch.tensor([lines[""], lines[",hubs=true"]], dtype=torch.float64))
    assert sent[1, 1] < sent[1, 0], "who is no hub tells nobody of another group"
    assert sent[3].tolist() == [0, 0]
    limited = Run("geo:bsp:threshold=0.05,hubs=true,mbit=0.000001,most=0.3", balance=Moving(), make=momentum)
    limited.epoch()
    control = inside(limited.session).sparse._threshold.control
    assert (control is None) == (me.rank == 3), "each site's own"
    assert control is None or control.added > 0, "what was sent by way of a hub counts"
    limited.session.close()


@ranks(3)
def test_what_travels_as_a_whole_takes_no_more_bytes_than_a_sum_in_a_ring(me: RankContext) -> None:
    os.environ["UNEVEN_SITE"] = f"site {me.rank}"
    run = Run("geo:bsp:threshold=0", make=momentum)
    run.epoch()
    vector = flat(run.model).numel() * 4
    assert all(one.sent_bytes < 4 / 3 * vector + 4 * 60 for one in run.exchanges)
    run.session.close()


@ranks(2)
def test_a_threshold_goes_up_while_more_is_sent_than_a_line_may_carry(me: RankContext) -> None:
    os.environ["UNEVEN_SITE"] = f"site {me.rank}"
    picked = {}
    for limit in ("", ",mbit=0.000001,most=0.5"):
        run = Run(f"geo:bsp:threshold=0.01,schedule=fixed{limit}")
        run.epoch()
        run.epoch()
        entries = inside(run.session).sparse
        control = entries._threshold.control
        assert control is None or control.added == pytest.approx(0.005 * (len(run.exchanges) - 1))
        picked[limit] = [one.picked for one in run.exchanges]
        held, now = everybodys(torch.from_numpy(entries._sums.held)), everybodys(flat(run.model))
        torch.testing.assert_close(now[0] - held[0], now[1] - held[1], rtol=0, atol=1e-6)
        run.session.close()
    assert len(picked[""]) >= 9
    assert sum(picked[",mbit=0.000001,most=0.5"]) < sum(picked[""])


@ranks(2)
def test_batch_norm_at_several_sites_is_told(me: RankContext) -> None:
    def normal() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    for site, told in ((f"site {me.rank}", me.rank == 0), ("lab", False)):
        os.environ["UNEVEN_SITE"] = site
        with redirect_stderr(io.StringIO()) as said:
            run = Run("sparse-local", model=normal)
        run.session.close()
        assert ("the model has batch norm ('1' and 0 more)" in said.getvalue()) == told


@ranks(2)
def test_workers_at_one_site_are_told_what_it_comes_to(me: RankContext) -> None:
    os.environ["UNEVEN_SITE"] = "lab"
    with redirect_stderr(io.StringIO()) as said:
        run = Run("geo:bsp:threshold=0.1")
    run.session.close()
    assert ("all 2 workers are at one site, 'lab', so sync = " in said.getvalue()) == (me.rank == 0)


@ranks(2)
def test_a_session_that_is_collected_in_mid_program_waits_for_nobody(me: RankContext) -> None:
    os.environ["UNEVEN_SITE"] = f"site {me.rank}"
    run = Run("geo:bsp:threshold=0.1")
    run.epoch()
    vector = flat(run.model)
    if me.rank == 0:
        del run
        gc.collect()
    assert everybodys(vector).shape[0] == 2, "the other one has not let go of its session yet"
    if me.rank == 1:
        run.session.close()


@ranks(2)
def test_who_takes_part_with_another_step_is_told(me: RankContext) -> None:
    os.environ["UNEVEN_SITE"] = f"site {me.rank}"
    run = Run("geo:bsp:threshold=0")
    run.epoch(2)
    if me.rank == 1:
        run.agreement.clock += 1
    with pytest.raises(TrainingError, match="sends entries of step"):
        run.epoch(2)
    run.session.close()  # now, on both: whenever the garbage is collected, each would wait for the other
